"""The cache of virtual sets on this machine: a folder of files, named by the hash of their inputs."""

from contextlib import suppress
from pathlib import Path

import torch

from fedlgd import __version__
from fedlgd.core.device import Place
from fedlgd.core.errors import RunError
from fedlgd.data.store import data_home
from fedlgd.distill.cache import Cached
from fedlgd.engines.wire import read_message, write_message


class FolderCache:
    """A damaged item is treated as missing. An item that cannot be written is not cached."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> Cached | None:
        try:
            return read_message(self._file(key), Cached)
        except RunError:
            return None

    def put(self, key: str, item: Cached) -> None:
        with suppress(RunError):
            write_message(self._file(key), item)

    def _file(self, key: str) -> Path:
        return self._path / f"{key}.safetensors"


def shared_cache(place: Place = Place()) -> FolderCache | None:
    """The cache that all runs on this machine share; None if it is not writable."""
    by = f"threads{torch.get_num_threads()}" if place.in_memory else torch.device(place.device).type
    made_by = f"fedlgd{__version__}-torch{torch.__version__}-{by}" + ("-bfloat16" if place.autocast else "")
    try:
        folder = data_home() / "distilled" / made_by
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return None
    return FolderCache(folder)
