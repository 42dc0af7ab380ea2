"""Errors that a user can fix. Each has a code, the values it is about, and a message that names the way out.

All messages stand in `messages.toml`, by code: `raise DataError("class-missing", site=name, label=label)`.
"""

import difflib
import re
import string
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from fedlgd.core.text import plural

MAX_LETTERS_IN_LINE = 500
_NO_MEMORY = re.compile("not enough memory|can't allocate memory|out of memory", re.IGNORECASE)


class FedlgdError(ValueError):
    """Base class of errors that a user can fix; the command line shows them without a traceback.

    code: a key of `messages.toml`. values: what the message is about, as raised. A text that is not a code is the
    message itself, so that methods and networks of a user's own can raise these errors too.
    """

    def __init__(self, code: str, **values: Any) -> None:
        known = code in messages()
        super().__init__(message(code, **values) if known else code)
        self.code, self.values = (code if known else ""), values


class DataError(FedlgdError):
    """Invalid images, labels or sites."""


class SettingError(FedlgdError):
    """A setting is unknown or has an invalid value."""


class DivergedError(SettingError):
    """Local training came to values that are not finite; the site has no update to send."""


class NetError(FedlgdError):
    """A network is unknown or does not have the required interface."""


class RunError(FedlgdError):
    """A run cannot continue: its folder is damaged or of another run, sites were refused, or it diverged."""


class PrivacyError(FedlgdError):
    """A promise of privacy cannot be kept: its budget is spent, or something else would leave a site."""


class _Words(string.Formatter):
    """str.format with two more formats: `{n:#image}` is `3 images`, and `{names:,}` joins a list with commas."""

    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec.startswith("#"):
            return plural(value, format_spec[1:])
        if format_spec == "," and not isinstance(value, int | float):
            return ", ".join(map(str, value))
        return str(super().format_field(value, format_spec))


@cache
def messages() -> dict[str, str]:
    """The messages by code. In the file they stand in one table for each package."""
    tables = tomllib.loads(Path(__file__).with_name("messages.toml").read_text(encoding="utf-8"))
    return {code: text for table in tables.values() for code, text in table.items()}


def message(code: str, **values: Any) -> str:
    """The message of a code with its values."""
    return _Words().vformat(messages()[code], (), values)


def check(ok: bool, setting: str, value: object, way_out: str) -> None:
    """Raise an error for the value of a setting unless `ok`; comparisons with NaN are false."""
    if not ok:
        raise SettingError("setting-value", setting=setting, value=value, way_out=way_out)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'fedavg'?`, or an empty string if no known word is similar."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


def looks_like(word: str, known: Iterable[str]) -> str:
    """The known word of which this one may be a misspelling, or an empty string.

    Stricter than `did_you_mean`, because the words are names of classes: at most a quarter of the letters differ,
    the digits are the same ("grade 1"), and the longer one does not only add a beginning ("abnormal", "atypical").
    """
    names = {each.casefold(): each for each in known}
    for other in difflib.get_close_matches(word.casefold(), names, cutoff=0.75):
        short, long = sorted((word.casefold(), other), key=len)
        same = sum(block.size for block in difflib.SequenceMatcher(None, short, long, False).get_matching_blocks())
        digits = [re.sub(r"\D", "", each) for each in (short, long)]
        begun = short != long and long.endswith(short)
        if len(long) - same <= len(short) // 4 and digits[0] == digits[1] and not begun:
            return names[other]
    return ""


def similar_path(path: Path, folders_only: bool = False) -> str:
    """`; did you mean 'runs/mine'?` for a path that does not exist: a similar name in the same folder."""
    parent = path.parent if path.parent.is_dir() else Path()
    names = [each.name for each in parent.iterdir() if each.is_dir() or not folders_only]
    near = difflib.get_close_matches(path.name, names, 1) if path.parent == parent else []
    return f"; did you mean {str(parent / near[0])!r}?" if near else ""


def in_words(error: BaseException) -> str:
    """What a user can do about an error: its message, or a way out if memory ran out; empty for a bug."""
    if isinstance(error, FedlgdError):
        return str(error)
    if out_of_memory(error):
        first = str(error).partition("\n")[0] or "the system gave none"
        return f"not enough memory ({first}); use smaller batches, fewer images, fewer --workers or a smaller net"
    return ""


def out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: of Python, or of torch, which says so in words."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and _NO_MEMORY.search(str(error)) is not None
    )


def one_line(text: str, longest: int = MAX_LETTERS_IN_LINE) -> str:
    """A text of someone else as it can stand in a terminal or in a log: without control characters."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:longest])
