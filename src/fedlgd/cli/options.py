"""The commands in the order of the help: a class for each, with its options as fields and its help as docstring.

The first line of the help has to fit 80 columns in the list of commands. A command imports what it needs when it
runs, so that `--help` is fast.
"""

from pathlib import Path
from typing import Literal

from fedlgd.cli import command as shared
from fedlgd.cli.command import ComputeOptions, ConfigOptions, Output, argument, command, option

START, RUN, LOOK = "Start", "Run and compare", "Look at runs and use them"
PRIVACY, REAL_SITES, DATA = "Privacy", "Real sites", "Data"


@command(START, "demo", "run:demo", "fedlgd demo")
class DemoOptions(Output):
    """Compare FedAvg and FedLGD on five built-in digit sites."""

    out: Path = option(Path("runs/demo"), "Output folder.", "-o")
    rounds: int = option(20, "Number of rounds per run.")
    seeds: int = option(3, "Number of seeds per method: 0, 1, ...", min=1)
    jobs: int = option(2, "Parallel runs, at most the number of cores.", min=1)


@command(START, "methods", "methods:methods", "fedlgd methods fedprox")
class MethodsOptions:
    """List the methods, or show the settings and presets of one."""

    name: str | None = argument("Show this method and all its settings.", None)
    json: bool = shared.as_json()


@command(START, "nets", "methods:nets", "fedlgd nets")
class NetsOptions:
    """List the networks with their settings and sizes."""

    json: bool = shared.as_json()


@command(START, "new method", "new:method", "fedlgd new method own-head --kind personal")
class NewMethodOptions:
    """Write NAME.py with a working method, and its tests.

    Existing files are not changed.
    """

    name: str = argument("Name of the method: lower-case words with - or _ between them.")
    kind: Literal["regulariser", "server", "upload", "personal"] = option(
        "server", "A loss term, a server with momentum, image uploads, or a model per site."
    )


@command(
    RUN,
    "run",
    "run:run",
    "fedlgd run builtin-digits --method fedlgd --preset quick --rounds 40 --set net.width=32",
    "At real sites: fedlgd run --engine flower --kit kits/server --method fedlgd --rounds 40",
)
class RunOptions(ConfigOptions, ComputeOptions):
    """Run one method on a federation. Re-run to resume."""

    method: str | None = option(
        None, "Method, e.g. fedavg, scaffold+anchors.", "-m", show_default="fedlgd", sets="method"
    )
    anchors: bool = option(False, "Short for --method METHOD+anchors.")
    seed: int | None = option(None, "Random seed.", show_default="0", sets="seed")
    config: Path | None = option(None, "Read settings from a TOML file.", "-c")
    label: str = option("", "Name of the run in tables and figures.", show_default="that of the method")
    out: Path | None = option(None, "Run folder (default: below runs/).", "-o")
    estimate: bool = shared.estimate_only()
    engine: str | None = option(
        None, "loop; pool: worker processes (default on several cores); flower: real sites."
    )
    kit: Path | None = option(None, "Kit of the server, for engine flower.")
    classes: str = option("", "Classes of real sites, if their kits have none: normal,glaucoma")
    timeout: float = option(3600.0, "Seconds that a round waits for real sites.", min=1)
    workers: int = option(0, "Worker processes of engine pool; 0: one per core.", min=0)
    accept_changed_code: bool = shared.accept_code()


@command(
    RUN,
    "compare",
    "compare:compare",
    "fedlgd compare --methods fedavg,fedprox,scaffold+anchors,fedlgd --seeds 3 --preset quick",
    "Your own: fedlgd compare --methods fedavg,mine=mymodule:MyMethod --set mymethod.steps=20",
)
class CompareOptions(ConfigOptions, ComputeOptions):
    """Compare methods over several seeds under equal conditions.

    They share initial models, virtual sets and sampled sites. Re-run to resume; entries whose code has changed
    run again.
    """

    methods: str | None = option(
        None,
        "Comma-separated: fedavg,scaffold+anchors,mine=moon:mu=5,best.toml",
        show_default="fedavg,fedlgd; your images: those of a decision",
    )
    seeds: int = option(3, "Number of seeds per method: 0, 1, ...", min=1)
    sweep: list[str] | None = option(None, "Run every method with each value: --sweep pull.weight=0,1,10")
    match_steps: bool = option(False, "Give every method FedLGD's SGD steps per round.")
    out: Path = option(Path("runs/compare"), "Output folder.", "-o")
    jobs: int = shared.parallel()
    accept_changed_code: bool = shared.accept_code()


@command(RUN, "tune", "compare:tune", "fedlgd tune builtin-digits --methods fedavg,fedlgd --preset quick -t 30")
class TuneOptions(ConfigOptions, ComputeOptions):
    """Search for the best settings of methods. Re-run to continue.

    Candidates are scored on held-out training images.
    """

    methods: str = option("fedavg,fedlgd", "Comma-separated, as for fedlgd compare.")
    candidates: int = option(27, "Candidates of each method; the first is as given.", min=2)
    space: Path | None = option(None, "Your own search space, a TOML file.", show_default="built-in")
    rungs: int = option(3, "Stages of the search; the last has all rounds.", min=1)
    eta: int = option(3, "Each stage keeps 1/eta of the candidates, with eta times the rounds.", min=2)
    validation: float = option(0.2, "Share of the training images that scores candidates.")
    seed: int = shared.random_seed()
    out: Path = option(Path("runs/tune"), "Output folder.", "-o")
    jobs: int = shared.parallel()
    estimate: bool = option(False, "Only print the plan and its time.")


@command(RUN, "distil", "run:distil", "fedlgd distil builtin-digits --per-class 10 --set distil.steps=200")
class DistilOptions(ComputeOptions):
    """Distil each site's images into a virtual set, and score it.

    Re-run to resume.
    """

    data: str | None = shared.data_name()
    folder: Path | None = shared.data_folder()
    per_class: int | None = option(
        None, "Virtual images per class.", min=1, show_default="10", sets="distil.per_class"
    )
    net: str | None = shared.network()
    settings: list[str] | None = shared.set_options()
    seed: int = shared.random_seed()
    out: Path = option(Path("distilled"), "Output folder.", "-o")
    score: bool = option(True, "Score networks trained on virtual, as many real, and all images.")
    score_steps: int = option(500, "SGD steps of each of these networks.", min=1)
    estimate: bool = shared.estimate_only()


@command(
    RUN,
    "paper",
    "paper:paper",
    "fedlgd paper table-digits --scale desk --part C10 --jobs 2",
    "Undecided claims: fedlgd paper --undecided --estimate",
)
class PaperOptions(ComputeOptions):
    """List the tables of the paper, run one, or report on all.

    Every claim has a verdict.
    """

    item: str | None = argument("Item to run, or `report`; without it, all are listed.", None)
    scale: Literal["tiny", "desk", "half", "full", "paper"] = option("desk", "Length of the runs.")
    part: str | None = option(None, "Only this part of the item.")
    seeds: int = option(0, "Seeds of every run.", show_default="as the item fixes", min=0)
    undecided: bool = option(False, "Run what undecided claims need, best first.")
    out: Path = option(Path("runs/paper"), "Folder of all runs of the paper.", "-o")
    jobs: int = shared.parallel()
    estimate: bool = shared.estimate_only()

    @property
    def track(self) -> tuple[str, ...]:
        return ()


@command(
    LOOK,
    "report",
    "report:report",
    "fedlgd report runs/demo -o demo.html",
    "For a paper: fedlgd report runs/compare --latex",
    "Its curves: fedlgd report runs/compare --table curves > curves.csv",
)
class ReportOptions:
    """Write one HTML report of runs, or print one of its tables."""

    runs: list[Path] = shared.run_folders()
    out: Path | None = option(None, "HTML file to write.", "-o")
    figures: Path | None = option(None, "Also write the figures here, as PDF and PNG.")
    csv: bool = option(False, "Print a table as CSV instead.")
    latex: bool = option(False, "Print a table as LaTeX (booktabs).")
    markdown: bool = option(False, "Print a table as Markdown.")
    table: Literal["accuracy", "two-classes", "cost", "curves"] | None = option(
        None, "The printed table; CSV unless another format is given.", show_default="accuracy"
    )
    baseline: str = option("", "With --latex: mark differences to this method.", show_default="to the best")
    json: bool = shared.as_json()


@command(LOOK, "watch", "report:watch", "fedlgd watch runs/demo --open")
class WatchOptions:
    """Serve a live report in the browser during runs.

    Stop with Ctrl-C.
    """

    runs: list[Path] = shared.run_folders()
    port: int = option(8321, "Port on 127.0.0.1; 0: any free port.", "-p", min=0, max=65535)
    open_page: bool = option(False, "Open the page in a browser.", "--open")


@command(LOOK, "open", "report:open_", "fedlgd open runs/demo/fedlgd/seed0")
class OpenOptions:
    """Show accuracy and cost of a run, and the next commands.

    The run may be unfinished.
    """

    run: Path = shared.run_folder()
    json: bool = shared.as_json()


@command(LOOK, "predict", "report:predict", "fedlgd predict runs/demo/fedlgd/seed0 digit.png")
class PredictOptions(Output):
    """Classify your own images with the model of a run."""

    run: Path = shared.run_folder()
    images: list[Path] = argument("Image files, or folders of them.")
    site: str = shared.of_site()


@command(LOOK, "export", "report:export", "fedlgd export runs/demo/fedlgd/seed0 --out model")
class ExportOptions(Output):
    """Export the model of a run for use without fedlgd.

    Writes the model with its preprocessing (torch.export, ONNX), virtual images and anchors.
    """

    run: Path = shared.run_folder()
    out: Path | None = option(None, "Output folder (default: RUN/export).", "-o")
    site: str = shared.of_site()
    onnx: bool | None = option(None, "ONNX too (default: if its packages are installed).", "--onnx/--no-onnx")


@command(PRIVACY, "audit", "privacy:audit", "fedlgd audit runs/demo/fedlgd/seed0 --site scans")
class AuditOptions(Output):
    """Measure whether messages of a site reveal its images.

    Attacks finished runs by membership inference. Re-run to resume.
    """

    runs: list[Path] = argument("Finished run folders, or folders that contain them.")
    attack: Literal["rmia", "lira", "paper"] = option(
        "rmia", "RMIA or LiRA with shadow models, or the protocol of the paper."
    )
    site: str = shared.attacked()
    thorough: bool = option(False, "LiRA with 16 shadows; FedAvg with all its epochs.")
    in_sample: bool = option(False, "With --attack paper: test densities on their own points.")
    canaries: Literal["none", "mislabelled", "noise"] = option(
        "none", "Mislabel 5 % of the images, or replace them by noise, and score them apart."
    )
    all_layers: bool = option(False, "Attack updates by the gradients of all layers: slow.")
    jobs: int = option(0, "Federations at a time; 0: one per core.", min=0)
    yes: bool = option(False, "Start even if it takes more than an hour.", "-y")


@command(PRIVACY, "invert", "privacy:invert", "fedlgd invert runs/demo/fedlgd/seed0 --quick")
class InvertOptions(Output):
    """Attack the updates of a run by gradient inversion.

    Writes pictures of private images to the run folder.
    """

    runs: list[Path] = argument("Run folders.", metavar="RUN...")
    batch: list[int] | None = option(None, "Images of a batch; repeatable.", min=1, show_default="1, 4")
    targets: int = option(8, "Attacked batches of each size.", min=1)
    at_round: list[int] | None = option(
        None, "Attack after this round; repeatable.", "--round", min=0, show_default="0 and all"
    )
    site: str = shared.attacked()
    loss: Literal["cosine", "l2"] = option("cosine", "cosine (Geiping et al. 2020), or l2 (Zhu et al. 2019).")
    tv: float = option(0.2, "Weight of total variation.", min=0)
    quick: bool = option(False, "300 iterations, half the targets.")
    thorough: bool = option(False, "24 000 iterations and 4 restarts: hours.")
    show: bool = option(False, "Show private pictures in reports of the run.")
    seed: int = shared.random_seed()
    threads: int = shared.thread_count()
    estimate: bool = option(False, "Only estimate the time.")


@command(
    REAL_SITES,
    "provision",
    "deploy:provision",
    "fedlgd provision kits --sites a,b,c --server fl.example.org:9443 --classes normal,glaucoma",
)
class ProvisionOptions(Output):
    """Make a kit with keys for the coordinator and for each site."""

    folder: Path = argument("Folder for the kits; new, unless --add or --renew is given.")
    sites: str = option("", "Names of the sites, comma-separated: a,b,c")
    server: str = option("", "HOST:PORT at which the sites reach the coordinator.")
    classes: str = option("", "Agreed classes: normal,glaucoma. A site with another cannot join.")
    days: int = option(730, "Validity of the server's certificate in days.", min=1, max=3650)
    add: str = option("", "Add sites to existing kits: d,e")
    renew: bool = option(False, "Only make a new certificate for the server.")


@command(REAL_SITES, "serve", "deploy:serve", "fedlgd serve kits/server")
class ServeOptions:
    """Start the coordinator's server and show the connected sites.

    Stop with Ctrl-C.
    """

    kit: Path = argument("Kit of the server: FOLDER/server.")
    listen: str = option("", "HOST:PORT to listen on, if it is not the address of the kit.")
    store: int = option(1024, "MiB on this disk for unread replies of one site.", min=64)


@command(REAL_SITES, "join", "deploy:join", "fedlgd join kits/site-a --data ./images")
class JoinOptions:
    """Check a site's images, connect it, and carry out its tasks.

    Stop with Ctrl-C.
    """

    kit: Path = argument("Kit of the site: FOLDER/site-NAME.")
    data: Path | None = option(None, "Images of this site; by default those of last time.")
    settings: list[str] | None = option(None, "How to read them: --set data.size=64", "--set", "-s")
    threads: int = shared.thread_count()
    device: str = shared.device_name()
    precision: str = shared.precision()
    compile: str = option("off", "Compile the network: on, off.")
    quiet: bool = option(False, "Do not print what the site does.", "-q")


@command(DATA, "data list", "data:suites", "fedlgd data list")
class ListOptions:
    """List the federations and whether their files are here."""

    json: bool = shared.as_json()


@command(DATA, "data home", "data:show_homes", "fedlgd data home")
class HomeOptions:
    """Show where data sets, the cache and privacy ledgers are."""

    json: bool = shared.as_json()


@command(DATA, "data show", "data:show", "fedlgd data show builtin-digits --sheet digits.png --shift")
class ShowOptions(Output):
    """Show a federation: settings, class counts, colours, domain shift."""

    name: str = argument("Federation (see fedlgd data list), or a folder.", "builtin-digits")
    settings: list[str] | None = shared.set_options()
    sheet: Path | None = option(None, "Write a contact sheet of real images (PNG).")
    shift: bool = option(False, "Measure the domain shift between sites.")
    per_class: bool = option(False, "Also measure the shift per class.")
    size: int = option(100, "Images per site in each draw of --shift.")
    draws: int = option(5, "Number of draws of --shift.")
    biased: bool = option(False, "Use the biased estimator of the paper's code.")
    seed: int = shared.random_seed()


@command(DATA, "data check", "data:check", "fedlgd data check ./sites --strict")
class CheckOptions(Output):
    """Check your own images.

    Exit codes: 0: no errors, 1: errors, 2: no such folder.
    """

    folder: Path = argument("Your own images: a folder, a .csv or a .npz.")
    settings: list[str] | None = shared.set_options()
    skip_bad: bool = option(False, "Leave out unreadable files, as a run with --skip-bad.")
    least: int = option(10, "Warn below this many training images per class and site.", min=1)
    strict: bool = option(False, "Treat warnings as errors.")


@command(DATA, "data example", "data:example", "fedlgd data example sites")
class ExampleOptions(Output):
    """Render example images of three sites."""

    folder: Path = argument("New or empty folder.")


@command(DATA, "data fetch", "data:fetch", "fedlgd data fetch digits")
class FetchOptions(Output):
    """Download published data sets and prepare them.

    Re-run to resume an interrupted download.
    """

    names: list[str] = argument("Groups (digits, cifar10c, retina) or data sets (mnist, ...).")
    originals: Path | None = option(None, "Folder of the original files; no download.", "--from")
    again: bool = option(False, "Also prepare data sets that are ready.")
    keep: bool = option(False, "Keep downloads in <data home>/originals.", "--keep-originals")
