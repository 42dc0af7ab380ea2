"""The cache of distilled sets on this machine: a folder of files, named by what they were made from."""

from contextlib import suppress
from pathlib import Path

import torch

from fedlgd import __version__
from fedlgd.core.device import Place
from fedlgd.core.errors import RunError
from fedlgd.core.files import OLD, clear_parts, private_folder
from fedlgd.data.store import data_home
from fedlgd.distill.cache import Cached
from fedlgd.engines.wire import read_message, write_message


class FolderCache:
    """A damaged item counts as absent: it is made again. One that cannot be written is not kept."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> Cached | None:
        try:
            return read_message(self._file(key), Cached)
        except RunError:
            return None

    def put(self, key: str, item: Cached) -> None:
        with suppress(RunError):
            write_message(self._file(key), item, private=True)

    def _file(self, key: str) -> Path:
        return self._path / f"{key}.safetensors"


def shared_cache(place: Place = Place()) -> FolderCache | None:
    """Distilled sets are shared by all runs of this machine that would make the same ones."""
    by = f"threads{torch.get_num_threads()}" if place.in_memory else torch.device(place.device).type
    made_by = f"fedlgd{__version__}-torch{torch.__version__}-{by}" + ("-bfloat16" if place.autocast else "")
    try:
        folder = private_folder(private_folder(data_home() / "distilled") / made_by)
        clear_parts(folder, OLD)
    except OSError:
        return None
    return FolderCache(folder)
