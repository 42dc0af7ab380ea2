"""Files that are whole or absent, and that know when they were damaged. Nothing here reads a pickle."""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import contiguous_format, uint8

from fedlgd.core.errors import RunError
from fedlgd.core.pack import pack, unpack
from fedlgd.core.types import Params

T = TypeVar("T")


@contextmanager
def saving(what: str) -> Iterator[None]:
    """A failed write says what could not be saved and what to do."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot save {what}: {error.strerror or error}; nothing half-written was left behind. "
            "Free space or choose a writable place with --out, then run the same command again to go on"
        ) from error


def write_atomic(path: Path, content: bytes) -> None:
    """Write beside, fsync, rename: a reader sees the old file or the new one."""
    with saving(str(path)):
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            with beside.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _sync_folder(path.parent)


def append(path: Path, content: bytes, after: int) -> None:
    """Append behind the first `after` bytes and fsync; what was behind them never counted."""
    with saving(str(path)), path.open("ab") as file:
        file.truncate(after)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: dict[str, Any]) -> None:
    """JSON that carries its own digest."""
    content = json.dumps({**value, "digest": _digest(_canonical(value))}, indent=1, ensure_ascii=False)
    write_atomic(path, content.encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    with reading(path):
        value: dict[str, Any] = json.loads(path.read_bytes())
        if value.pop("digest") != _digest(_canonical(value)):
            raise ValueError("its digest does not match its content")
        return value


def write_message(path: Path, message: Any) -> None:
    """A state or message as safetensors; plain values and a digest travel in the header."""
    tensors, plain = pack(message)
    tensors = {name: t.detach().clone(memory_format=contiguous_format) for name, t in tensors.items()}
    text = json.dumps(plain)
    content = save(tensors, {"plain": text, "digest": _digest_tensors(tensors, text)})
    write_atomic(path, content)


def read_message(path: Path, kind: type[T]) -> T:
    with reading(path):
        tensors, plain = _load(path)
        if plain.keys() != get_type_hints(kind).keys():
            raise ValueError(f"it holds no {kind.__name__}")
        return unpack(kind, tensors, plain)


def verify(path: Path) -> None:
    """Raise if a message file is not what was written."""
    with reading(path):
        _load(path)


def _load(path: Path) -> tuple[Params, dict[str, Any]]:
    content = path.read_bytes()
    tensors = load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
    if header["digest"] != _digest_tensors(tensors, header["plain"]):
        raise ValueError("its digest does not match its content")
    return tensors, json.loads(header["plain"])


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A damaged or missing file is a `RunError` that names it; the file stays as it is."""
    try:
        yield
    except (OSError, SafetensorError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, RunError):
            raise
        raise RunError(
            f"{str(path)!r} is damaged or missing ({error}); the run was left untouched. "
            "Restore the file from a copy, or start anew in another folder with --out"
        ) from error


def clear_parts(folder: Path) -> None:
    """Remove what a killed process was writing in this folder."""
    for part in folder.glob(".*.part"):
        part.unlink(missing_ok=True)


def digest(content: bytes) -> str:
    return _digest(lambda h: h.update(content))


def _digest(feed: Callable[[Any], None]) -> str:
    h = hashlib.blake2b(digest_size=16)
    feed(h)
    return h.hexdigest()


def _canonical(value: dict[str, Any]) -> Callable[[Any], None]:
    return lambda h: h.update(json.dumps(value, sort_keys=True).encode())


def _digest_tensors(tensors: dict[str, Any], plain: str) -> str:
    def feed(h: Any) -> None:
        h.update(plain.encode())
        for name in sorted(tensors):
            t = tensors[name]
            h.update(repr((name, tuple(t.shape), str(t.dtype))).encode())
            h.update(t.reshape(-1).view(uint8).numpy().data)

    return _digest(feed)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
