"""The `fedlgd` command and its subcommands. Only typer is imported for `--help`; a command imports the rest."""

import inspect
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from click import Context
from typer.core import TyperGroup

from fedlgd.cli import options
from fedlgd.cli.options import Json, Runs


def takes(cls: type) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
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
data_app = typer.Typer(help="List, inspect, check and download federations.", no_args_is_help=True)
app.add_typer(data_app, name="data")


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
        Path | None, typer.Option("--data-home", help="Folder of data sets (default: FEDLGD_DATA, or a cache).")
    ] = None,
) -> None:
    if data_home:
        os.environ["FEDLGD_DATA"] = str(data_home)


@app.command(epilog="Example: fedlgd demo")
@takes(options.DemoOptions)
def demo(given: options.DemoOptions) -> None:
    """Compare FedAvg on virtual data with FedLGD on five built-in digit sites and write a report."""
    from fedlgd.cli import run

    run.demo(given)


@app.command(
    epilog="Example: fedlgd run builtin-digits --method fedlgd --preset quick --rounds 40 --set net.width=32\n\n"
    "At real sites: fedlgd run --engine flower --kit kits/server --method fedlgd --rounds 40"
)
@takes(options.RunOptions)
def run(given: options.RunOptions) -> None:
    """Run one method on a federation. Re-run the same command to resume."""
    from fedlgd.cli import run

    run.run(given)


@app.command(
    epilog="Example: fedlgd compare --methods fedavg,fedprox,scaffold+anchors,fedlgd --seeds 3 --preset quick"
)
@takes(options.CompareOptions)
def compare(given: options.CompareOptions) -> None:
    """Compare methods over several seeds with the same initial model, virtual sets and sampled sites."""
    from fedlgd.cli import compare

    compare.compare(given)


@app.command(epilog="Example: fedlgd paper table-digits --scale desk --part C10 --jobs 2")
@takes(options.PaperOptions)
def paper(given: options.PaperOptions) -> None:
    """List the tables and figures of the paper with a verdict on every claim, run one, or report on all."""
    if given.item in (None, "report"):
        from fedlgd.cli.paper import list_paper, report_paper

        (list_paper if given.item is None else report_paper)(given)
        return
    from fedlgd.cli.paper_runs import run_item

    run_item(given)


@app.command(
    epilog="Example: fedlgd tune builtin-digits --methods fedavg,fedlgd --budget 2h --preset quick --rounds 30"
)
@takes(options.TuneOptions)
def tune(given: options.TuneOptions) -> None:
    """Search for the best settings of methods on held-out training images. Re-run the same command to continue."""
    from fedlgd.cli import tune

    tune.tune(given)


@app.command("open", epilog="Example: fedlgd open runs/demo/fedlgd")
def open_run(run: options.RunFolder, json: Json = False) -> None:
    """Show the result of a run, finished or not: accuracy, what it cost, and how to go on."""
    from fedlgd.cli import report

    report.open_(run, json)


@app.command(epilog="Example: fedlgd predict runs/demo/fedlgd digit.png")
@takes(options.PredictOptions)
def predict(given: options.PredictOptions) -> None:
    """Classify your own images with the model of a run."""
    from fedlgd.cli import report

    report.predict(given)


@app.command(epilog="Example: fedlgd export runs/demo/fedlgd --out model")
@takes(options.ExportOptions)
def export(given: options.ExportOptions) -> None:
    """Export the model of a run with its preprocessing (torch.export, ONNX), and its virtual images and anchors."""
    from fedlgd.cli import report

    report.export(given)


@app.command(epilog="Example: fedlgd distil builtin-digits --per-class 10 --set distil.steps=200")
@takes(options.DistilOptions)
def distil(given: options.DistilOptions) -> None:
    """Distil the images of each site into a virtual set, and score it. Re-run to resume."""
    from fedlgd.cli import run

    run.distil(given)


@app.command(epilog="Example: fedlgd invert runs/demo/fedlgd --quick")
@takes(options.InvertOptions)
def invert(given: options.InvertOptions) -> None:
    """Attack the updates of a run by gradient inversion. Writes pictures of private images to the run folder."""
    from fedlgd.cli import privacy

    privacy.invert(given)


@app.command(epilog="Example: fedlgd audit runs/demo/fedlgd --site scans")
@takes(options.AuditOptions)
def audit(given: options.AuditOptions) -> None:
    """Attack a run: can an image of a site be recognised from what leaves it? Re-run to resume."""
    from fedlgd.cli import privacy

    privacy.audit(given)


@app.command(epilog="Example: fedlgd report runs/demo -o demo.html")
def report(
    runs: Runs,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="HTML file to write.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write the figures here, as PDF and PNG.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print a table as CSV; no page is written.")] = False,
    latex: Annotated[bool, typer.Option("--latex", help="The same as LaTeX (booktabs).")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="The same as Markdown.")] = False,
    table: Annotated[
        Literal["accuracy", "two-classes", "cost"], typer.Option(help="The table that is printed.")
    ] = "accuracy",
    json: Json = False,
) -> None:
    """Write one self-contained HTML report of one or several runs, or print one of its tables."""
    from fedlgd.cli import report

    forms = [form for form, wanted in (("CSV", csv), ("LaTeX", latex), ("Markdown", markdown)) if wanted]
    if forms:
        report.print_table(runs, table, forms, alone=not (out or figures or json))
    else:
        report.report(runs, out, figures, json)


@app.command(epilog="Example: fedlgd watch runs/demo --open")
def watch(
    runs: Runs,
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="Port on 127.0.0.1; 0: any free port.")
    ] = 8321,
    open_page: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Serve a live report in the browser during runs. Stop with Ctrl-C."""
    from fedlgd.cli import report

    report.watch(runs, port, open_page)


@app.command(epilog="Example: fedlgd methods fedprox")
def methods(
    name: Annotated[str | None, typer.Argument(help="Show this method and all its settings.")] = None,
    json: Json = False,
) -> None:
    """List the methods, or show the settings and presets of one."""
    from fedlgd.cli import listing

    if name is None:
        listing.list_methods(json)
    else:
        listing.show_method(name, json)


@app.command(epilog="Example: fedlgd nets")
def nets(json: Json = False) -> None:
    """List the networks with their settings and sizes."""
    from fedlgd.cli import listing

    listing.list_nets(json)


@data_app.command("list", epilog="Example: fedlgd data list")
def data_list(json: Json = False) -> None:
    """List the federations and whether their files are in the data home."""
    from fedlgd.cli import listing

    listing.list_suites(json)


@data_app.command("show", epilog="Example: fedlgd data show builtin-digits --sheet digits.png --shift")
@takes(options.ShowOptions)
def data_show(given: options.ShowOptions) -> None:
    """Show a federation: settings, class counts, colours, a contact sheet, the domain shift."""
    from fedlgd.cli import data

    data.show(given)


@data_app.command("check", epilog="Example: fedlgd data check ./sites --strict")
@takes(options.CheckOptions)
def data_check(given: options.CheckOptions) -> None:
    """Check your own images. Exit codes: 0: no errors, 1: errors, 2: no such folder."""
    from fedlgd.cli import data

    data.check(given)


@data_app.command("fetch", epilog="Example: fedlgd data fetch digits")
@takes(options.FetchOptions)
def data_fetch(given: options.FetchOptions) -> None:
    """Download published data sets and prepare them. Re-run to resume an interrupted download."""
    from fedlgd.cli import data

    data.fetch(given)


@app.command(epilog="Example: fedlgd provision kits --sites a,b,c --server fl.hospital.org:9443")
@takes(options.ProvisionOptions)
def provision(given: options.ProvisionOptions) -> None:
    """Make a kit with keys and settings for the coordinator and for each site of a real federation."""
    from fedlgd.cli import deploy

    deploy.provision(given)


@app.command(epilog="Example: fedlgd serve kits/server")
@takes(options.ServeOptions)
def serve(given: options.ServeOptions) -> None:
    """Start the server of the coordinator and show which sites are connected. Stop with Ctrl-C."""
    from fedlgd.cli import deploy

    deploy.serve(given)


@app.command(epilog="Example: fedlgd join kits/site-a --data ./images")
@takes(options.JoinOptions)
def join(given: options.JoinOptions) -> None:
    """Check the images of a site, connect to the coordinator and carry out its tasks. Stop with Ctrl-C."""
    from fedlgd.cli import deploy

    deploy.join(given)
