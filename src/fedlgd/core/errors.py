"""Errors that a user can fix. Each message names the object, its value and the fix."""


class FedlgdError(ValueError):
    """Base class of errors that a user can fix; the command line shows them without a traceback."""


class DataError(FedlgdError):
    """Invalid images, labels or sites."""


class SettingError(FedlgdError):
    """A setting is unknown or has an invalid value."""


def check(ok: bool, setting: str, value: object, way_out: str) -> None:
    """Raise an error for the value of a setting unless `ok`; comparisons with NaN are false."""
    if not ok:
        raise SettingError(f"{setting} is {value}; {way_out}")


class DivergedError(SettingError):
    """Local training came to values that are not finite; the site has no update to send."""


class NetError(FedlgdError):
    """A network is unknown or does not have the required interface."""


class RunError(FedlgdError):
    """A run cannot continue: its folder is damaged or of another run, sites were refused, or it diverged."""
