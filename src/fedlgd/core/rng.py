"""Randomness is an address, not a global: the order of sites, engines and workers changes nothing."""

import hashlib
from dataclasses import dataclass

from torch import Generator


@dataclass(frozen=True, slots=True)
class Stream:
    """A place in the tree of randomness, e.g. Stream(7).at("site", "usps", 12); each purpose opens its own."""

    seed: int
    path: tuple[int | str, ...] = ()

    def at(self, *path: int | str) -> "Stream":
        return Stream(self.seed, self.path + path)

    def number(self) -> int:
        """63 bits hashed from the address; torch's CPU generator starts from the low 32 of them."""
        digest = hashlib.blake2b(repr((self.seed, *self.path)).encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") >> 1

    def generator(self, *path: int | str) -> Generator:
        return Generator().manual_seed(self.at(*path).number())
