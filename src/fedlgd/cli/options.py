"""The options of each command as a dataclass. Only typer is imported here."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that contain run folders.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="Change a setting by its path: --set distil.per_class=5")
]
Threads = Annotated[
    int, typer.Option(min=1, help="Threads per process; results are bit-identical only for the same number.")
]


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a command prints."""

    json: Json = False
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result, no progress.")] = False

    @property
    def silent(self) -> bool:
        """Whether to hide progress and messages."""
        return self.json or self.quiet


@dataclass(frozen=True, kw_only=True)
class ComputeOptions(Output):
    """Where and how to compute."""

    threads: Threads = 1
    device: Annotated[str, typer.Option(help="cpu, cuda, or cuda:1 for the second GPU.")] = "cpu"
    autocast: Annotated[bool, typer.Option("--autocast", help="Use bfloat16 autocast.")] = False


@dataclass(frozen=True, kw_only=True)
class ConfigOptions:
    """Settings of a run that have an option of their own."""

    data: Annotated[
        str | None, typer.Argument(help="Federation (see fedlgd data list), or a folder of your own images.")
    ] = None
    folder: Annotated[
        Path | None,
        typer.Option("--data", help="Your own images: a folder with one folder per site, a .csv or a .npz."),
    ] = None
    preset: Annotated[str, typer.Option(help="Preset of the method: paper, official, quick.")] = ""
    train_on: Annotated[str | None, typer.Option(help="Train on real or virtual images.")] = None
    net: Annotated[str | None, typer.Option(help="Network (see fedlgd nets), or package.module:Class.")] = None
    rounds: Annotated[int | None, typer.Option("--rounds", "-t", help="Number of rounds.")] = None
    ratio: Annotated[float | None, typer.Option(help="Fraction of sites sampled in each round.")] = None
    settings: Set = None
    track: Annotated[
        list[str] | None,
        typer.Option("--track", help="Also log to tensorboard, wandb or mlflow; can be repeated."),
    ] = None


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Output):
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder.")] = Path("runs/demo")
    rounds: Annotated[int, typer.Option(help="Number of rounds per method.")] = 20
    seed: Seed = 0
    threads: Threads = 1


@dataclass(frozen=True, kw_only=True)
class RunOptions(ConfigOptions, ComputeOptions):
    method: Annotated[str | None, typer.Option("--method", "-m", help="Method (see fedlgd methods).")] = None
    anchors: Annotated[bool, typer.Option("--anchors", help="Add FedLGD's anchors to the method.")] = False
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Read settings from a TOML file.")] = None
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Run folder (default: below runs/).")] = None
    estimate: Annotated[bool, typer.Option("--estimate", help="Only estimate the run time.")] = False
    engine: Annotated[
        str | None,
        typer.Option(help="loop: one process. pool: worker processes (default on several cores)."),
    ] = None
    workers: Annotated[int, typer.Option(min=0, help="Worker processes of engine pool; 0: one per core.")] = 0


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ConfigOptions, ComputeOptions):
    methods: Annotated[
        str, typer.Option(help="Comma-separated: fedavg, scaffold+anchors, fedavg+noise, vhl:labels=patch")
    ] = "fedavg,fedlgd"
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per method: 0, 1, ...")] = 3
    match_steps: Annotated[
        bool, typer.Option("--match-steps", help="Give every method FedLGD's number of SGD steps per round.")
    ] = False
    out: Annotated[Path, typer.Option("--out", "-o", help="Output folder.")] = Path("runs/compare")
    jobs: Annotated[int, typer.Option(min=1, help="Parallel runs, one process with one thread each.")] = 1


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Output):
    name: Annotated[str, typer.Argument(help="Federation (see fedlgd data list), or a folder.")] = "builtin-digits"
    settings: Set = None
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet of real images (PNG).")] = None
    shift: Annotated[bool, typer.Option("--shift", help="Measure the domain shift between sites.")] = False
    per_class: Annotated[bool, typer.Option("--per-class", help="Also measure the shift per class.")] = False
    size: Annotated[int, typer.Option(help="Images per site in each draw of --shift.")] = 100
    draws: Annotated[int, typer.Option(help="Number of draws of --shift.")] = 5
    biased: Annotated[bool, typer.Option("--biased", help="Use the biased estimator of the paper's code.")] = False
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Output):
    folder: Annotated[Path, typer.Argument(help="Your own images: a folder, a .csv or a .npz.")]
    least: Annotated[int, typer.Option(min=1, help="Warn below this many training images per class and site.")] = 10
    strict: Annotated[bool, typer.Option("--strict", help="Treat warnings as errors.")] = False


@dataclass(frozen=True, kw_only=True)
class FetchOptions(Output):
    names: Annotated[
        list[str],
        typer.Argument(help="Groups (digits, cifar10c, retina) or single data sets (mnist, cifar10, ...)."),
    ]
    given: Annotated[
        Path | None, typer.Option("--from", help="Read the original files from this folder; download nothing.")
    ] = None
    again: Annotated[bool, typer.Option("--again", help="Prepare data sets again that are ready.")] = False
    keep: Annotated[
        bool, typer.Option("--keep-originals", help="Keep downloads in the folder originals of the data home.")
    ] = False


def options(cls: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """The decorated command has one option for each field of a dataclass and receives an instance."""
    parameters = inspect.signature(cls).parameters
    order = [name for base in cls.__mro__ for name in inspect.get_annotations(base)]

    def decorate(command: Callable[[Any], None]) -> Callable[..., None]:
        @wraps(command)
        def call(**given: Any) -> None:
            command(cls(**given))

        call.__signature__ = inspect.Signature([parameters[name] for name in order])  # type: ignore[attr-defined]
        call.__annotations__ = {name: parameters[name].annotation for name in order}
        return call

    return decorate
