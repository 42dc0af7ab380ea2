"""Errors a user can act on. Each message names the thing, the value and the way out."""

import re


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


def in_words(error: BaseException) -> str:
    """What a user can do about an error: its message, or a way out if memory ran out; empty for a bug."""
    if isinstance(error, FedlgdError):
        return str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _SHORT.search(str(error))):
        first = str(error).partition("\n")[0] or "the system gave none"
        return f"not enough memory ({first}); use smaller batches, fewer images, fewer --workers or a smaller net"
    return ""


_SHORT = re.compile("not enough memory|can't allocate memory|out of memory", re.IGNORECASE)


class NetError(FedlgdError):
    """A network is unknown or does not offer what a network must offer."""


class RunError(FedlgdError):
    """A run directory cannot be used: another configuration, damage, or a place that cannot be written."""
