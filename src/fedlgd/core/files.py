"""Atomic writes and files with digests. This module does not import torch."""

import fcntl
import hashlib
import json
import os
import re
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any

from fedlgd.core.errors import FedlgdError, RunError

MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError, MemoryError)
OLD = 86_400.0  # seconds after which nobody writes a part in a shared folder any more
PAUSE = 0.05  # seconds between attempts to get a lock
RUN_FOLDER = "Free space or choose a writable folder with --out, then re-run the same command to resume"


@contextmanager
def writing(what: Path | str, way_out: str = RUN_FOLDER, kind: type[FedlgdError] = RunError) -> Iterator[None]:
    """A failed write is an error that names the file and the fix."""
    try:
        yield
    except OSError as error:
        raise kind("cannot-write", path=str(what), reason=error.strerror or error, way_out=way_out) from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A damaged or missing file of a run is a `RunError` that names it; the file is not changed."""
    try:
        yield
    except FedlgdError:
        raise
    except (*MALFORMED, OSError) as error:
        raise RunError("damaged-file", file=str(path), error=error) from error


def make_folder(folder: Path, mode: int = 0o777) -> Path:
    """The folder, made if absent with those above it, and their names on the disk: a lost name loses all inside."""
    if not folder.exists():
        make_folder(folder.parent)
        folder.mkdir(mode, exist_ok=True)
        sync_folder(folder.parent)
    return folder


def private_folder(folder: Path) -> Path:
    """The folder, made if absent, for this user only."""
    return make_folder(folder, 0o700)


def write_atomic(path: Path, content: bytes | Callable[[IO[bytes]], object], private: bool = False) -> None:
    """Write beside, fsync, rename: a reader sees the old file or the new one. `content` may write it itself.

    A private file is readable by this user only.
    """
    make_folder(path.parent)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(beside, "xb", opener=partial(os.open, mode=0o600 if private else 0o666)) as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def append(path: Path, content: bytes, after: int) -> None:
    """Append after the first `after` bytes and fsync; later bytes were never committed."""
    new = not path.exists()
    with path.open("ab") as file:
        file.truncate(after)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    if new:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that the names of its files are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_parts(folder: Path, age: float = 0.0, of: str = "*") -> None:
    """Remove what a killed process was writing in this folder, if it is older than `age` seconds.

    `of`: only parts with such a name, for a folder in which others write, too.
    """
    for part in folder.glob(f".{of}.part"):
        with suppress(OSError):
            if not age or part.stat().st_mtime < time.time() - age:
                part.unlink(missing_ok=True)


def safe_name(site: str) -> str:
    """A unique and safe file name for any site name."""
    if re.fullmatch(r"[a-z0-9_-]{1,40}", site) and not re.search(r"-[0-9a-f]{8}$", site) and site != "anchors":
        return site
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", site)[:40]
    return f"{plain}-{hashlib.blake2b(site.encode(), digest_size=4).hexdigest()}"


def digest(*parts: bytes | memoryview) -> str:
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        h.update(part)
    return h.hexdigest()


def write_json(path: Path, value: dict[str, Any], private: bool = False) -> None:
    """JSON with a digest of its content."""
    content = json.dumps({**value, "digest": digest_json(value)}, indent=1, ensure_ascii=False)
    with writing(path):
        write_atomic(path, content.encode() + b"\n", private)


def read_json(path: Path) -> dict[str, Any]:
    with reading(path):
        value: dict[str, Any] = json.loads(path.read_bytes())
        if value.pop("digest") != digest_json(value):
            raise ValueError("its digest does not match its content")
        return value


def digest_json(value: Mapping[str, Any]) -> str:
    return digest(json.dumps(value, sort_keys=True).encode())


@contextmanager
def locked(file: Path, busy: FedlgdError, patience: float = 0.0) -> Iterator[None]:
    """An exclusive lock; raises `busy` if another process still has it after `patience` seconds.

    It is released when the process ends.

    A forked child closes its copy at once, so a stopped child cannot keep the lock of a dead parent.
    """
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    _locks.add(handle)
    try:
        _wait_for(handle, busy, time.monotonic() + patience)
        yield
    finally:
        if handle in _locks:  # not so in a forked child
            _locks.remove(handle)
            os.close(handle)


def _wait_for(handle: int, busy: FedlgdError, until: float) -> None:
    while True:
        try:
            return fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() >= until:
                raise busy from error
            time.sleep(PAUSE)


_locks: set[int] = set()  # descriptors of the locks that this process holds


def _give_up_locks() -> None:
    while _locks:
        os.close(_locks.pop())


os.register_at_fork(after_in_child=_give_up_locks)
