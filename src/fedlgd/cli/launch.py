"""Memory that is kept: large tensors come from the heap instead of being mapped anew for every operation.

glibc maps each block above 32 MB when it is asked for and unmaps it when it is freed, so an operation on a large
batch pays a page fault for every 4 kB it touches: half the time of gradient matching at the paper's sizes. Two
settings of the allocator end that, at the price of memory that stays with the process until it ends.
"""

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h
MAPPED_FROM = 2**30
KEPT_UP_TO = 2**31 - 1  # the largest that mallopt takes


def keep_memory() -> bool:
    """Blocks below 1 GB are kept and used again. Says whether it did; a user's own settings of malloc win."""
    if sys.platform != "linux" or _user_decides():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    mapped = mallopt(M_MMAP_THRESHOLD, MAPPED_FROM) or mallopt(M_MMAP_MAX, 0)  # an older glibc refuses the first
    return bool(mapped and mallopt(M_TRIM_THRESHOLD, KEPT_UP_TO))


def _user_decides() -> bool:
    tuned = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    return tuned or any(name.startswith("MALLOC_") for name in os.environ)
