"""The code of a user's own has a digest for each file; without a file, it is told by its text or compiled form."""

import importlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from torch import nn

from fedlgd.core.source import code_digests, source_text
from fedlgd.methods.anchors import Anchored
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.methods.registry import code_of
from fedlgd.methods.regularisers import Pull

Write = Callable[..., None]
FILES = {
    "mine.py": "import torch\nimport json\nfrom helps import near, far\nfrom helps.deep import DEEP\nclass Mine:\n"
    "    def f(self):\n        import lazily\n        return near, lazily\n",
    "helps/__init__.py": "def far(): ...\n",
    "helps/near.py": "from . import nearer\n",
    "helps/nearer.py": "",
    "helps/deep.py": "DEEP = 1\n",
    "helps/unused.py": "",
    "lazily.py": "",
}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write source files to a folder from which they are imported."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)

    def write(**files: str) -> None:
        for name, text in files.items():
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text)
        importlib.invalidate_caches()

    yield write
    for name in set(sys.modules) - known:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def test_the_files_of_a_class_and_of_all_it_imports_are_named_without_folders_of_the_user(write):
    write(**FILES)
    found = code_digests([importlib.import_module("mine").Mine])
    assert set(found) == set(FILES) - {"helps/unused.py"}
    assert len(set(found.values())) == 5  # two are empty


@pytest.mark.parametrize("file", ["mine.py", "helps/nearer.py", "helps/deep.py", "lazily.py"])
def test_an_edit_counts_after_the_next_import_and_not_before(write, file):
    write(**FILES)
    mine = importlib.import_module("mine")
    before = code_digests([mine.Mine])
    write(**{file: FILES[file] + "# changed\n"})
    name = file.removesuffix(".py").replace("/", ".")
    if name in sys.modules:
        assert code_digests([mine.Mine]) == before, "what runs is still the code before the edit"
        importlib.reload(sys.modules[name])
    after = code_digests([importlib.import_module("mine").Mine])
    assert {key for key in after if after[key] != before[key]} == {file}


def test_the_line_ends_of_a_checkout_do_not_count(write):
    write(**FILES)
    before = code_digests([importlib.import_module("mine").Mine])
    write(**{name: text.replace("\n", "\r\n") for name, text in FILES.items()})
    importlib.reload(sys.modules["mine"])
    assert code_digests([sys.modules["mine"].Mine]) == before


def test_functions_from_elsewhere_count_wherever_a_class_has_them(write):
    write(**{"one.py": "def f(): ...\n", "two.py": "def g(): ...\n", "three.py": "def h(): ...\n"})
    one, two, three = map(importlib.import_module, ("one", "two", "three"))
    own = {"f": one.f, "g": property(two.g), "h": staticmethod(partial(three.h, 1))}
    assert {"one.py", "two.py", "three.py"} <= set(code_digests([type("Own", (), own)]))


def test_code_of_the_package_of_torch_and_of_python_does_not_count():
    given = [*code_of(FedLGD()), *code_of(Anchored(method=FedAvg())), nn.Linear, dict, len, Path, print]
    assert code_digests(given) == {}


def test_a_function_that_a_setting_names_counts(write):
    write(**{"losses.py": "def loss(z, pull): ...\n"})
    method = Anchored(method=FedAvg(), pull=Pull(loss="losses:loss"))
    assert list(code_digests(code_of(method))) == ["losses.py"]
    assert code_digests(code_of(Anchored(method=FedAvg(), pull=Pull(loss="absent:loss")))) == {}


NOTEBOOK = """
RATE = 0.5
def helper(x): return x * 2
class Base:
    def g(self): return helper(RATE)
class Mine(Base):
    beta = 0.9
    def f(self, x=1): return {x for x in range(3) if x in {"a", "b", "c"}}
"""


def digests_of_notebook(text: str, name: str | None = "__main__") -> dict[str, str]:
    space = {} if name is None else {"__name__": name}
    exec(text, space)
    return code_digests([space["Mine"]])


@pytest.mark.parametrize("name", ["__main__", "a_notebook", None])
@pytest.mark.parametrize(
    ("old", "new", "where"),
    [
        ("0.5", "0.6", "Base"),
        ("x * 2", "x * 3", "helper"),
        ("beta = 0.9", "beta = 0.8", "Mine"),
        ("range(3)", "range(4)", "Mine"),
        ("x=1", "x=2", "Mine"),
        ('"a", ', "", "Mine"),
    ],
)
def test_code_without_a_file_counts_with_the_functions_and_constants_that_it_uses(name, old, new, where):
    home = name or "__main__"
    before = digests_of_notebook(NOTEBOOK, name)
    assert before == digests_of_notebook(NOTEBOOK + "\nunused = 1\n", name)
    assert set(before) >= {f"{home}:Mine", f"{home}:Base"}
    after = digests_of_notebook(NOTEBOOK.replace(old, new), name)
    changed = {key.rpartition(":")[2] for key in before | after if before.get(key) != after.get(key)}
    assert changed == {where}


def test_code_without_a_file_has_the_same_digest_in_every_process():
    program = f"""
from fedlgd.core.source import code_digests
space = {{"__name__": "a_notebook"}}
exec({NOTEBOOK!r}, space)
print(sorted(code_digests([space["Mine"]]).items()))
"""
    outputs = {
        subprocess.check_output([sys.executable, "-c", program], env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "2")
    }
    assert outputs == {f"{sorted(digests_of_notebook(NOTEBOOK, 'a_notebook').items())}\n".encode()}


def test_code_that_cannot_be_read_does_not_fail(write, tmp_path):
    write(**{"gone.py": "class Mine: ...\n"})
    gone = importlib.import_module("gone").Mine
    (tmp_path / "gone.py").unlink()
    assert list(code_digests([gone])) == ["gone.py"]
    made = type("Made", (), {"beta": 1})
    made.__module__ = "no.such.module"
    assert list(code_digests([made, 3, None, "text"])) == [f"no.such.module:{made.__qualname__}"]


def test_the_text_of_a_class_is_its_source_or_its_compiled_form():
    assert source_text(FedAvg).startswith("@register")
    texts = []
    for text in (NOTEBOOK, NOTEBOOK.replace("range(3)", "range(4)")):
        space = {"__name__": "a_notebook"}
        exec(text, space)
        texts.append(source_text(space["Mine"]))
    assert texts[0]
    assert texts[0] != texts[1]
