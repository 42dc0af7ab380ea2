"""Every command and example the README shows works, at a size a test can afford."""

import importlib.util
import re
import shlex
import sys
from pathlib import Path

import pytest

import fedlgd
from tests import tiny

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
COMMANDS = re.findall(r"^    (fedlgd .+)$", README, re.M)
TINY = (
    "--rounds 2 -s data.limit=100 -s data.test_limit=50 -s net.width=4 -s net.depth=2 "
    "-s distil.steps=2 -s distil.per_class=2"
)
MAX_WORDS = 650  # with tables, links and commands
TINY_FEDLGD = " -s refine.steps=1 -s anchors.steps=1 -s anchors.per_class=2"


@pytest.fixture(scope="module")
def desk(tmp_path_factory, digits):
    """An empty folder to run the README in, from top to bottom."""
    return tmp_path_factory.mktemp("desk")


TINY_COMPARE = " --seeds 1" + "".join(
    f" -s fedlgd.{setting}" for setting in ("refine.steps=1", "anchors.steps=1", "anchors.per_class=2")
)


def shrunk(command: str) -> list[str]:
    if command.startswith("fedlgd compare"):
        command += " " + TINY + TINY_COMPARE
    if command.startswith("fedlgd run"):
        uses_anchors = "--method" not in command or "--method fedlgd" in command
        command += " " + TINY + (TINY_FEDLGD if uses_anchors else "")
    return shlex.split(command)[1:]


def test_the_readme_fits_on_a_screen_and_its_commands_lead_to_a_prediction():
    assert len(README.split()) <= MAX_WORDS
    assert "make demo" in README
    assert COMMANDS[0] == "fedlgd data example sites"
    assert COMMANDS[-1].startswith("fedlgd predict")


def test_readme_commands_work_one_after_the_other(desk, fedlgd_command, undrawn, monkeypatch):
    monkeypatch.chdir(desk)
    for command in COMMANDS:
        done = fedlgd_command(*shrunk(command))
        assert done.code == 0, (command, done.err)
        assert done.out, command
        if "predict" in command:
            assert "000.png" in done.out


def test_readme_python_works(tmp_path, monkeypatch, digits):
    (code,) = re.findall(r"```python\n(.+?)```", README, re.S)
    for old, new in (
        ('load("builtin-digits")', 'load("builtin-digits", limit=100, test_limit=50)'),
        ("distil__per_class=5", "distil__per_class=2, distil__steps=2, refine__steps=1, anchors__steps=1"),
        ("rounds=30", "rounds=2"),
        ('"width": 32', '"width": 4'),
    ):
        assert old in code
        code = code.replace(old, new)
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(code, names)
    assert set(names["result"].accuracy) == {"mnist", "scans", "photos", "fonts", "street"}
    assert (tmp_path / "runs/first/records.jsonl").exists()


def example(name: str):
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_fedavg_on_one_page_is_fedavg_bit_for_bit(digits):
    module = example("00_fedavg_one_page")
    model = module.main(rounds=2, limit=40, seed=3)
    federation = fedlgd.load("builtin-digits", limit=40)
    method = fedlgd.FedAvg(local=module.LOCAL)
    result = fedlgd.run(federation, method, rounds=2, seed=3, net={"name": "convnet", **module.NET})
    assert tiny.equal(model, result.params)


def test_example_first_run_compares_two_methods(digits, monkeypatch):
    module = example("01_first_run")
    load, configure = module.fedlgd.load, module.fedlgd.configure
    monkeypatch.setattr(
        module.fedlgd, "load", lambda name, **_: load(name, limit=100, test_limit=50), raising=False
    )
    monkeypatch.setattr(
        module.fedlgd, "configure", lambda *a, **k: configure(*a, **k, distil__steps=1), raising=False
    )
    monkeypatch.setattr(module, "NET", {"name": "convnet", "width": 4})
    results = module.main(rounds=1)
    assert set(results) == {"FedAvg on virtual data", "FedLGD"}


def test_example_own_arrays_and_net_learn():
    result = example("02_own_data_and_net").main(rounds=15)
    assert min(result.accuracy.values()) > 0.9


def test_example_own_folders_learn(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    module = example("02_own_folders")
    result = module.main(module.draw_sites(tmp_path / "clinics"))
    assert min(result.accuracy.values()) > 0.9
