"""The data home: the folder of prepared data sets and of their cache. This module does not import torch."""

import os
from pathlib import Path

from platformdirs import user_cache_dir

HOME_VARIABLE = "FEDLGD_DATA"


def data_home() -> Path:
    """The directory named by FEDLGD_DATA, else the user's cache directory. It may not exist yet."""
    chosen = os.environ.get(HOME_VARIABLE)
    return Path(chosen).expanduser() if chosen else Path(user_cache_dir("fedlgd"))
