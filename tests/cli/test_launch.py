"""The command keeps its memory; the library leaves the allocator alone."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator only")

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
        timeout=60,
        env=environment,
    )
    return done.stdout


def test_a_large_block_is_mapped_once_in_the_command_and_every_time_in_the_library():
    library = python("import fedlgd, fedlgd.cli; print(faults())")
    command = python("from fedlgd.cli.launch import keep_memory; print(keep_memory(), faults())")
    assert int(library) > 4 * PAGES
    kept, count = command.split()
    assert kept == "True"
    assert int(count) < 2 * PAGES


def test_the_command_keeps_memory():
    code = "sys.argv = ['fedlgd', '--version']\nfrom fedlgd.cli import main\n"
    assert int(python(code + "try: main()\nexcept SystemExit: print(faults())").split()[-1]) < 2 * PAGES


@pytest.mark.parametrize(
    "environment", [{"MALLOC_MMAP_THRESHOLD_": "4096"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=4096"}]
)
def test_settings_of_the_user_win(environment: dict[str, str]):
    out = python("from fedlgd.cli.launch import keep_memory; print(keep_memory(), faults())", **environment)
    kept, count = out.split()
    assert kept == "False"
    assert int(count) > 4 * PAGES
