"""Which images of a site are held out for testing, when its owner did not say."""

import hashlib
from collections import defaultdict
from collections.abc import Sequence


def held_out(labels: Sequence[str], prints: Sequence[bytes], share: float, seed: int) -> list[bool]:
    """For each image whether it is for testing: about `share` of every class, equal images on one side.

    Images are ordered by a hash of the seed and their content, so that names and order of files do not matter.
    A class of two different images or more keeps one for training and one for testing.
    """
    copies: dict[bytes, int] = defaultdict(int)
    classes: dict[str, list[bytes]] = defaultdict(list)
    for label, print_ in zip(labels, prints, strict=True):
        if print_ not in copies:
            classes[label].append(print_)
        copies[print_] += 1
    tested: set[bytes] = set()
    for members in classes.values():
        tested.update(_chosen(sorted(members, key=lambda p: _draw(seed, p)), copies, share))
    return [print_ in tested for print_ in prints]


def _chosen(members: list[bytes], copies: dict[bytes, int], share: float) -> list[bytes]:
    """The first that fit into the share; if none does, the one with the fewest copies. Never all of them."""
    if len(members) < 2:
        return []
    room = max(1, round(share * sum(copies[m] for m in members)))
    chosen: list[bytes] = []
    for member in members:
        if copies[member] <= room and len(chosen) < len(members) - 1:
            chosen.append(member)
            room -= copies[member]
    return chosen or [min(members, key=copies.__getitem__)]


def _draw(seed: int, print_: bytes) -> bytes:
    return hashlib.blake2b(print_, digest_size=16, key=str(seed).encode()).digest()
