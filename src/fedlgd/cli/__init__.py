"""The command line. Only this file and typer are imported for `--help`; the rest when a command runs."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="fedlgd",
    help="Federated learning on tiny distilled data. Start with: fedlgd demo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(help="Federations: what there is, and what it looks like.", no_args_is_help=True)
app.add_typer(data_app, name="data")

Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, for scripts.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the result only, no progress.")]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="Folder of the run (default: under runs/).")]
Threads = Annotated[
    int, typer.Option(min=1, help="Threads of one process; results are bit-equal only at equal threads.")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="A setting by its path: --set distil.per_class=5")
]


def _version(wanted: bool) -> None:
    if wanted:
        from fedlgd import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


@app.command(epilog="Example: fedlgd demo")
def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the demo's runs.")] = Path("runs/demo"),
    rounds: Annotated[int, typer.Option(help="Rounds of each method.")] = 20,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    threads: Threads = 1,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """FedAvg on virtual data against FedLGD, on five built-in digit sites; ends with a report to open."""
    from fedlgd.cli import running

    running.demo(out, rounds, seed, threads, json, quiet)


@app.command(
    epilog="Example: fedlgd run builtin-digits --method fedlgd --preset quick --rounds 40 --set net.width=32"
)
def run(
    data: Annotated[str | None, typer.Argument(help="Federation (fedlgd data list).")] = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="Method (fedlgd methods).")] = None,
    preset: Annotated[str, typer.Option(help="Named settings of the method: paper, official, quick.")] = "",
    net: Annotated[str | None, typer.Option(help="Network (fedlgd nets), or package.module:Class.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", "-t", help="Number of rounds.")] = None,
    ratio: Annotated[float | None, typer.Option(help="Share of the sites in each round.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    train_on: Annotated[str | None, typer.Option(help="real or virtual images.")] = None,
    anchors: Annotated[bool, typer.Option("--anchors", help="Stack FedLGD's anchors on the method.")] = False,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings in a TOML file.")] = None,
    settings: Set = None,
    out: Out = None,
    threads: Threads = 1,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one method over a federation. The same command again goes on where it stopped."""
    from fedlgd.cli import running

    flags = {
        "data.name": data,
        "method": method,
        "net.name": net,
        "rounds": rounds,
        "ratio": ratio,
        "seed": seed,
        "train_on": train_on,
        "anchors.per_class": 10 if anchors else None,
    }
    running.run(flags, preset, config, settings or [], out, threads, json, quiet)


@app.command(
    epilog="Example: fedlgd compare --methods fedavg,fedprox,scaffold+anchors,fedlgd --seeds 3 --preset quick"
)
def compare(
    data: Annotated[str | None, typer.Argument(help="Federation (fedlgd data list).")] = None,
    methods: Annotated[
        str, typer.Option(help="Comma-separated: fedavg, scaffold+anchors, fedavg+noise, vhl:labels=patch")
    ] = "fedavg,fedlgd",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds 0, 1, ... of every method.")] = 3,
    preset: Annotated[str, typer.Option(help="Named settings of every method: paper, quick.")] = "",
    train_on: Annotated[str | None, typer.Option(help="real or virtual images, for every method.")] = None,
    match_steps: Annotated[
        bool, typer.Option("--match-steps", help="Every method takes as many SGD steps a round as FedLGD.")
    ] = False,
    net: Annotated[str | None, typer.Option(help="Network (fedlgd nets), or package.module:Class.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", "-t", help="Number of rounds.")] = None,
    ratio: Annotated[float | None, typer.Option(help="Share of the sites in each round.")] = None,
    settings: Set = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder of the runs.")] = Path("runs/compare"),
    threads: Threads = 1,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods over seeds on equal terms: same start, same virtual sets, same sampling, one table."""
    from fedlgd.cli import comparing

    flags = {"data.name": data, "net.name": net, "rounds": rounds, "ratio": ratio, "train_on": train_on}
    comparing.compare(methods, seeds, flags, preset, match_steps, settings or [], out, threads, json, quiet)


@app.command(epilog="Example: fedlgd report runs/demo -o demo.html")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file to write.")] = None,
    json: Json = False,
) -> None:
    """One self-contained HTML page about one run or many."""
    from fedlgd.cli import showing

    showing.report(runs, out, json)


@app.command(epilog="Example: fedlgd methods")
def methods(json: Json = False) -> None:
    """The methods there are, with their settings and presets."""
    from fedlgd.cli import showing

    showing.methods(json)


@app.command(epilog="Example: fedlgd nets")
def nets(json: Json = False) -> None:
    """The networks there are, with their settings and sizes."""
    from fedlgd.cli import showing

    showing.nets(json)


@data_app.command("list", epilog="Example: fedlgd data list")
def data_list(json: Json = False) -> None:
    """The federations there are."""
    from fedlgd.cli import showing

    showing.data_list(json)


@data_app.command("show", epilog="Example: fedlgd data show builtin-digits --sheet digits.png")
def data_show(
    name: Annotated[str, typer.Argument(help="Federation (fedlgd data list).")] = "builtin-digits",
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet of real images here (PNG).")] = None,
    json: Json = False,
) -> None:
    """A federation's sites: sizes, classes, where the images come from; and a contact sheet."""
    from fedlgd.cli import showing

    showing.data_show(name, sheet, json)


def main() -> None:
    """The `fedlgd` command. Exit codes: 0 done, 2 something to put right, 130 interrupted."""
    try:
        app()
    except ValueError as error:
        from fedlgd.core.errors import FedlgdError

        if not isinstance(error, FedlgdError):
            raise
        typer.echo(f"fedlgd: {error}", err=True)
        sys.exit(2)
