"""Real images stay where they are unless they are published or asked for; what is made from them is private."""

import os
import stat
import tomllib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedlgd
from fedlgd.cli import main
from fedlgd.data.federation import Federation
from fedlgd.data.suites import SUITES, from_folders
from fedlgd.report.page import write_report
from fedlgd.runs.config import resolve
from fedlgd.runs.run import execute, run
from tests import tiny
from tests.runs.folder import FAST_NET, config, method

FAST = {"rounds": 1, "net": FAST_NET}


@pytest.fixture(autouse=True)
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Images of a user, in a folder with the name of a published suite."""
    random = np.random.default_rng(0)
    for place in ("ape/x", "ape/y", "bee/x", "bee/y"):
        (tmp_path / "digits" / place).mkdir(parents=True)
        for number in range(3):
            image = Image.fromarray(random.integers(0, 256, (8, 8), np.uint8))
            image.save(tmp_path / "digits" / place / f"{number}.png")
    return tmp_path / "digits"


def settings(folder: Path) -> dict:
    return tomllib.loads((folder / "config.toml").read_text())


@pytest.mark.parametrize("name", [*SUITES, "tests.runs.own:Suite"])
def test_only_published_suites_show_real_images_by_default(name: str) -> None:
    if ":" in name:
        assert config(method("fedavg"), real_samples=-1).plan.real_samples == 0
        return
    wanted = 4 if name in ("builtin-digits", "digits", "cifar10c") else 0
    assert resolve({"data": name}).plan.real_samples == wanted
    assert f"real_samples = {wanted}\n" in resolve({"data": name}).toml()
    assert resolve({"data": name}, {"real_samples": 2}).plan.real_samples == 2


def test_a_users_own_images_are_not_copied_unless_asked_for(folders: Path, tmp_path: Path) -> None:
    for number, data in enumerate((from_folders(folders), tiny.federation(train=3, test=1))):
        run(data, method("fedavg"), out=tmp_path / f"plain{number}", **FAST)
        assert not (tmp_path / f"plain{number}" / "real").exists()
        assert settings(tmp_path / f"plain{number}")["real_samples"] == 0
        run(data, method("fedavg"), out=tmp_path / f"asked{number}", real_samples=1, **FAST)
        assert len(list((tmp_path / f"asked{number}" / "real").glob("*.png"))) == len(data.sites)
        assert settings(tmp_path / f"asked{number}")["real_samples"] == 1


def test_published_images_are_copied_and_may_be_left_out(digits: Federation, tmp_path: Path) -> None:
    assert digits.public is False  # made by its suite, without the registry
    public = fedlgd.load("builtin-digits", limit=20, test_limit=10)
    assert public.public
    run(public, method("fedavg"), out=tmp_path / "shown", **FAST)
    assert len(list((tmp_path / "shown" / "real").glob("*.png"))) == 5
    run(public, method("fedavg"), out=tmp_path / "none", real_samples=0, **FAST)
    assert not (tmp_path / "none" / "real").exists()


def test_the_command_says_when_it_copies(folders, tmp_path, monkeypatch, capsys) -> None:
    command = ["fedlgd", "run", "--data", str(folders), "-m", "fedavg", "-t", "1", "--net", "tests.nets.own:Linear"]
    for more, said in (([], False), (["--set", "real_samples=2"], True)):
        out = tmp_path / f"out{len(more)}"
        monkeypatch.setattr("sys.argv", [*command, "-o", str(out), "--engine", "loop", *more])
        with pytest.raises(SystemExit, match="0"):
            main()
        words = f"Copying 2 real training images per class of each site into {out}"
        assert (words in capsys.readouterr().err) == said
        assert (out / "real").exists() == said


def modes(root: Path) -> dict[str, int]:
    return {str(p.relative_to(root)): stat.S_IMODE(p.stat().st_mode) for p in [root, *root.rglob("*")]}


def test_what_is_made_from_private_images_is_readable_by_its_user_only(tmp_path: Path, home: Path) -> None:
    out = tmp_path / "out"
    how = config(method("fedlgd"), net=FAST_NET, real_samples=1)
    execute(how, tiny.federation(tiny.NAMES[:2], train=3, test=1), out)
    write_report([out], out / "report.html")
    for root in (out / "state" / "sites", out / "virtual", out / "real", home / "distilled"):
        found = modes(root)
        assert len(found) > 2
        for name, mode in found.items():
            assert mode == (0o700 if (root / name).is_dir() else 0o600), f"{root / name} has mode {mode:o}"
    assert modes(out)["report.html"] == 0o600
    assert modes(out)["records.jsonl"] == 0o666  # scores: as the user's umask has it
