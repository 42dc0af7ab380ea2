"""Settings as text: config files in TOML, and `--set key=value`. Text of any size or depth is read or refused."""

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedlgd.core.errors import SettingError
from fedlgd.rundir.sweep import check_axes

MOST_TEXT = 1 << 17  # characters of a config file or of a value of --set
MOST_DOTS = 200  # in a line: the time that TOML takes for a dotted key grows with the square of its length
DEEPEST = 20  # levels of sections and lists
MOST_BITS = 1_000  # of an integer; Python prints no more than 4 300 digits
SHOWN = 60  # characters of a value in an error


def read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MOST_TEXT + 1)
        return _read_toml(content.decode(), f"config {str(path)!r}")
    except OSError as error:
        raise SettingError(
            f"cannot read config {str(path)!r}: {error.strerror}; correct the path of --config"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"config {str(path)!r} is not valid TOML: {error}; correct the file") from error


def _read_toml(text: str, what: str) -> dict[str, Any]:
    """TOML of bounded size and depth; an integer of thousands of digits is an error of `int`, not of TOML."""
    if len(text) > MOST_TEXT:
        raise SettingError(
            f"{what} has more than {MOST_TEXT:,} characters; settings are short, check what is given"
        )
    if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
        raise SettingError(f"{what} has a line with more than {MOST_DOTS} dots; write the values in several lines")
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except (RecursionError, ValueError) as error:
        raise SettingError(f"{what} has too many levels or digits; settings are short numbers and words") from error
    if _depth(read) > DEEPEST:
        raise SettingError(f"{what} has more than {DEEPEST} levels or an integer too long; settings are short")
    return read


def _depth(value: Any) -> int:
    """Levels of lists and sections, counted without recursion; too many if an integer is too long to be printed."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, list | Mapping)]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, Mapping) else each)]
        if any(isinstance(each, int) and each.bit_length() > MOST_BITS for each in level):
            return DEEPEST + 1
    return depth


def parse_assignment(text: str) -> tuple[str, Any]:
    """`a.b=c` as ("a.b", value); the value is read as TOML where it is TOML, else as text."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise SettingError(f"--set {_short(text)} is not of the form key=value, e.g. --set distil.per_class=10")
    if not text.isascii() and text != text.encode(errors="replace").decode():
        raise SettingError(f"--set {_short(text)} is not valid UTF-8; write the value in UTF-8")
    if path.count(".") > DEEPEST:
        raise SettingError(f"--set {_short(text)} has more than {DEEPEST} levels; a setting has two or three")
    try:
        return path.strip(), _read_toml(f"value = {value}", f"--set {_short(text)}")["value"]
    except tomllib.TOMLDecodeError:
        return path.strip(), value.strip()


def parse_axes(texts: Sequence[str]) -> dict[str, list[str]]:
    """`["a.b=1,2", "c=x,y"]` as the values of each axis of a sweep: one axis, or two."""
    axes: dict[str, list[str]] = {}
    for text in texts:
        path, equals, values = (word.strip() for word in text.partition("="))
        found = [value.strip() for value in values.split(",")]
        if not equals or not path or not all(found) or len(set(found)) < len(found) or path in axes:
            raise SettingError(
                f"--sweep {_short(text)}: give a setting once and different values, e.g. pull.weight=0,1,10"
            )
        if path.split(".")[0] in ("data", "seed", "method"):
            raise SettingError(
                f"--sweep {_short(text)}: compare other data with a command each, seeds with --seeds"
            )
        axes[path] = found
    check_axes(axes)
    return axes


def _short(text: str) -> str:
    return repr(text if len(text) <= SHOWN else f"{text[:SHOWN]}...")
