"""The walk of one image through the source: the files that `fedlgd run FOLDER` enters, from images to the report.

    python -m bench.tools.walk          # or --json

A file is entered if one of its functions is, however small, also while modules are imported; a template is a file,
too. The stack is that of the first gradient on the pixels of a virtual image.
"""

import importlib.util
import inspect
import json
import os
import shlex
import sys
import threading
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

import numpy as np
from PIL import Image

SPEC = importlib.util.find_spec("fedlgd")
SOURCE = str(Path(SPEC.origin if SPEC and SPEC.origin else "").parent) + os.sep
TINY = ("distil.steps=2", "distil.per_class=2", "refine.steps=2", "anchors.steps=2", "net.width=4")
COMMAND = shlex.split("fedlgd run sites --engine loop --quiet --preset quick --rounds 2 --out run")
COMPREHENSIONS = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


@dataclass(frozen=True)
class Walk:
    """The number of different functions entered, by file, and the functions on the stack, outermost first."""

    files: dict[str, int]
    stack: list[str]


def walk(folder: Path) -> Walk:
    """Run the command in this process, which must not have imported fedlgd before; nothing of it is cached."""
    entered: set[tuple[str, str]] = set()
    stack: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_flags & inspect.CO_OPTIMIZED and code.co_filename.startswith(SOURCE):
            entered.add((code.co_filename.removeprefix(SOURCE), code.co_qualname))
        if event == "call" and not stack and code.co_name == "grad" and "autograd" in code.co_filename:
            stack.extend(reversed(frames_of_ours(frame)))

    write_images(folder / "sites")
    os.chdir(folder)
    os.environ["FEDLGD_CACHE"] = str(folder / "home")
    sys.argv = [*COMMAND, *(f"--set={each}" for each in TINY)]
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        importlib.import_module("fedlgd.cli").main()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    return Walk(dict(sorted(Counter(file for file, _ in entered).items())), stack)


def frames_of_ours(frame: FrameType | None) -> list[str]:
    """The functions of the package between the parser of commands and this frame, innermost first.

    Comprehensions are no functions.
    """
    found = []
    while frame and f"{os.sep}typer{os.sep}" not in frame.f_code.co_filename:
        code = frame.f_code
        if code.co_filename.startswith(SOURCE) and code.co_name not in COMPREHENSIONS:
            found.append(f"{code.co_filename.removeprefix(SOURCE)}: {code.co_qualname}")
        frame = frame.f_back
    return found


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


def main() -> None:
    as_json, home = "--json" in sys.argv, Path.cwd()
    with TemporaryDirectory() as folder:
        found = walk(Path(folder))
        os.chdir(home)
    if as_json:
        print(json.dumps(asdict(found)))
        return
    print(f"{len(found.files)} files")
    for file, functions in found.files.items():
        print(f"    {functions:3d}  {file}")
    print(f"{len(found.stack)} frames at the first gradient on a pixel")
    print("\n".join(f"    {frame}" for frame in found.stack))


if __name__ == "__main__":
    main()
