"""Atomic writes and files with digests. This module does not import torch."""

import fcntl
import hashlib
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from fedlgd.core.errors import FedlgdError, RunError

RUN_FOLDER = "Free space or choose a writable folder with --out, then re-run the same command to resume"


@contextmanager
def writing(what: Path | str, way_out: str = RUN_FOLDER, kind: type[FedlgdError] = RunError) -> Iterator[None]:
    """A failed write is an error that names the file and the fix."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise kind(f"cannot write {what}: {reason}; no incomplete file was left. {way_out}") from error


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """A damaged or missing file of a run is a `RunError` that names it; the file is not changed."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, FedlgdError):
            raise
        raise RunError(
            f"{str(path)!r} is damaged or missing ({error}); the run was not changed. "
            "Restore the file from a copy, or start a new run in another folder with --out"
        ) from error


def write_atomic(path: Path, content: bytes | Callable[[IO[bytes]], object]) -> None:
    """Write a temporary file, fsync, rename. A reader sees the old or the new file. `content` can be a function."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with beside.open("wb") as file:
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
    with path.open("ab") as file:
        file.truncate(after)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Fsync a folder, so that the names of its files are on disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def clear_parts(folder: Path, older_than: float = 0.0) -> None:
    """Remove what a killed process was writing in this folder, if it is older than so many seconds."""
    for part in folder.glob(".*.part"):
        if not older_than or time.time() - part.stat().st_mtime > older_than:
            part.unlink(missing_ok=True)


def digest(*parts: bytes | memoryview) -> str:
    h = hashlib.blake2b(digest_size=16)
    for part in parts:
        h.update(part)
    return h.hexdigest()


def write_json(path: Path, value: dict[str, Any]) -> None:
    """JSON with a digest of its content."""
    content = json.dumps({**value, "digest": _digest_json(value)}, indent=1, ensure_ascii=False)
    with writing(path):
        write_atomic(path, content.encode() + b"\n")


def read_json(path: Path) -> dict[str, Any]:
    with reading(path):
        value: dict[str, Any] = json.loads(path.read_bytes())
        if value.pop("digest") != _digest_json(value):
            raise ValueError("its digest does not match its content")
        return value


def _digest_json(value: dict[str, Any]) -> str:
    return digest(json.dumps(value, sort_keys=True).encode())


@contextmanager
def locked(file: Path, busy: FedlgdError) -> Iterator[None]:
    """An exclusive lock; raises `busy` if another process has it. It is released when the process ends."""
    handle = os.open(file, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise busy from error
        yield
    finally:
        os.close(handle)
