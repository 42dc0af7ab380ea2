"""The walk of one image through the source: which files it passes from a user's folder to the report.

    python -m bench.tools.walk

Each leg runs twice and the second time counts, so that imports do not. A file is visited if one of its functions is
entered, however small; a template is a file, too.
"""

import inspect
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import numpy as np
from PIL import Image

import fedlgd

SOURCE = str(Path(fedlgd.__file__).parent) + os.sep
TINY: dict[str, Any] = {"distil__steps": 2, "distil__per_class": 2, "refine__steps": 2, "anchors__steps": 2}


def visits(leg: Callable[[], object]) -> Counter[str]:
    """The number of different functions that a leg enters, by file; bodies of modules and classes are none."""
    entered: set[tuple[str, str]] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(SOURCE):
            entered.add((code.co_filename.removeprefix(SOURCE), code.co_qualname))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        leg()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Counter(file for file, _ in entered)


def write_images(folder: Path) -> None:
    """Two sites with two classes of twelve noisy images."""
    rng = np.random.default_rng(0)
    for site in ("ape", "bee"):
        for label in ("dark", "light"):
            (folder / site / label).mkdir(parents=True)
            for i in range(12):
                low = 128 * (label == "light")
                pixels = rng.integers(low, low + 128, (16, 16, 3)).astype(np.uint8)
                Image.fromarray(pixels).save(folder / site / label / f"{i}.png")


def walk(folder: Path) -> dict[str, Counter[str]]:
    """The files that each leg visits. The data home is inside the folder, so that nothing is cached."""
    os.environ["FEDLGD_DATA"] = str(folder / "home")
    write_images(folder / "sites")
    method = fedlgd.configure(fedlgd.FedLGD, **TINY)
    data: list[fedlgd.Federation] = []
    legs: dict[str, Callable[[], object]] = {
        "load": lambda: data.append(fedlgd.from_folders(folder / "sites")),
        "run": lambda: fedlgd.run(data[0], method, rounds=2, net={"width": 4}, out=folder / "run"),
        "report": lambda: fedlgd.write_report(folder / "run"),
    }
    return {name: visits(leg) for name, leg in legs.items()}


def main() -> None:
    for _ in range(2):
        with TemporaryDirectory() as folder:
            found = walk(Path(folder))
    for leg, files in found.items():
        print(f"{leg}: {len(files)} files")
        for file, functions in sorted(files.items()):
            print(f"    {functions:3d}  {file}")
    print(" + ".join(str(len(files)) for files in found.values()))


if __name__ == "__main__":
    main()
