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


class NetError(FedlgdError):
    """A network is unknown or does not offer what a network must offer."""


class RunError(FedlgdError):
    """A run directory cannot be used: another configuration, damage, or a place that cannot be written."""
