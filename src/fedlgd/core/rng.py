"""Named random streams instead of a global state: results do not depend on the order of sites or workers."""

import hashlib
from dataclasses import dataclass

from torch import Generator


@dataclass(frozen=True, slots=True)
class Stream:
    """A random stream, identified by a seed and a path, e.g. Stream(7).at("site", "usps", 12)."""

    seed: int
    path: tuple[int | str, ...] = ()

    def at(self, *path: int | str) -> "Stream":
        return Stream(self.seed, self.path + path)

    def number(self) -> int:
        """A 63-bit hash of seed and path; torch's CPU generator uses its low 32 bits."""
        digest = hashlib.blake2b(repr((self.seed, *self.path)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def generator(self, *path: int | str) -> Generator:
        return Generator().manual_seed(self.at(*path).number())
