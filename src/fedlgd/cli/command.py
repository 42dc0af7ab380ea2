"""How a command is declared: a class of its options, which names the function that runs it; and shared options."""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, dataclass_transform

import typer

C = TypeVar("C")


class Command(NamedTuple):
    """A command: its words after `fedlgd`, the function that runs it, examples, and the class of its options.

    panel: its heading in the list of commands. work: `module:function` below `fedlgd.cli`, imported when it is run.
    """

    panel: str
    words: str
    work: str
    examples: tuple[str, ...]
    options: type


COMMANDS: list[Command] = []


@dataclass_transform(frozen_default=True, kw_only_default=True)
def command(panel: str, words: str, work: str, *examples: str) -> Callable[[type[C]], type[C]]:
    """Make the class a frozen dataclass of the options of a command."""

    def declare(cls: type[C]) -> type[C]:
        made = dataclass(frozen=True, kw_only=True)(cls)
        COMMANDS.append(Command(panel, words, work, examples, made))
        return made

    return declare


def option(default: Any, about: str, *names: str, sets: str = "", **how: Any) -> Any:
    """A field for an option, which has the name of the field unless a long one is given.

    sets: the path of the setting that the option gives.
    """

    def declare(name: str) -> Any:
        shape: dict[str, Any] = {"metavar": "NUMBER"} if "min" in how else {}
        own = not any(each.startswith("--") for each in names) and default is not True  # typer adds --no-name
        return typer.Option(default, *([f"--{name.replace('_', '-')}"] * own), *names, help=about, **shape, **how)

    return field(default=default, metadata={"declare": declare, "sets": sets})


def argument(about: str, default: Any = MISSING, **how: Any) -> Any:
    """A field for an argument, required unless it has a default."""
    given = ... if default is MISSING else default
    return field(default=default, metadata={"declare": lambda _: typer.Argument(given, help=about, **how)})


def settings_given(options: Any) -> dict[str, Any]:
    """The settings that have an option of their own and are given, by path."""
    values = {each.metadata.get("sets"): getattr(options, each.name) for each in fields(options)}
    return {path: value for path, value in values.items() if path and value is not None and value is not False}


attacked = partial(option, "", "The site to attack.", show_default="the one with the fewest images")
data_name = partial(argument, "Federation (fedlgd data list), or a folder.", None, show_default="builtin-digits")
data_folder = partial(option, None, "Your own images: a folder, a .csv or a .npz.", "--data")
device_name = partial(option, "cpu", "cpu, cuda, or cuda:1 for the second GPU.")
precision = partial(option, "float32", "Precision of activations: float32, or bf16.")
compile_mode = partial(option, "off", "Compile the network: on, off, or auto, which compiles long runs.")
estimate_only = partial(option, False, "Only estimate the run time.")
parallel = partial(option, 1, "Parallel runs, one process with one thread each.", min=1)
accept_code = partial(option, False, "Continue although your code has changed.", "--accept-changed-code")
as_json = partial(option, False, "Print the result as JSON.")
network = partial(
    option, None, "Network (see fedlgd nets), or package.module:Class.", show_default="convnet", sets="net.name"
)
run_folder = partial(argument, "Run folder.", metavar="RUN")
run_folders = partial(argument, "Run folders, or folders that contain run folders.")
random_seed = partial(option, 0, "Random seed.")
set_options = partial(option, None, "Change a setting: --set distil.per_class=5", "--set", "-s")
of_site = partial(option, "", "Scaling of this site, and its model for personalised methods.")
thread_count = partial(option, 1, "Threads per process; the last bits of results depend on it.", min=1)


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a command prints."""

    json: bool = as_json()
    quiet: bool = option(False, "Print only the result, no progress.", "-q")

    @property
    def silent(self) -> bool:
        """Whether to hide progress and messages."""
        return self.json or self.quiet


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(Output):
    """Where and how to compute."""

    threads: int = thread_count()
    device: str = device_name()
    precision: str = precision()
    compile: str = compile_mode()


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """Settings of a run that have an option of their own."""

    data: str | None = data_name()
    folder: Path | None = data_folder()
    skip_bad: bool = option(False, "Leave out unreadable files of yours.", sets="data.skip_bad")
    preset: str = option(
        "", "Preset: paper, official, quick, strong, private.", show_default="none; your images: strong"
    )
    train_on: str | None = option(
        None, "Train on real or virtual images.", show_default="real; FedLGD: virtual", sets="train_on"
    )
    net: str | None = network()
    rounds: int | None = option(None, "Number of rounds.", "-t", show_default="100", sets="rounds")
    ratio: float | None = option(None, "Fraction of sites sampled in each round.", show_default="1.0", sets="ratio")
    settings: list[str] | None = set_options()
    track: list[str] | None = option(None, "Also log to tensorboard.")
