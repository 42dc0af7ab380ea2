"""The command line: its entry point, Ctrl-C while it starts, and memory for large batches.

`app` declares the commands and `options` their options. The commands are in `run` (run, demo, distil), `compare`,
`paper` and `paper_runs`, `tune`, `data`, `listing` (methods, nets, data list), `report` (report, watch, open,
predict, export), `privacy` (audit, invert) and `deploy` (provision, serve, join). They share `compute`, `progress`
and `terminal`.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h


def keep_memory() -> bool:
    """Let malloc keep freed blocks below 1 GB for reuse. Returns True on success. User settings of malloc win.

    By default glibc maps every block above 32 MB again, so each operation on a large batch causes a page fault per
    4 kB. This takes half the time of gradient matching at the sizes of the paper. The process uses more memory.
    """
    tuned = "glibc.malloc." in os.environ.get("GLIBC_TUNABLES", "")
    if sys.platform != "linux" or tuned or any(name.startswith("MALLOC_") for name in os.environ):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    reused = mallopt(M_MMAP_THRESHOLD, 2**30) or mallopt(M_MMAP_MAX, 0)  # older glibc versions refuse the first
    return bool(reused and mallopt(M_TRIM_THRESHOLD, 2**31 - 1))


def main() -> None:
    """Run the command. Exit codes: 0 success, 2 an error that the user can fix, 130 interrupted."""
    with quick_interrupts():
        keep_memory()
        try:
            from fedlgd.cli.app import app

            app()
        except (KeyboardInterrupt, SystemExit) as end:
            if isinstance(end, SystemExit) and not _was_interrupted(end):
                raise
            sys.stderr.write("\nfedlgd: interrupted\n")
            sys.exit(130)
        except (ValueError, RuntimeError, MemoryError) as error:
            from fedlgd.core.errors import in_words

            if not in_words(error):
                raise
            from fedlgd.cli.terminal import complain

            complain(in_words(error))
            sys.exit(2)


def _was_interrupted(end: SystemExit) -> bool:
    """Has typer made a KeyboardInterrupt that no command answered an exit?"""
    return isinstance(getattr(end.__context__, "__cause__", None), KeyboardInterrupt)


@contextmanager
def quick_interrupts() -> Iterator[None]:
    """Ctrl-C ends the process at once while a command imports what it needs; later it is a KeyboardInterrupt.

    numpy and torch turn a KeyboardInterrupt in their import into other errors, or go on without one another. A
    signal that the caller ignores or handles stays so.
    """
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupted(number: int, frame: FrameType | None) -> None:
    if _starting(frame):
        os.write(2, b"\nfedlgd: interrupted\n")
        os._exit(130)
    raise KeyboardInterrupt


def _starting(frame: FrameType | None) -> bool:
    """Is this inside an import made by the command line itself? Imports of a computation are part of its work."""
    importing = ours = False
    while frame is not None:
        package = str(frame.f_globals.get("__name__")).split(".")
        if importing and package[0] != "importlib":
            ours = package[:2] == ["fedlgd", "cli"]
        importing = package[0] == "importlib"
        frame = frame.f_back
    return ours
