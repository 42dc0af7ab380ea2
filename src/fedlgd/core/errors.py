"""Errors that a user can fix. Each message names the object, its value and the fix."""

import re


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


def in_words(error: BaseException) -> str:
    """What a user can do about an error: its message, or a way out if memory ran out; empty for a bug."""
    if isinstance(error, FedlgdError):
        return str(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _SHORT.search(str(error))):
        first = str(error).partition("\n")[0] or "the system gave none"
        return f"not enough memory ({first}); use smaller batches, fewer images, fewer --workers or a smaller net"
    return ""


_SHORT = re.compile("not enough memory|can't allocate memory|out of memory", re.IGNORECASE)


def one_line(text: str, longest: int = 500) -> str:
    """A text of someone else as it can stand in a terminal or in a log: without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:longest])


class NetError(FedlgdError):
    """A network is unknown or does not have the required interface."""


class RunError(FedlgdError):
    """A run cannot continue: its folder is damaged or of another run, sites were refused, or it diverged."""


class PrivacyError(FedlgdError):
    """A promise of privacy cannot be kept: its budget is spent, or something else would leave a site."""
