"""Downloads that go on where they stopped, try every mirror, and are what was published or are refused."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

import pooch
import requests
import urllib3

from fedlgd.core.errors import DataError
from fedlgd.core.meter import tick
from fedlgd.data.sources import Original
from fedlgd.data.space import writing

CHUNK = 1 << 18
TIMEOUT = (10, 60)  # seconds to connect, and between two pieces
TRIES = 3  # of one mirror that bring nothing new
PAUSE = 1.0  # seconds before trying again
PARTIAL, NO_MORE = 206, 416

CUT = (requests.RequestException, urllib3.exceptions.HTTPError)


class DownloadError(DataError):
    """No mirror had the file; the message says what each answered."""


class RefusedError(Exception):
    """What one mirror offers is not the file."""


def download(original: Original, folder: Path) -> Path:
    """The file in `folder`: as it lies there if it is the published one, else from the first mirror that has it.

    What arrives goes to `<name>.part`. It stays if the connection is cut or the user interrupts, and the next
    attempt asks for the rest; where no hash is known, so that two halves could not be checked, it starts anew.
    """
    target = folder / original.name
    if target.is_file() and not wrong(target, original):
        return target
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    answers = []
    for url in original.urls:
        try:
            _from_mirror(url, original, folder / f"{original.name}.part")
        except RefusedError as answer:
            answers.append(f"{urlsplit(url).netloc}: {answer}")
        else:
            with writing(target):
                (folder / f"{original.name}.part").replace(target)
            return target
    raise DownloadError(f"cannot download {original.name} ({'; '.join(answers)})")


def wrong(path: Path, original: Original) -> str:
    """What about the file differs from the published one; "" if nothing that is known."""
    size = path.stat().st_size
    if original.size and size != original.size:
        return f"it has {size} bytes, the published one {original.size}"
    kind, _, digest = original.hash.partition(":")
    if digest and (found := pooch.file_hash(str(path), alg=kind)) != digest:
        return f"its {kind} is {found}, the published one {digest}"
    return ""


def missing_bytes(original: Original, folder: Path) -> int:
    """How much is still to come, if the size is known."""
    target, part = folder / original.name, folder / f"{original.name}.part"
    return max(0, original.size - max(_size(target), _size(part)))


def _from_mirror(url: str, original: Original, part: Path) -> None:
    """The whole file from one mirror. A part from before that does not fit is thrown away, and all is fetched."""
    went_on = bool(original.hash and _size(part))
    if not original.hash:
        part.unlink(missing_ok=True)
    _persistently(lambda: _receive(url, original, part), part)
    if trouble := wrong(part, original):
        part.unlink()
        if not went_on:
            raise RefusedError(trouble)
        _from_mirror(url, original, part)


def _persistently(receive: Callable[[], None], part: Path) -> None:
    """Try again after a cut, as long as the part grows; a mirror that brings nothing at all is left at once."""
    first, idle = _size(part), 0
    while True:
        before = _size(part)
        try:
            return receive()
        except CUT as error:
            idle = 0 if _size(part) > before else idle + 1
            if idle == TRIES or _size(part) == first:
                raise RefusedError(_reason(error)) from error
            time.sleep(PAUSE)


def _receive(url: str, original: Original, part: Path) -> None:
    """Ask for what the part lacks and append it; a server that sends everything starts the part anew."""
    have = _size(part)
    if original.size and have == original.size:
        return
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    with requests.get(url, headers=headers, stream=True, timeout=TIMEOUT) as answer:
        if have and answer.status_code == NO_MORE:
            return
        if not answer.ok:
            raise RefusedError(f"HTTP {answer.status_code} {answer.reason}")
        goes_on = answer.status_code == PARTIAL and _begin(answer) == have
        with writing(part), part.open("ab" if goes_on else "wb") as file:
            _append(answer, file, have if goes_on else 0, original)


def _append(answer: requests.Response, file: IO[bytes], have: int, original: Original) -> None:
    """Write what comes, up to the first piece that makes it larger than published."""
    length = answer.headers.get("Content-Length", "")
    total = have + int(length) if length.isdecimal() else original.size
    for piece in answer.raw.stream(CHUNK, decode_content=False):
        have += file.write(piece)
        tick(f"downloading {original.name}", have, total)
        if original.size and have > original.size:
            break
    file.flush()
    os.fsync(file.fileno())


def _begin(answer: requests.Response) -> int:
    """Where the piece begins: 7 of "bytes 7-99/100"."""
    begin = answer.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(begin) if begin.isdecimal() else -1


def _reason(error: Exception) -> str:
    """The innermost, plainest part of a network error."""
    while isinstance(inner := getattr(error.args[0], "reason", error.args[0]) if error.args else None, Exception):
        error = inner
    text = str(error.args[-1] if error.args else error)
    return text.rpartition(": ")[2]


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0
