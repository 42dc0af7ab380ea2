"""The command line. Only this file and typer are imported for `--help`; the rest when a command runs."""

import os
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
EngineName = Annotated[
    str | None,
    typer.Option("--engine", help="loop: one process. pool: sites in worker processes (default on several cores)."),
]
Workers = Annotated[int, typer.Option(min=0, help="Processes of engine pool; 0: one for every core.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or cuda:1 for the second GPU.")]
Autocast = Annotated[bool, typer.Option("--autocast", help="Passes in bfloat16: for a GPU that has it.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", "-s", help="A setting by its path: --set distil.per_class=5")
]
Track = Annotated[
    list[str] | None,
    typer.Option("--track", help="Also log every round to tensorboard, wandb or mlflow; may be repeated."),
]
Data = Annotated[str | None, typer.Argument(help="Federation (fedlgd data list), or a folder of your own images.")]
Folder = Annotated[
    Path | None,
    typer.Option("--data", help="Your own images: a folder with a folder for each site, a .csv or .npz."),
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
    data_home: Annotated[
        Path | None, typer.Option("--data-home", help="Folder of data sets (default: FEDLGD_DATA, or a cache).")
    ] = None,
) -> None:
    if data_home:
        os.environ["FEDLGD_DATA"] = str(data_home)


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
    data: Data = None,
    folder: Folder = None,
    method: Annotated[str | None, typer.Option("--method", "-m", help="Method (fedlgd methods).")] = None,
    preset: Annotated[str, typer.Option(help="Named settings of the method: paper, official, quick.")] = "",
    net: Annotated[str | None, typer.Option(help="Network (fedlgd nets), or package.module:Class.")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", "-t", help="Number of rounds.")] = None,
    ratio: Annotated[float | None, typer.Option(help="Share of the sites in each round.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    train_on: Annotated[str | None, typer.Option(help="real or virtual images.")] = None,
    anchors: Annotated[bool, typer.Option("--anchors", help="Stack FedLGD's anchors on the method.")] = False,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="Settings in a TOML file.")] = None,
    estimate: Annotated[bool, typer.Option("--estimate", help="Only say how long it would take.")] = False,
    settings: Set = None,
    out: Out = None,
    engine: EngineName = None,
    workers: Workers = 0,
    threads: Threads = 1,
    device: Device = "cpu",
    autocast: Autocast = False,
    track: Track = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Run one method over a federation. The same command again goes on where it stopped."""
    from fedlgd.cli import checking, running

    flags = {
        **checking.chosen_data(data, folder),
        "method": method,
        "net.name": net,
        "rounds": rounds,
        "ratio": ratio,
        "seed": seed,
        "train_on": train_on,
        "anchors.per_class": 10 if anchors else None,
    }
    how = running.engine_choice(engine, workers, threads, device, autocast)
    running.run(flags, preset, config, settings or [], out, how, track or [], json, quiet, estimate)


@app.command(
    epilog="Example: fedlgd compare --methods fedavg,fedprox,scaffold+anchors,fedlgd --seeds 3 --preset quick"
)
def compare(
    data: Data = None,
    folder: Folder = None,
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
    jobs: Annotated[int, typer.Option(min=1, help="Runs at once, each in a process with one thread.")] = 1,
    threads: Threads = 1,
    device: Device = "cpu",
    autocast: Autocast = False,
    track: Track = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Compare methods over seeds on equal terms: same start, same virtual sets, same sampling, one table."""
    from fedlgd.cli import checking, comparing, running

    chosen = checking.chosen_data(data, folder)
    flags = {**chosen, "net.name": net, "rounds": rounds, "ratio": ratio, "train_on": train_on}
    how = running.engine_choice(None, 0, threads, device, autocast)
    comparing.compare(
        methods, seeds, flags, preset, match_steps, settings or [], out, jobs, how, track or [], json, quiet
    )


@app.command(epilog="Example: fedlgd report runs/demo -o demo.html")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The HTML file to write.")] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Write the figures here too, as PDF and PNG for a paper.")
    ] = None,
    json: Json = False,
) -> None:
    """One self-contained HTML page about one run or many."""
    from fedlgd.cli import showing

    showing.report(runs, out, figures, json)


@app.command(epilog="Example: fedlgd watch runs/demo --open")
def watch(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some, now or later.")],
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port on 127.0.0.1; 0: any free one.")
    ] = 8321,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """The report, live in a browser while runs go. Ctrl-C ends it."""
    from fedlgd.cli import watching

    watching.watch(runs, port, open_page)


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
    """The federations there are, their settings, and whether their files are in the data home."""
    from fedlgd.cli import sites

    sites.data_list(json)


@data_app.command("show", epilog="Example: fedlgd data show builtin-digits --sheet digits.png --shift")
def data_show(
    name: Annotated[
        str, typer.Argument(help="Federation (fedlgd data list), or a folder of your own.")
    ] = "builtin-digits",
    settings: Set = None,
    sheet: Annotated[Path | None, typer.Option(help="Write a contact sheet of real images here (PNG).")] = None,
    shift: Annotated[bool, typer.Option("--shift", help="Measure how far apart the sites are.")] = False,
    per_class: Annotated[bool, typer.Option("--per-class", help="... and class by class.")] = False,
    size: Annotated[int, typer.Option(help="Images of each site in one draw of --shift.")] = 100,
    draws: Annotated[int, typer.Option(help="Draws of --shift; their spread is shown.")] = 5,
    biased: Annotated[bool, typer.Option("--biased", help="The estimator of the paper's code.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """A federation's sites: classes, colours, where images come from; a contact sheet; the shift between them."""
    from fedlgd.cli import sites

    asked = sites.asked(size, draws, biased, per_class, seed) if shift or per_class else None
    sites.data_show(name, settings or [], sheet, asked, json, quiet)


@data_app.command("check", epilog="Example: fedlgd data check ./sites --strict")
def data_check(
    folder: Annotated[Path, typer.Argument(help="Your own images: a folder, a .csv or a .npz.")],
    least: Annotated[int, typer.Option(min=1, help="Warn of classes with fewer training images at a site.")] = 10,
    strict: Annotated[bool, typer.Option("--strict", help="Warnings count as errors.")] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Every problem of your own images, and what to do. Exit codes: 0 none, 1 errors, 2 there is no such folder."""
    from fedlgd.cli import checking

    checking.check(folder, least, strict, json, quiet)


@data_app.command("fetch", epilog="Example: fedlgd data fetch digits")
def data_fetch(
    names: Annotated[
        list[str],
        typer.Argument(help="Groups (digits, cifar10c, retina) or single data sets (mnist, cifar10, ...)."),
    ],
    given: Annotated[
        Path | None, typer.Option("--from", help="Take the original files from this folder; nothing is downloaded.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also what is already there.")] = False,
    keep: Annotated[
        bool, typer.Option("--keep-originals", help="Leave the downloads in the data home's folder originals.")
    ] = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Download published data sets from their homes and prepare them; a cut download goes on where it stopped."""
    from fedlgd.cli import fetching

    fetching.fetch(names, given, again, keep, json, quiet)


def main() -> None:
    """The `fedlgd` command. Exit codes: 0 done, 2 something to put right, 130 interrupted."""
    from fedlgd.cli.launch import keep_memory

    keep_memory()
    try:
        app()
    except ValueError as error:
        from fedlgd.core.errors import FedlgdError

        if not isinstance(error, FedlgdError):
            raise
        typer.echo(f"fedlgd: {error}", err=True)
        sys.exit(2)
