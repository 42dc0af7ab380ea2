"""Settings as text: config files in TOML, `--set key=value`, and sweeps, which give an entry of a comparison every
combination of some values. Text of any size or depth is read or refused. No torch."""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from fedlgd.core.errors import SettingError
from fedlgd.core.files import safe_name

MAX_LETTERS = 1 << 17  # characters of a config file or of a value of --set
MAX_DOTS_IN_LINE = 200  # in a line: the time that TOML takes for a dotted key grows with the square of its length
MAX_LEVELS = 20  # levels of sections and lists
MAX_BITS = 1_000  # of an integer; Python prints no more than 4 300 digits
MAX_LETTERS_SHOWN = 60  # characters of a value in an error


def read_toml(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_LETTERS + 1)
        return _read_toml(content.decode(), f"config {str(path)!r}")
    except OSError as error:
        raise SettingError("config-unreadable", file=str(path), error=error.strerror) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError("config-no-toml", file=str(path), error=error) from error


def _read_toml(text: str, what: str) -> dict[str, Any]:
    """TOML of bounded size and depth; an integer of thousands of digits is an error of `int`, not of TOML."""
    if len(text) > MAX_LETTERS:
        raise SettingError("text-too-long", what=what, letters=MAX_LETTERS)
    if any(line.count(".") > MAX_DOTS_IN_LINE for line in text.splitlines()):
        raise SettingError("too-many-dots", what=what, dots=MAX_DOTS_IN_LINE)
    try:
        read = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except (RecursionError, ValueError) as error:
        raise SettingError("too-deep-to-read", what=what) from error
    if _depth(read) > MAX_LEVELS:
        raise SettingError("too-many-levels", what=what, levels=MAX_LEVELS)
    return read


def _depth(value: Any) -> int:
    """Levels of lists and sections, counted without recursion; too many if an integer is too long to be printed."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, list | Mapping)]:
        depth += 1
        level = [inner for each in level for inner in (each.values() if isinstance(each, Mapping) else each)]
        if any(isinstance(each, int) and each.bit_length() > MAX_BITS for each in level):
            return MAX_LEVELS + 1
    return depth


def parse_assignment(text: str) -> tuple[str, Any]:
    """`a.b=c` as ("a.b", value); the value is read as TOML where it is TOML, else as text."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise SettingError("no-assignment", text=_short(text))
    if not text.isascii() and text != text.encode(errors="replace").decode():
        raise SettingError("assignment-no-utf8", text=_short(text))
    if path.count(".") > MAX_LEVELS:
        raise SettingError("assignment-too-deep", text=_short(text), levels=MAX_LEVELS)
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
            raise SettingError("sweep-text", text=_short(text))
        if path.split(".")[0] in ("data", "seed", "method"):
            raise SettingError("sweep-of-data", text=_short(text))
        axes[path] = found
    check_axes(axes)
    return axes


def check_axes(axes: Mapping[str, Sequence[Any]]) -> None:
    """A sweep has one or two axes, each with different values."""
    if len(axes) > 2:
        raise SettingError("sweep-axes", n=len(axes), axes=list(axes))
    for path, values in axes.items():
        listed = isinstance(values, Sequence) and not isinstance(values, str)
        if not listed or not values or any(value in values[:at] for at, value in enumerate(values)):
            raise SettingError("sweep-values", path=path, values=values)


def points(axes: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Every combination of one value of each axis; one empty combination without axes."""
    for values in product(*axes.values()):
        yield dict(zip(axes, values, strict=True))


def swept(entries: Sequence[str], axes: Mapping[str, Sequence[Any]]) -> list[str]:
    """Every entry at every point: `fedlgd:pull.weight=1`."""
    return [
        ":".join([entry, *(f"{path}={value}" for path, value in point.items())])
        for entry in entries
        for point in points(axes)
    ]


def entry_folder(spec: str) -> str:
    """The folder of an entry in a comparison."""
    return safe_name(spec.replace(":", "-").replace("+", "-").replace("=", "-"))


def _short(text: str) -> str:
    return repr(text if len(text) <= MAX_LETTERS_SHOWN else f"{text[:MAX_LETTERS_SHOWN]}...")
