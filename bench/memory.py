"""Memory of a run against the number of sites: one JSON line for each method and number of sites.

    python bench/memory.py                                    # all of them, each in a separate process
    python bench/memory.py --method fedlgd --sites 1000       # one

Images are memory-mapped, 60 per site. Models have their real size (width 128); everything else is small.
`peak` is the largest resident size of the process in MB, `start` the size before the first site is opened.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fedlgd import Federation

METHODS = ("fedavg", "fedlgd", "scaffold")
SITES = (100, 1000)
CLASSES, SIDE = 10, 28
SIZES = {"train": 60, "test": 10}
TINY = {
    "rounds": 2,
    "evaluate_every": 2,
    "net.width": 128,
    "distil.per_class": 1,
    "distil.steps": 1,
    "distil.real_per_class": 1,
    "local.steps": 1,
}
FEDLGD = {"refine.steps": 1, "anchors.steps": 1, "anchors.per_class": 1, "analysis": False}


def resident() -> float:
    """Largest resident size so far, in MB. (The value of getrusage includes the parent process.)"""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def write_images(folder: Path, sites: int) -> None:
    """One file of images for all sites, written in parts, so that writing needs little memory."""
    import numpy as np

    random = np.random.default_rng(0)
    for part, size in SIZES.items():
        shape = (sites * size, SIDE, SIDE)
        images = np.lib.format.open_memmap(folder / f"{part}.npy", "w+", np.uint8, shape)
        for i in range(sites):
            images[i * size : (i + 1) * size] = random.integers(0, 256, size=(size, SIDE, SIDE), dtype=np.uint8)
        del images


def open_sites(folder: Path, sites: int) -> "Federation":
    """A federation whose sites are parts of the files."""
    import numpy as np

    from fedlgd import from_arrays

    files = {part: np.load(folder / f"{part}.npy", mmap_mode="c") for part in SIZES}

    def site(i: int) -> list[object]:
        pairs = [(files[part][i * n : (i + 1) * n], np.arange(n) % CLASSES) for part, n in SIZES.items()]
        return [array for pair in pairs for array in pair]

    return from_arrays({f"site{i:04}": site(i) for i in range(sites)}, name="memory")


def measure(method: str, sites: int, engine: str) -> dict[str, object]:
    import torch

    from fedlgd.engines.registry import engine as find_engine
    from fedlgd.runs.config import resolve
    from fedlgd.runs.run import execute

    torch.set_num_threads(1)
    settings = {"method": method, **TINY}
    settings |= FEDLGD if method == "fedlgd" else {"train_on": "virtual" if method == "fedavg" else "real"}
    start = resident()
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), sites)
        federation = open_sites(Path(folder), sites)
        began = time.perf_counter()
        execute(resolve({}, settings), federation, Path(folder, "run"), engine=find_engine(engine))
        seconds = time.perf_counter() - began
    row = {"method": method, "engine": engine, "sites": sites, "start": round(start), "peak": round(resident())}
    if engine == "pool":
        row["largest worker"] = round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024)
    return row | {"seconds": round(seconds, 1)}


def apart(method: str, sites: int, engine: str = "loop") -> dict[str, object]:
    """`measure` in a separate process."""
    one = ["--method", method, "--sites", str(sites), "--engine", engine]
    told = subprocess.run([sys.executable, __file__, *one], check=True, stdout=subprocess.PIPE, text=True).stdout
    row: dict[str, object] = json.loads(told)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=METHODS)
    parser.add_argument("--sites", type=int, default=SITES[0])
    parser.add_argument("--engine", choices=("loop", "pool"), default="loop")
    chosen = parser.parse_args()
    if chosen.method:
        sys.stdout.write(json.dumps(measure(chosen.method, chosen.sites, chosen.engine)) + "\n")
        return
    for method in METHODS:
        for sites in SITES:
            sys.stdout.write(json.dumps(apart(method, sites, chosen.engine)) + "\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
