"""A folder of distilled sets, named by what they were made from; runs of one comparison share it."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from fedlgd.core.errors import RunError
from fedlgd.distill.shelf import Kept
from fedlgd.runs.files import read_message, write_message


@dataclass(frozen=True, slots=True, kw_only=True)
class _Item:
    tensor: Tensor
    seconds: dict[str, float]
    flops: dict[str, int]


class FolderShelf:
    """A damaged item counts as absent: it is made again. One that cannot be written is not kept."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def get(self, key: str) -> Kept | None:
        try:
            item = read_message(self._file(key), _Item)
        except RunError:
            return None
        return Kept(item.tensor, item.seconds, item.flops)

    def put(self, key: str, kept: Kept) -> None:
        with suppress(RunError):
            write_message(self._file(key), _Item(tensor=kept.tensor, seconds=kept.seconds, flops=kept.flops))

    def _file(self, key: str) -> Path:
        return self._path / f"{key}.safetensors"
