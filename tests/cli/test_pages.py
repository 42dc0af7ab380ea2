"""Every command of the pages runs, page by page, from top to bottom, at a size that a test can afford."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from fedlgd.data.arrays import write_arrays
from tests.data.dicoms import noisy, save_dicom
from tests.data.pictures import noise, save
from tests.test_readme import TINY, TINY_COMPARE, TINY_FEDLGD

ROOT = Path(__file__).parent.parent.parent
PAGES = {
    str(page.relative_to(ROOT / "docs")): re.findall(r"^ {4,}(fedlgd .+)$", page.read_text(), re.M)
    for page in sorted((ROOT / "docs").rglob("*.md"))
}
LARGE = ("data-cifar10c.md", "privacy.md")  # need more images than these; tests/data/suites and tests/distill
ELSEWHERE = (  # commands that other tests run
    "data fetch",  # tests/data/fetch, against a local server
    "watch",  # tests/browser
    "provision|serve|join|.*--engine flower",  # tests/deploy
    ".*--device cuda",  # needs a GPU
    ".*data.source=official",  # needs the official files
    "run my_sites:Many",  # stands for a federation of the reader
)
SUITE = """
from dataclasses import dataclass
import numpy as np
import fedlgd

@dataclass(frozen=True, kw_only=True)
class Scans:
    side: int = 64
    def open(self):
        x, y = np.random.default_rng(0).integers(0, 256, (40, self.side, self.side), np.uint8), np.arange(40) % 2
        return fedlgd.from_arrays({"a": (x, y, x, y), "b": (x[::-1], y, x, y)})
"""


def domain(side, shape=(), classes=10, count=120):
    rng = np.random.default_rng(side)
    x, y = rng.integers(0, 256, (count, side, side, *shape), np.uint8), np.arange(count, dtype=np.uint8) % classes
    return {"train_x": x, "train_y": y, "test_x": x[::-1].copy(), "test_y": y[::-1].copy()}


@pytest.fixture
def desk(digits_home, tmp_path, monkeypatch):
    """A folder of one's own images, and a data home with small stand-ins of the published sets."""
    for name, arrays in {
        "mnist": domain(28),
        "usps": domain(16),
        "svhn": domain(32, (3,), count=400),  # an audit trains on half of them
        "mnist_m": domain(29, (3,)),
        "cifar10_test": domain(32, (3,), count=700),
        "retina_a": domain(30, (3,), 2),
        "retina_b": domain(31, (3,), 2),
    }.items():
        write_arrays(digits_home / f"{name}.npz", arrays)
    rows, seed = ["file,hospital,diagnosis"], 0
    for site in ("clinic-a", "b"):
        for label in ("glaucoma", "normal"):
            for i in range(12):
                seed += 1
                image = noise(seed, side=32)
                rows.append(f"{save(tmp_path / 'sites' / site / label / f'{i}.png', image)},{site},{label}")
                save(digits_home / "retina" / site / "Training" / label / f"{i}.png", image)
                save(digits_home / "retina" / site / "Testing" / label / f"{i}.png", noise(seed + 500, side=32))
                save_dicom(tmp_path / "scans" / site / label / f"IM{i}", noisy(seed, f"{label}{i // 2}"))
    (tmp_path / "export.csv").write_text("\n".join(rows))
    (tmp_path / "my_suites.py").write_text(SUITE)
    for name in ("image.png", "other.jpg", "new-image.png", "folder/1.png"):
        save(tmp_path / name, noise(999, side=40))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def shrunk(command):
    """Fewer rounds, steps, images and channels, where the command does not choose them."""
    command = command.replace("~/.local/share/fedlgd/retina", "home/retina")
    word, fedlgd = command.split()[1], "--method" not in command or "--method fedlgd" in command
    if word == "compare":
        command += f" {TINY}{TINY_COMPARE if 'fedlgd' in command[7:] else ' --seeds 1'}"
    elif word == "run":
        tiny = TINY.replace(".limit=100", ".limit=300") if "--out runs/small" in command else TINY  # is audited
        tiny = tiny.replace("per_class=2", "per_class=1") if "preset strong" in command else tiny  # four tiles each
        command += f" {tiny}{TINY_FEDLGD if fedlgd else ''}"
    elif word == "paper":
        command = command.replace("--scale desk", "--scale tiny")
    elif word == "tune":
        command += f" --candidates 2 --rungs 1 {TINY}{TINY_COMPARE.removeprefix(' --seeds 1')}"
    elif word == "invert":
        command += " --targets 2 --batch 1 --round 0"
    elif word == "distil":
        command += " --score-steps 2 --per-class 2 " + TINY.removeprefix("--rounds 2 ")
    return shlex.split(command)[1 : command.count(" > ") * -2 or None]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", [page for page, commands in PAGES.items() if commands and page not in LARGE])
def test_the_commands_of_a_page_run_one_after_the_other(page, fedlgd, desk):
    first = {
        "predict.md": "fedlgd run sites --preset quick --set data.size=32 --out runs/mine",
        "runs.md": "fedlgd run sites --preset quick --set data.size=32 --out runs/mine",
        "report.md": "fedlgd run builtin-digits --preset quick --method fedavg --out runs/demo/fedavg",
        "invert.md": "fedlgd run builtin-digits --preset quick --out runs/demo/fedlgd/seed0",
        "distil.md": "fedlgd distil builtin-digits --out distilled",
    }
    for command in [*filter(None, [first.get(page)]), *PAGES[page]]:
        if any(re.match(f"fedlgd ({other})", command) for other in ELSEWHERE) or "fedlgd demo" in command:
            continue
        done = fedlgd(*shrunk(command))
        expected = (0, 1) if "data check" in command else (0,)
        assert done.code in expected, (command, done.err, done.out)
