"""The three homes of fedlgd on a machine: data sets, cache and state.

data: published and prepared data sets. Runs only read it, so that it may be read-only and shared.
cache: what can be computed again: prepared arrays, virtual sets. Whoever deletes it loses time only.
state: what must not be lost: privacy ledgers and their secrets. Readable by its user only.

Earlier versions kept all three in the data home, which was by default the user's cache.
"""

import os
from pathlib import Path

from platformdirs import user_cache_dir, user_data_dir, user_state_dir

DATA_VARIABLE, CACHE_VARIABLE, STATE_VARIABLE = "FEDLGD_DATA", "FEDLGD_CACHE", "FEDLGD_STATE"
DATA_SETS = ("*.npz", "CIFAR-10-C", "retina")  # what a folder of data sets has, and a cache has not


def data_home() -> Path:
    """FEDLGD_DATA, else the user's data folder. It may not exist yet.

    Data sets that an earlier version put into the user's cache are used there, until the data folder exists.
    """
    if chosen := os.environ.get(DATA_VARIABLE):
        return Path(chosen).expanduser()
    home, earlier = Path(user_data_dir("fedlgd")), Path(user_cache_dir("fedlgd"))
    unmoved = not home.exists() and any(any(earlier.glob(pattern)) for pattern in DATA_SETS)
    return earlier if unmoved else home


def cache_home() -> Path:
    """FEDLGD_CACHE, else the user's cache folder. It may not exist yet."""
    return Path(os.environ.get(CACHE_VARIABLE) or user_cache_dir("fedlgd")).expanduser()


def state_home() -> Path:
    """FEDLGD_STATE, else the user's folder of states. It may not exist yet."""
    return Path(os.environ.get(STATE_VARIABLE) or user_state_dir("fedlgd")).expanduser()


def earlier_state_homes() -> list[Path]:
    """Where earlier versions kept ledgers and secrets: the data home, and the user's cache."""
    now = state_home().absolute()
    earlier = (data_home().absolute(), Path(user_cache_dir("fedlgd")).absolute())
    return [home for home in dict.fromkeys(earlier) if home != now]
