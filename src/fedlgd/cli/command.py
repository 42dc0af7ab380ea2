"""How a command is declared: a class of its options, which names the function that runs it; and shared options."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar, dataclass_transform, get_type_hints

from typer import Argument, Option

C = TypeVar("C")


class Command(NamedTuple):
    """A command: its words after `fedlgd`, the function that runs it, examples, and the class of its options.

    work: `module:function` below `fedlgd.cli`, imported when the command is run.
    """

    words: str
    work: str
    examples: tuple[str, ...]
    options: type


COMMANDS: list[Command] = []
"""In the order of the help."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def command(words: str, work: str, *examples: str) -> Callable[[type[C]], type[C]]:
    """Make the class a frozen dataclass of the options of a command; its docstring is the help."""

    def declare(cls: type[C]) -> type[C]:
        made = dataclass(frozen=True, kw_only=True)(cls)
        COMMANDS.append(Command(words, work, examples, made))
        return made

    return declare


class Sets(NamedTuple):
    """Beside `Option`: the option is the value of the setting at this path."""

    path: str


def settings_given(options: Any) -> dict[str, Any]:
    """The settings that have an option of their own and are given, by path."""
    hints = get_type_hints(type(options), include_extras=True)
    marks = [(name, mark) for name, hint in hints.items() for mark in getattr(hint, "__metadata__", ())]
    values = {mark.path: getattr(options, name) for name, mark in marks if isinstance(mark, Sets)}
    return {path: value for path, value in values.items() if value is not None and value is not False}


Attacked = Annotated[str, Option(help="The site to attack.", show_default="the one with the fewest images")]
Data = Annotated[
    str | None,
    Argument(help="Federation (fedlgd data list), or a folder of images.", show_default="builtin-digits"),
]
Device = Annotated[str, Option(help="cpu, cuda, or cuda:1 for the second GPU.")]
Estimate = Annotated[bool, Option("--estimate", help="Only estimate the run time.")]
Folder = Annotated[Path | None, Option("--data", help="Your own images: a folder, a .csv or a .npz.")]
Jobs = Annotated[int, Option(min=1, help="Parallel runs, one process with one thread each.")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
Net = Annotated[
    str | None,
    Option(help="Network (see fedlgd nets), or package.module:Class.", show_default="convnet"),
    Sets("net.name"),
]
RunFolder = Annotated[Path, Argument(metavar="RUN", help="Run folder.")]
Runs = Annotated[list[Path], Argument(help="Run folders, or folders that contain run folders.")]
Seed = Annotated[int, Option(help="Random seed.")]
Set = Annotated[list[str] | None, Option("--set", "-s", help="Change a setting: --set distil.per_class=5")]
Site = Annotated[str, Option(help="Use the scaling of this site, and its model if the method is personalised.")]
Threads = Annotated[int, Option(min=1, help="Threads per process; the last bits of results depend on it.")]


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a command prints."""

    json: Json = False
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only the result, no progress.")] = False

    @property
    def silent(self) -> bool:
        """Whether to hide progress and messages."""
        return self.json or self.quiet


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(Output):
    """Where and how to compute."""

    threads: Threads = 1
    device: Device = "cpu"
    autocast: Annotated[bool, Option("--autocast", help="Use bfloat16 autocast.")] = False


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """Settings of a run that have an option of their own."""

    data: Data = None
    folder: Folder = None
    skip_bad: Annotated[
        bool,
        Option("--skip-bad", help="Leave out your own files that cannot be read as images."),
        Sets("data.skip_bad"),
    ] = False
    preset: Annotated[
        str,
        Option(
            help="Preset of the method: paper, official, quick, strong.", show_default="none; your images: strong"
        ),
    ] = ""
    train_on: Annotated[
        str | None,
        Option(help="Train on real or virtual images.", show_default="real; FedLGD: virtual"),
        Sets("train_on"),
    ] = None
    net: Net = None
    rounds: Annotated[
        int | None, Option("--rounds", "-t", help="Number of rounds.", show_default="100"), Sets("rounds")
    ] = None
    ratio: Annotated[
        float | None, Option(help="Fraction of sites sampled in each round.", show_default="1.0"), Sets("ratio")
    ] = None
    settings: Set = None
    track: Annotated[list[str] | None, Option(help="Also log to tensorboard.")] = None
