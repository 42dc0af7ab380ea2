"""The command line: its entry point, and memory for large batches.

`app` makes the commands from `options`, where each is declared as `command` says. The commands are in `run` (run,
demo, distil), `compare`, `paper`, `tune`, `data`, `listing` (methods, nets, data list), `report` (report, watch,
open, predict, export), `privacy` (audit, invert) and `deploy` (provision, serve, join). They share `common`,
`progress` and `terminal`.
"""

import ctypes
import os
import sys

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
    keep_memory()
    from fedlgd.cli.app import app

    app()
