"""The cache of virtual sets on this machine: a folder of files, named by the hash of their inputs."""

from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path

import torch

from fedlgd import __version__
from fedlgd.core.cache import Cache, Cached, NoCache
from fedlgd.core.device import Place
from fedlgd.core.errors import RunError
from fedlgd.core.files import OLD, clear_parts, digest, private_folder
from fedlgd.data.suites import data_home
from fedlgd.engines.wire import read_message, write_message

CORE = ("device", "losses", "net", "rng", "types")  # modules of core that the pixels depend on


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
            write_message(self._file(key), item, private=True)

    def _file(self, key: str) -> Path:
        return self._path / f"{key}.safetensors"


def shared_cache(place: Place = Place()) -> Cache:
    """Distilled sets are shared by all runs of this machine that would make the same ones.

    A folder belongs to one state of the source code, version of torch, and number of threads or kind of device.
    """
    by = f"threads{torch.get_num_threads()}" if place.in_memory else torch.device(place.device).type
    made_by = f"fedlgd{source_digest()}-torch{torch.__version__}-{by}" + ("-bfloat16" if place.autocast else "")
    try:
        folder = private_folder(private_folder(data_home() / "distilled") / made_by)
        folders = list(folder.parent.iterdir())
    except OSError:
        return NoCache()
    for each in folders:
        with suppress(OSError):  # gone meanwhile, or another user's
            clear_parts(each, OLD)
    return FolderCache(folder)


@cache
def source_digest() -> str:
    """A hash of the source files that compute virtual sets; the version where there are none to read."""
    root = resources.files("fedlgd")
    sources: list[bytes] = []
    with suppress(OSError):
        for folder in ("core", "distill", "dp", "nets"):
            for file in sorted((root / folder).iterdir(), key=lambda f: f.name):
                if file.name.endswith(".py") and (folder != "core" or file.name[:-3] in CORE):
                    sources += [f"{folder}/{file.name}".encode(), file.read_bytes()]
        return digest(*sources)[:12] if sources else __version__
    return __version__
