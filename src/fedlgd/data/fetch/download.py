"""Downloads that resume, try every mirror, and accept only the published file.

`sources.toml` has the published data sets: their files, their terms, and what they are prepared into.
"""

import hashlib
import os
import time
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import msgspec
import requests
import urllib3

from fedlgd.core.errors import DataError
from fedlgd.core.meter import tick
from fedlgd.data.arrays import saving


@dataclass(frozen=True, slots=True, kw_only=True)
class Original:
    """One file as its authors publish it. hash: "md5:..." or "sha256:...", "" if unknown; size 0: unknown."""

    name: str
    urls: tuple[str, ...] = ()
    hash: str = ""
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataset:
    """One data set: its terms, its files, the prepared files below the data home, and their total size (`room`).

    counts: the numbers of training and test images of each published release. by_hand: how to get it manually.
    optional: whether its group is complete without it.
    """

    name: str
    group: str = ""
    optional: bool = False
    what: str
    terms: str
    page: str
    files: tuple[Original, ...] = ()
    makes: tuple[str, ...]
    room: int = 0
    counts: tuple[tuple[int, int], ...] = ()
    by_hand: str = ""


DATASETS: dict[str, Dataset] = {
    source["name"]: msgspec.convert(source, Dataset)
    for source in tomllib.loads(Path(__file__).with_name("sources.toml").read_text(encoding="utf-8"))["source"]
}
GROUPS = {
    group: tuple(source for source in DATASETS.values() if source.group == group)
    for group in ("digits", "cifar10c", "retina")
}


CHUNK_BYTES = 1 << 18
TIMEOUT_SECONDS = (10, 60)  # seconds to connect, and between two chunks
MAX_FAILED_TRIES = 3  # failed attempts in a row before a mirror is given up
PAUSE_SECONDS = 1.0  # seconds between attempts
MAX_BYTES = 1 << 32  # of a file whose size is not published
STATUS_PARTIAL, STATUS_NO_MORE = 206, 416

INTERRUPTED = (requests.RequestException, urllib3.exceptions.HTTPError)


class DownloadError(DataError):
    """No mirror provided the file; the message lists the answer of each."""


class RefusedError(Exception):
    """One mirror did not provide the file."""


def download(original: Original, folder: Path) -> Path:
    """The file in `folder`; unless the published file is there already, from the first mirror that has it.

    Data is written to `<name>.part`, which stays after an interruption, and the next attempt requests the rest.
    If no hash is known, the joined file could not be verified, so the download starts from the beginning.
    """
    target, part = folder / original.name, folder / f"{original.name}.part"
    if target.is_file() and not wrong(target, original):
        return target
    with saving(folder):
        folder.mkdir(parents=True, exist_ok=True)
    answers = []
    for url in original.urls:
        try:
            _from_mirror(url, original, part)
        except RefusedError as answer:
            answers.append(f"{urlsplit(url).netloc}: {answer}")
        else:
            with saving(target):
                part.replace(target)
            return target
    raise DownloadError("no-mirror", name=original.name, answers="; ".join(answers))


def wrong(path: Path, original: Original) -> str:
    """How the file differs from the published one; "" if it does not, as far as is known."""
    size = path.stat().st_size
    if original.size and size != original.size:
        return f"it has {size} bytes, the published file has {original.size}"
    kind, _, digest = original.hash.partition(":")
    if digest:
        with path.open("rb") as file:
            found = hashlib.file_digest(file, kind).hexdigest()
        if found != digest:
            return f"its {kind} is {found}, that of the published file is {digest}"
    return ""


def missing_bytes(original: Original, folder: Path) -> int:
    """How many bytes are still to download; 0 if the size is unknown."""
    target, part = folder / original.name, folder / f"{original.name}.part"
    return max(0, original.size - max(_size(target), _size(part)))


def _from_mirror(url: str, original: Original, part: Path) -> None:
    """The complete file from one mirror. If an earlier part does not fit, everything is downloaded again."""
    resumed = bool(original.hash and _size(part))
    if not original.hash:
        part.unlink(missing_ok=True)
    _retrying(url, original, part)
    if difference := wrong(part, original):
        part.unlink()
        if not resumed:
            raise RefusedError(difference)
        _from_mirror(url, original, part)


def _retrying(url: str, original: Original, part: Path) -> None:
    """Retry after an interruption as long as the part grows; a mirror that sends nothing is given up at once."""
    first, idle = _size(part), 0
    while True:
        before = _size(part)
        try:
            return _receive(url, original, part)
        except INTERRUPTED as error:
            idle = 0 if _size(part) > before else idle + 1
            if idle == MAX_FAILED_TRIES or _size(part) == first:
                raise RefusedError(_reason(error)) from error
            time.sleep(PAUSE_SECONDS)


def _receive(url: str, original: Original, part: Path) -> None:
    """Request the rest of the part and append it; if the server sends the whole file, the part starts again."""
    have = _size(part)
    if original.size and have == original.size:
        return
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT_SECONDS) as answer:
        if have and answer.status_code == STATUS_NO_MORE:
            return
        if not answer.ok:
            raise RefusedError(f"HTTP {answer.status_code} {answer.reason}")
        sent = answer.headers.get("Content-Range", "")
        resumes = answer.status_code == STATUS_PARTIAL and sent.startswith(f"bytes {have}-")
        try:
            with part.open("ab" if resumes else "wb") as file:
                _append(answer, file, have if resumes else 0, original)
        except OSError as error:  # a failed write; the message says how to resume
            raise DataError("part-not-written", part=part, error=error.strerror or error) from error


def _append(answer: requests.Response, file: IO[bytes], have: int, original: Original) -> None:
    """Write what arrives, up to the first chunk that exceeds the published size, or any sane size."""
    length = answer.headers.get("Content-Length", "")
    total = have + int(length) if length.isdecimal() else original.size
    for piece in answer.raw.stream(CHUNK_BYTES, decode_content=False):
        have += file.write(piece)
        tick(f"downloading {original.name}", have, total)
        if have > (original.size or MAX_BYTES):
            break
    file.flush()
    os.fsync(file.fileno())


def _reason(error: Exception) -> str:
    """The innermost message of a network error."""
    while isinstance(inner := getattr(error.args[0], "reason", error.args[0]) if error.args else None, Exception):
        error = inner
    text = str(error.args[-1] if error.args else error)
    return text.rpartition(": ")[2]


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
