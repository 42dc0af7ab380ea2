"""The command line: the `fedlgd` command with its subcommands, and memory for large batches.

The commands are declared in `options`, as `command` says. They are in `run` (run, demo, distil), `compare`
(compare, tune), `paper`, `data`, `methods` (methods, nets), `new`, `report` (report, watch, open, predict, export),
`privacy` (audit, invert) and `deploy` (provision, serve, join). They share `common`, `progress` and `terminal`.
Only typer is imported for `--help`; a command imports the rest.
"""

import ctypes
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from click import Context
from typer.core import TyperGroup

from fedlgd.cli import options
from fedlgd.cli.command import COMMANDS, Command

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


class Commands(TyperGroup):
    """All commands. Ctrl-C ends one with a line, as does an error that the user can fix."""

    def invoke(self, ctx: Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            typer.echo("\nfedlgd: interrupted", err=True)
            raise typer.Exit(130) from None
        except (ValueError, RuntimeError, MemoryError) as error:
            from fedlgd.core.errors import in_words

            if not in_words(error):
                raise
            from fedlgd.cli.terminal import complain

            complain(in_words(error))
            raise typer.Exit(2) from None


app = typer.Typer(
    name="fedlgd",
    cls=Commands,
    help="Federated learning on small distilled data sets. Start with: fedlgd demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
GROUPS = {
    "new": (options.START, "Start a method of your own."),
    "data": (options.DATA, "List, inspect, check and download federations."),
}
groups = {name: typer.Typer(help=about, no_args_is_help=True) for name, (_, about) in GROUPS.items()}
for name, (panel, _) in GROUPS.items():
    app.add_typer(groups[name], name=name, rich_help_panel=panel)


def _version(wanted: bool) -> None:
    if wanted:
        from fedlgd import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
    data_home: Annotated[
        Path | None,
        typer.Option("--data-home", help="Folder of data sets (default: FEDLGD_DATA, or your data folder)."),
    ] = None,
) -> None:
    if data_home:
        os.environ["FEDLGD_DATA"] = str(data_home)


def _callable(command: Command) -> Callable[..., None]:
    """A function with one parameter for each field of the options; it imports the command and runs it."""
    declared = {each.name: each for each in fields(command.options)}
    order = [declared[name] for base in command.options.__mro__ for name in inspect.get_annotations(base)]

    def call(**given: Any) -> None:
        module, _, function = command.work.partition(":")
        getattr(import_module(f"fedlgd.cli.{module}"), function)(command.options(**given))

    parameter = partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY)
    parameters = [parameter(each.name, default=each.metadata["declare"](each.name)) for each in order]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {each.name: each.type for each in order}
    return call


for each in COMMANDS:
    group, _, word = each.words.rpartition(" ")
    declare = groups.get(group, app).command(
        word,
        help=inspect.getdoc(each.options),
        epilog="\n\n".join(("Example: " + each.examples[0], *each.examples[1:])),
        rich_help_panel=None if group else each.panel,
    )
    declare(_callable(each))


def main() -> None:
    """Run the command. Exit codes: 0 success, 2 an error that the user can fix, 130 interrupted."""
    keep_memory()
    app()
