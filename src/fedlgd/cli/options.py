"""The commands: a class for each, with its options as fields and its help as docstring.

A command imports what it needs when it runs, so that `--help` is fast.
"""

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from fedlgd.cli.command import (
    Attacked,
    ComputeOptions,
    ConfigOptions,
    Data,
    Device,
    Estimate,
    Folder,
    Jobs,
    Json,
    Net,
    Output,
    RunFolder,
    Runs,
    Seed,
    Set,
    Sets,
    Site,
    Threads,
    command,
)


@command("demo", "run:demo", "fedlgd demo")
class DemoOptions(Output):
    """Compare FedAvg on virtual data with FedLGD on five built-in digit sites and write a report."""

    out: Annotated[Path, Option("--out", "-o", help="Output folder.")] = Path("runs/demo")
    rounds: Annotated[int, Option(help="Number of rounds per method.")] = 20
    seed: Seed = 0
    threads: Threads = 1


@command(
    "run",
    "run:run",
    "fedlgd run builtin-digits --method fedlgd --preset quick --rounds 40 --set net.width=32",
    "At real sites: fedlgd run --engine flower --kit kits/server --method fedlgd --rounds 40",
)
class RunOptions(ConfigOptions, ComputeOptions):
    """Run one method on a federation. Re-run the same command to resume."""

    method: Annotated[
        str | None,
        Option("--method", "-m", help="Method, e.g. fedavg, scaffold+anchors.", show_default="fedlgd"),
        Sets("method"),
    ] = None
    anchors: Annotated[bool, Option("--anchors", help="Short for --method METHOD+anchors.")] = False
    seed: Annotated[int | None, Option(help="Random seed.", show_default="0"), Sets("seed")] = None
    config: Annotated[Path | None, Option("--config", "-c", help="Read settings from a TOML file.")] = None
    out: Annotated[Path | None, Option("--out", "-o", help="Run folder (default: below runs/).")] = None
    estimate: Estimate = False
    engine: Annotated[
        str | None, Option(help="loop; pool: worker processes (default on several cores); flower: real sites.")
    ] = None
    kit: Annotated[Path | None, Option(help="Kit of the server, for engine flower.")] = None
    timeout: Annotated[float, Option(min=1, help="Seconds that a round waits for real sites.")] = 3600.0
    workers: Annotated[int, Option(min=0, help="Worker processes of engine pool; 0: one per core.")] = 0


@command(
    "compare",
    "compare:compare",
    "fedlgd compare --methods fedavg,fedprox,scaffold+anchors,fedlgd --seeds 3 --preset quick",
)
class CompareOptions(ConfigOptions, ComputeOptions):
    """Compare methods over several seeds with the same initial model, virtual sets and sampled sites."""

    methods: Annotated[
        str, Option(help="Comma-separated, e.g. fedavg,scaffold+anchors,moon:mu=5,best-fedlgd.toml")
    ] = "fedavg,fedlgd"
    seeds: Annotated[int, Option(min=1, help="Number of seeds per method: 0, 1, ...")] = 3
    sweep: Annotated[
        list[str] | None, Option(help="Run every method with each of these values: --sweep pull.weight=0,1,10")
    ] = None
    match_steps: Annotated[
        bool, Option("--match-steps", help="Give every method FedLGD's SGD steps per round.")
    ] = False
    out: Annotated[Path, Option("--out", "-o", help="Output folder.")] = Path("runs/compare")
    jobs: Jobs = 1


@command("paper", "paper:paper", "fedlgd paper table-digits --scale desk --part C10 --jobs 2")
class PaperOptions(ComputeOptions):
    """List the tables and figures of the paper with a verdict on every claim, run one, or report on all."""

    item: Annotated[str | None, Argument(help="Item to run, or `report`; without it, all are listed.")] = None
    scale: Annotated[Literal["tiny", "desk", "full", "paper"], Option(help="Length of the runs.")] = "desk"
    part: Annotated[str | None, Option(help="Only this part of the item.")] = None
    out: Annotated[Path, Option("--out", "-o", help="Folder of all runs of the paper.")] = Path("runs/paper")
    jobs: Jobs = 1
    estimate: Estimate = False

    @property
    def track(self) -> tuple[str, ...]:
        return ()


@command("tune", "compare:tune", "fedlgd tune builtin-digits --methods fedavg,fedlgd --preset quick --rounds 30")
class TuneOptions(ConfigOptions, ComputeOptions):
    """Search for the best settings of methods on held-out training images. Re-run the same command to continue."""

    methods: Annotated[str, Option(help="Comma-separated, as for fedlgd compare.")] = "fedavg,fedlgd"
    candidates: Annotated[int, Option(min=2, help="Candidates of each method; the first is as given.")] = 27
    space: Annotated[Path | None, Option(help="Your own search space, a TOML file.", show_default="built-in")] = (
        None
    )
    rungs: Annotated[int, Option(min=1, help="Rungs; the last has all rounds.")] = 3
    eta: Annotated[
        int, Option(min=2, help="Each rung keeps 1/eta of the candidates, with eta times the rounds.")
    ] = 3
    validation: Annotated[float, Option(help="Share of the training images that scores candidates.")] = 0.2
    seed: Seed = 0
    out: Annotated[Path, Option("--out", "-o", help="Output folder.")] = Path("runs/tune")
    jobs: Jobs = 1
    estimate: Annotated[bool, Option("--estimate", help="Only print what would be searched, and for how long.")] = (
        False
    )


@command("open", "report:open_", "fedlgd open runs/demo/fedlgd")
class OpenOptions:
    """Show the result of a run, finished or not: accuracy, what it cost, and how to go on."""

    run: RunFolder
    json: Json = False


@command("predict", "report:predict", "fedlgd predict runs/demo/fedlgd digit.png")
class PredictOptions(Output):
    """Classify your own images with the model of a run."""

    run: RunFolder
    images: Annotated[list[Path], Argument(help="Image files, or folders of them.")]
    site: Site = ""


@command("export", "report:export", "fedlgd export runs/demo/fedlgd --out model")
class ExportOptions(Output):
    """Export the model of a run with its preprocessing (torch.export, ONNX), and its virtual images and anchors."""

    run: RunFolder
    out: Annotated[Path | None, Option("--out", "-o", help="Output folder (default: RUN/export).")] = None
    site: Site = ""
    onnx: Annotated[bool | None, Option(help="ONNX too (default: if its packages are installed).")] = None


@command("distil", "run:distil", "fedlgd distil builtin-digits --per-class 10 --set distil.steps=200")
class DistilOptions(ComputeOptions):
    """Distil the images of each site into a virtual set, and score it. Re-run to resume."""

    data: Data = None
    folder: Folder = None
    per_class: Annotated[
        int | None, Option(min=1, help="Virtual images per class.", show_default="10"), Sets("distil.per_class")
    ] = None
    net: Net = None
    settings: Set = None
    seed: Seed = 0
    out: Annotated[Path, Option("--out", "-o", help="Output folder.")] = Path("distilled")
    score: Annotated[
        bool,
        Option("--score/--no-score", help="Train networks on virtual, on as many real, and on all images."),
    ] = True
    score_steps: Annotated[int, Option(min=1, help="SGD steps of each of these networks.")] = 500
    estimate: Estimate = False


@command("invert", "privacy:invert", "fedlgd invert runs/demo/fedlgd --quick")
class InvertOptions(Output):
    """Attack the updates of a run by gradient inversion. Writes pictures of private images to the run folder."""

    runs: Annotated[list[Path], Argument(metavar="RUN...", help="Run folders.")]
    batch: Annotated[
        list[int] | None, Option(min=1, help="Images of a batch; repeatable.", show_default="1, 4")
    ] = None
    targets: Annotated[int, Option(min=1, help="Batches of each size that are attacked.")] = 8
    at_round: Annotated[
        list[int] | None,
        Option("--round", min=0, help="Attack after so many rounds; repeatable.", show_default="0 and all"),
    ] = None
    site: Attacked = ""
    loss: Annotated[
        Literal["cosine", "l2"], Option(help="cosine (Geiping et al. 2020), or l2 (Zhu et al. 2019).")
    ] = "cosine"
    tv: Annotated[float, Option(min=0, help="Weight of total variation.")] = 0.2
    quick: Annotated[bool, Option("--quick", help="300 iterations, half the targets.")] = False
    thorough: Annotated[bool, Option("--thorough", help="24 000 iterations and 4 restarts: hours.")] = False
    show: Annotated[
        bool, Option("--show", help="Show pictures of images that are not public in reports of the run.")
    ] = False
    seed: Seed = 0
    threads: Threads = 1
    estimate: Annotated[bool, Option("--estimate", help="Only estimate the time.")] = False


@command("audit", "privacy:audit", "fedlgd audit runs/demo/fedlgd --site scans")
class AuditOptions(Output):
    """Attack a run: can an image of a site be recognised from what leaves it? Re-run to resume."""

    runs: Annotated[list[Path], Argument(help="Finished run folders, or folders that contain them.")]
    attack: Annotated[
        Literal["rmia", "lira", "paper"],
        Option(help="RMIA or LiRA with shadow federations, or the protocol of the paper with none."),
    ] = "rmia"
    site: Attacked = ""
    thorough: Annotated[bool, Option("--thorough", help="LiRA with 16 shadows; FedAvg with all its epochs.")] = (
        False
    )
    in_sample: Annotated[
        bool, Option("--in-sample", help="With --attack paper: test densities on the points they were fitted on.")
    ] = False
    canaries: Annotated[
        Literal["none", "mislabelled", "noise"],
        Option(help="Flip the label of 5 % of the images, or replace them by noise; score them apart."),
    ] = "none"
    all_layers: Annotated[
        bool,
        Option("--all-layers", help="Attack updates by the gradients of all layers, one image at a time: slow."),
    ] = False
    jobs: Annotated[int, Option(min=0, help="Federations at a time; 0: one per core.")] = 0
    yes: Annotated[bool, Option("--yes", "-y", help="Start also if it takes more than an hour.")] = False


@command("report", "report:report", "fedlgd report runs/demo -o demo.html")
class ReportOptions:
    """Write one self-contained HTML report of one or several runs, or print one of its tables."""

    runs: Runs
    out: Annotated[Path | None, Option("--out", "-o", help="HTML file to write.")] = None
    figures: Annotated[Path | None, Option(help="Also write the figures here, as PDF and PNG.")] = None
    csv: Annotated[bool, Option("--csv", help="Print a table as CSV; no page is written.")] = False
    latex: Annotated[bool, Option("--latex", help="The same as LaTeX (booktabs).")] = False
    markdown: Annotated[bool, Option("--markdown", help="The same as Markdown.")] = False
    table: Annotated[Literal["accuracy", "two-classes", "cost"], Option(help="The table that is printed.")] = (
        "accuracy"
    )
    json: Json = False


@command("watch", "report:watch", "fedlgd watch runs/demo --open")
class WatchOptions:
    """Serve a live report in the browser during runs. Stop with Ctrl-C."""

    runs: Runs
    port: Annotated[int, Option("--port", "-p", min=0, max=65535, help="Port on 127.0.0.1; 0: any free port.")] = (
        8321
    )
    open_page: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False


@command("methods", "data:methods", "fedlgd methods fedprox")
class MethodsOptions:
    """List the methods, or show the settings and presets of one."""

    name: Annotated[str | None, Argument(help="Show this method and all its settings.")] = None
    json: Json = False


@command("nets", "data:nets", "fedlgd nets")
class NetsOptions:
    """List the networks with their settings and sizes."""

    json: Json = False


@command("data list", "data:suites", "fedlgd data list")
class ListOptions:
    """List the federations and whether their files are in the data home."""

    json: Json = False


@command("data show", "data:show", "fedlgd data show builtin-digits --sheet digits.png --shift")
class ShowOptions(Output):
    """Show a federation: settings, class counts, colours, a contact sheet, the domain shift."""

    name: Annotated[str, Argument(help="Federation (see fedlgd data list), or a folder.")] = "builtin-digits"
    settings: Set = None
    sheet: Annotated[Path | None, Option(help="Write a contact sheet of real images (PNG).")] = None
    shift: Annotated[bool, Option("--shift", help="Measure the domain shift between sites.")] = False
    per_class: Annotated[bool, Option("--per-class", help="Also measure the shift per class.")] = False
    size: Annotated[int, Option(help="Images per site in each draw of --shift.")] = 100
    draws: Annotated[int, Option(help="Number of draws of --shift.")] = 5
    biased: Annotated[bool, Option("--biased", help="Use the biased estimator of the paper's code.")] = False
    seed: Seed = 0


@command("data check", "data:check", "fedlgd data check ./sites --strict")
class CheckOptions(Output):
    """Check your own images. Exit codes: 0: no errors, 1: errors, 2: no such folder."""

    folder: Annotated[Path, Argument(help="Your own images: a folder, a .csv or a .npz.")]
    settings: Set = None
    least: Annotated[int, Option(min=1, help="Warn below this many training images per class and site.")] = 10
    strict: Annotated[bool, Option("--strict", help="Treat warnings as errors.")] = False


@command("data fetch", "data:fetch", "fedlgd data fetch digits")
class FetchOptions(Output):
    """Download published data sets and prepare them. Re-run to resume an interrupted download."""

    names: Annotated[list[str], Argument(help="Groups (digits, cifar10c, retina) or data sets (mnist, ...).")]
    originals: Annotated[Path | None, Option("--from", help="Folder of the original files; no download.")] = None
    again: Annotated[bool, Option("--again", help="Also prepare data sets that are ready.")] = False
    keep: Annotated[bool, Option("--keep-originals", help="Keep downloads in <data home>/originals.")] = False


@command("provision", "deploy:provision", "fedlgd provision kits --sites a,b,c --server fl.hospital.org:9443")
class ProvisionOptions(Output):
    """Make a kit with keys and settings for the coordinator and for each site of a real federation."""

    folder: Annotated[Path, Argument(help="Folder for the kits; new, unless --add or --renew is given.")]
    sites: Annotated[str, Option(help="Names of the sites, comma-separated: a,b,c")] = ""
    server: Annotated[str, Option(help="HOST:PORT at which the sites reach the coordinator.")] = ""
    days: Annotated[int, Option(min=1, max=3650, help="Validity of the server's certificate in days.")] = 730
    add: Annotated[str, Option(help="Add sites to existing kits: d,e")] = ""
    renew: Annotated[bool, Option("--renew", help="Only make a new certificate for the server.")] = False


@command("serve", "deploy:serve", "fedlgd serve kits/server")
class ServeOptions:
    """Start the server of the coordinator and show which sites are connected. Stop with Ctrl-C."""

    kit: Annotated[Path, Argument(help="Kit of the server: FOLDER/server.")]
    listen: Annotated[str, Option(help="HOST:PORT to listen on, if it is not the address of the kit.")] = ""
    store: Annotated[int, Option(min=64, help="MiB on this disk for replies of one site that no run has read.")] = (
        1024
    )


@command("join", "deploy:join", "fedlgd join kits/site-a --data ./images")
class JoinOptions:
    """Check the images of a site, connect to the coordinator and carry out its tasks. Stop with Ctrl-C."""

    kit: Annotated[Path, Argument(help="Kit of the site: FOLDER/site-NAME.")]
    data: Annotated[Path | None, Option("--data", help="Images of this site; by default those of last time.")] = (
        None
    )
    settings: Annotated[list[str] | None, Option("--set", "-s", help="How to read them: --set data.size=64")] = None
    threads: Threads = 1
    device: Device = "cpu"
    quiet: Annotated[bool, Option("--quiet", "-q", help="Do not print what the site does.")] = False
