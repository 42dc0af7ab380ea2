"""Help is fast, every command has an example that works, and the command sets up malloc."""

import json
import os
import re
import resource
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import version
from types import NoneType
from typing import get_type_hints

import click
import pytest
import typer

from fedlgd import __version__
from fedlgd.cli import app
from fedlgd.cli.command import COMMANDS, settings_given
from fedlgd.cli.options import RunOptions
from fedlgd.core.errors import in_words
from tests import PATIENCE
from tests.cli.conftest import tiny_run

MAX_LINE = 80  # characters of the help of an option


def seconds_of(*command: str) -> float:
    """CPU time of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_takes_less_than_0_3_seconds():
    command = (sys.executable, "-m", "fedlgd", "--help")
    assert min(seconds_of(*command) for _ in range(5)) < 0.3


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["data", "show", "-h"], ["--version"]])
def test_nothing_heavy_is_loaded_for_help(arguments):
    code = (
        "import sys, json, atexit\n"
        "heavy = ('torch', 'numpy', 'sklearn', 'matplotlib', 'PIL', 'jinja2', 'fedlgd.runs')\n"
        "atexit.register(lambda: print(json.dumps([m for m in heavy if m in sys.modules]), file=sys.stderr))\n"
        f"sys.argv = ['fedlgd', *{arguments!r}]\n"
        "from fedlgd.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0
    assert json.loads(done.stderr) == []
    assert done.stdout


APP = typer.main.get_command(app)


def commands(group: click.Command = APP, path: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command by its full name; new ones are found too."""
    if isinstance(group, click.Group):
        for name, command in group.commands.items():
            yield from commands(command, f"{path} {name}".strip())
    else:
        yield path, group


def test_there_are_commands():
    paths = {path for path, _ in commands()}
    assert paths >= {"run", "demo", "report", "methods", "nets", "data list", "data show"}


@pytest.mark.parametrize("path", [path for path, _ in commands()])
def test_the_help_of_a_command_says_what_it_does_and_shows_an_example(path, fedlgd):
    done = fedlgd(*path.split(), "--help")
    assert done.code == 0
    assert "Usage:" in done.out
    assert f"Example: fedlgd {path}" in " ".join(done.out.split())
    assert done.err == ""


@pytest.mark.parametrize(("path", "command"), list(commands()), ids=lambda v: v if isinstance(v, str) else "")
def test_the_example_of_a_command_is_one_it_understands(path, command):
    for example in command.epilog.split("\n\n"):
        words = shlex.split(example.partition(": fedlgd ")[2])
        assert words[: len(path.split())] == path.split()
        command.make_context(
            path, words[len(path.split()) :]
        )  # raises if an option is unknown or of the wrong kind


@pytest.mark.parametrize("arguments", [["--help"], ["data", "--help"]], ids=" ".join)
def test_the_list_of_commands_has_a_line_for_each_in_80_columns(arguments, fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    panels = fedlgd(*arguments).out.partition("Show this message")[2].splitlines()
    lines = [line.strip("│ ") for line in panels if line.startswith("│")]
    words = [line.split()[0] for line in lines]
    assert set(words) == set(APP.commands["data"].commands if "data" in arguments else APP.commands)
    assert all(line.endswith((".", "?")) for line in lines)
    headings = [line.split()[1] for line in panels if line.startswith("╭")]
    assert len(headings) == (1 if "data" in arguments else 6)


ARGUMENTS = pytest.param(
    "argument",
    marks=pytest.mark.xfail(
        tuple(map(int, version("click").split(".")[:2])) >= (8, 5),
        reason="typer 0.20 loses the help of arguments under click 8.5: pin click<8.5",
        strict=True,
    ),
)


@pytest.mark.parametrize("kind", ["option", ARGUMENTS])
def test_every_option_and_argument_has_words_that_explain_it(kind):
    for path, command in commands():
        context = click.Context(command)
        for parameter in command.params:
            if parameter.param_type_name == kind:
                _, words = parameter.get_help_record(context)
                assert re.sub(r"\[.*?\]", "", words).strip(), f"{path} {parameter.name}"


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.words)
def test_the_function_of_a_command_takes_its_options(command):
    module, _, name = command.work.partition(":")
    work = getattr(import_module(f"fedlgd.cli.{module}"), name)
    assert list(get_type_hints(work).values()) == [command.options, NoneType]


def test_options_give_their_settings_also_those_that_are_zero():
    assert settings_given(RunOptions(seed=0, rounds=0, net="resnet18", skip_bad=True)) == {
        "seed": 0,
        "rounds": 0,
        "net.name": "resnet18",
        "data.skip_bad": True,
    }
    assert settings_given(RunOptions()) == {}


def test_the_version_is_printed(fedlgd):
    assert fedlgd("--version").out.strip() == __version__


@pytest.mark.parametrize("line", ["rnu", "run --rouds", "run --rounds many", "data lits", "run --threads 0"])
def test_a_slip_in_the_command_is_exit_code_2_without_a_traceback(line, fedlgd):
    done = fedlgd(*line.split())
    assert done.code == 2
    assert "Traceback" not in done.err
    assert line.split()[-1] in done.err


# Ctrl-C


def test_ctrl_c_that_no_command_answers_is_one_line_and_exit_code_130(fedlgd, monkeypatch):
    monkeypatch.setattr("fedlgd.cli.methods.nets", lambda _: signal.raise_signal(signal.SIGINT))
    done = fedlgd("nets")
    assert (done.code, done.out, done.err) == (130, "", "\nfedlgd: interrupted\n")


def test_ctrl_c_in_a_run_says_how_to_resume(fedlgd, tmp_path, monkeypatch):
    monkeypatch.setattr("fedlgd.cli.run.execute", lambda *_: signal.raise_signal(signal.SIGINT))
    done = fedlgd(*tiny_run(tmp_path / "out", "--quiet"))
    assert done.code == 130
    assert "To resume: fedlgd run builtin-digits" in done.err


# Errors

SHORT = [
    MemoryError(),
    MemoryError("Unable to allocate 7 TiB"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory: you tried"),
    RuntimeError("[enforce fail] data. DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes."),
    RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"),
]


@pytest.mark.parametrize("error", SHORT, ids=str)
def test_memory_that_ran_out_is_said_without_a_traceback(error, fedlgd, monkeypatch):
    monkeypatch.setattr("fedlgd.cli.methods.nets", lambda _: (_ for _ in ()).throw(error))
    done = fedlgd("nets")
    assert (done.code, done.err) == (2, f"fedlgd: {in_words(error)}\n")
    assert "memory" in done.err


@pytest.mark.parametrize("error", [RuntimeError("size mismatch"), ValueError("a bug"), KeyError("x")])
def test_a_bug_keeps_its_traceback(error, fedlgd, monkeypatch):
    monkeypatch.setattr("fedlgd.cli.methods.nets", lambda _: (_ for _ in ()).throw(error))
    with pytest.raises(type(error)):
        fedlgd("nets")
    assert in_words(error) == ""


# Memory

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator only")
COUNT = """
import resource, sys
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        bytearray(100 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
"""
PAGES = (100 << 20) // 4096


def python(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", COUNT + code],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
        env={"PYTHONPATH": os.pathsep.join(sys.path), **environment},
    )
    return done.stdout


@LINUX
def test_a_large_block_is_mapped_once_in_the_command_and_every_time_in_the_library():
    library = python("import fedlgd, fedlgd.cli; print(faults())")
    command = python("from fedlgd.cli import keep_memory; print(keep_memory(), faults())")
    assert int(library) > 4 * PAGES
    kept, count = command.split()
    assert kept == "True"
    assert int(count) < 2 * PAGES


@LINUX
def test_the_command_keeps_memory():
    code = "sys.argv = ['fedlgd', '--version']\nfrom fedlgd.cli import main\n"
    assert int(python(code + "try: main()\nexcept SystemExit: print(faults())").split()[-1]) < 2 * PAGES


@LINUX
@pytest.mark.parametrize(
    "environment", [{"MALLOC_MMAP_THRESHOLD_": "4096"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=4096"}]
)
def test_settings_of_the_user_win(environment: dict[str, str]):
    out = python("from fedlgd.cli import keep_memory; print(keep_memory(), faults())", **environment)
    kept, count = out.split()
    assert kept == "False"
    assert int(count) > 4 * PAGES


def commands_of(group, words=""):
    for name, each in group.commands.items():
        if isinstance(each, click.Group):
            yield from commands_of(each, f"{words} {name}")
        else:
            yield f"{words} {name}".strip(), each


def test_every_line_of_help_fits_a_terminal():
    found = dict(commands_of(typer.main.get_command(app)))
    assert {"run", "data fetch"} <= found.keys()
    for name, each in found.items():
        lines = [each.help.partition("\n")[0], *(parameter.help or "" for parameter in each.params)]
        assert not [line for line in lines if len(line) > MAX_LINE], name
