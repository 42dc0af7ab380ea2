"""`fedlgd new method` writes a method that works, and tests that pass, and overwrites nothing."""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from fedlgd.cli.new import method_files
from fedlgd.cli.options import NewMethodOptions
from tests import PATIENCE
from tests.errors import refuses

ROOT = Path(__file__).parents[2]
KINDS = get_args(get_type_hints(NewMethodOptions)["kind"])
EXAMPLES = {"regulariser": "sparse", "server": "server-momentum", "upload": "image-upload", "personal": "own-head"}


def test_the_written_tests_pass(fedlgd, tmp_path):
    """All kinds in one process, which a user would start."""
    for kind in KINDS:
        done = fedlgd("new", "method", f"my-{kind}", "--kind", kind)
        assert done.code == 0, done.err
        assert done.out.splitlines()[-1].startswith("Next: fedlgd run ")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", "."]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout
    assert f"{4 * len(KINDS)} passed" in done.stdout


def test_the_next_command_works(fedlgd):
    words = fedlgd("new", "method", "my-term", "--kind", "regulariser").out.splitlines()[-1].split()[2:]
    done = fedlgd(*words, "--set=net.depth=2", "--rounds", "1", "--out", "run", "--quiet")
    assert done.code == 0, done.err


def test_a_file_that_exists_is_not_changed(fedlgd, tmp_path):
    (tmp_path / "test_mine.py").write_text("mine")
    done = fedlgd("new", "method", "mine")
    assert done.code == 2
    assert "test_mine.py" in done.err
    assert [file.name for file in tmp_path.glob("*.py")] == ["test_mine.py"]
    assert (tmp_path / "test_mine.py").read_text() == "mine"


@pytest.mark.parametrize("name", ["", "1st", "a/b", "../up", "two words", "class", "x.y"])
def test_a_name_that_no_module_can_have_is_refused(name):
    with refuses("method-name-invalid", name=name):
        method_files(name, "server")


@pytest.mark.parametrize(
    ("name", "suggested"), [("MyMethod", "my-method"), ("Mine", "mine"), ("own-Head", "own-head")]
)
def test_capital_letters_are_refused_with_the_name_in_lower_case(name, suggested):
    with refuses("method-name-capitals", name=name, suggested=suggested):
        method_files(name, "server")


def test_a_name_of_the_standard_library_is_refused():
    with refuses("method-name-taken", name="random"):
        method_files("random", "server")


@pytest.mark.parametrize("kind", KINDS)
def test_the_examples_are_what_the_command_writes(kind):
    code, _ = method_files(EXAMPLES[kind], kind)
    assert (ROOT / "examples" / "methods" / code).read_text() == method_files(EXAMPLES[kind], kind)[code]
