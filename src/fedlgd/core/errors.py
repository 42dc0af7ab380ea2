"""Errors a user can act on. Each message names the thing, the value and the way out."""


class FedlgdError(ValueError):
    """Something the user can put right; the command line shows it without a traceback."""


class DataError(FedlgdError):
    """The images, labels or sites are not what a federation needs."""


class SettingError(FedlgdError):
    """A setting is unknown or has a value that makes no sense."""


def check(ok: bool, setting: str, value: object, way_out: str) -> None:
    """Refuse a value of a setting unless `ok`; a comparison with NaN is not."""
    if not ok:
        raise SettingError(f"{setting} is {value}; {way_out}")


class DivergedError(SettingError):
    """Local training came to values that are not finite; the site has no update to send."""


class NetError(FedlgdError):
    """A network is unknown or does not offer what a network must offer."""


class RunError(FedlgdError):
    """A run cannot go on: its directory is damaged or another run's, sites were refused, or training diverged."""
