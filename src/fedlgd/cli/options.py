"""The options of each command as a dataclass. Only typer is imported here."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

Attacked = Annotated[str, Option(help="The site to attack.", show_default="the one with the fewest images")]
Device = Annotated[str, Option(help="cpu, cuda, or cuda:1 for the second GPU.")]
Estimate = Annotated[bool, Option("--estimate", help="Only estimate the run time.")]
Folder = Annotated[Path | None, Option("--data", help="Your own images: a folder, a .csv or a .npz.")]
Jobs = Annotated[int, Option(min=1, help="Parallel runs, one process with one thread each.")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON.")]
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

    data: Annotated[
        str | None,
        Argument(help="Federation (fedlgd data list), or a folder of images.", show_default="builtin-digits"),
    ] = None
    folder: Folder = None
    skip_bad: Annotated[
        bool, Option("--skip-bad", help="Leave out your own files that cannot be read as images.")
    ] = False
    preset: Annotated[
        str,
        Option(
            help="Preset of the method: paper, official, quick, strong.", show_default="none; your images: strong"
        ),
    ] = ""
    train_on: Annotated[
        str | None, Option(help="Train on real or virtual images.", show_default="real; FedLGD: virtual")
    ] = None
    net: Annotated[
        str | None, Option(help="Network (see fedlgd nets), or package.module:Class.", show_default="convnet")
    ] = None
    rounds: Annotated[int | None, Option("--rounds", "-t", help="Number of rounds.", show_default="100")] = None
    ratio: Annotated[float | None, Option(help="Fraction of sites sampled in each round.", show_default="1.0")] = (
        None
    )
    settings: Set = None
    track: Annotated[list[str] | None, Option(help="Also log to tensorboard, wandb or mlflow; repeatable.")] = None


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Output):
    out: Annotated[Path, Option("--out", "-o", help="Output folder.")] = Path("runs/demo")
    rounds: Annotated[int, Option(help="Number of rounds per method.")] = 20
    seed: Seed = 0
    threads: Threads = 1


@dataclass(frozen=True, kw_only=True)
class RunOptions(ConfigOptions, ComputeOptions):
    method: Annotated[
        str | None, Option("--method", "-m", help="Method, e.g. fedavg, scaffold+anchors.", show_default="fedlgd")
    ] = None
    anchors: Annotated[bool, Option("--anchors", help="Short for --method METHOD+anchors.")] = False
    seed: Annotated[int | None, Option(help="Random seed.", show_default="0")] = None
    config: Annotated[Path | None, Option("--config", "-c", help="Read settings from a TOML file.")] = None
    out: Annotated[Path | None, Option("--out", "-o", help="Run folder (default: below runs/).")] = None
    estimate: Estimate = False
    engine: Annotated[
        str | None, Option(help="loop; pool: worker processes (default on several cores); flower: real sites.")
    ] = None
    kit: Annotated[Path | None, Option(help="Kit of the server, for engine flower.")] = None
    timeout: Annotated[float, Option(min=1, help="Seconds that a round waits for real sites.")] = 3600.0
    workers: Annotated[int, Option(min=0, help="Worker processes of engine pool; 0: one per core.")] = 0


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ConfigOptions, ComputeOptions):
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


@dataclass(frozen=True, kw_only=True)
class PaperOptions(ComputeOptions):
    item: Annotated[str | None, Argument(help="Item to run, or `report`; without it, all are listed.")] = None
    scale: Annotated[Literal["tiny", "desk", "full", "paper"], Option(help="Length of the runs.")] = "desk"
    part: Annotated[str | None, Option(help="Only this part of the item.")] = None
    out: Annotated[Path, Option("--out", "-o", help="Folder of all runs of the paper.")] = Path("runs/paper")
    jobs: Jobs = 1
    estimate: Estimate = False

    @property
    def track(self) -> tuple[str, ...]:
        return ()


@dataclass(frozen=True, kw_only=True)
class TuneOptions(ConfigOptions, ComputeOptions):
    methods: Annotated[str, Option(help="Comma-separated, as for fedlgd compare.")] = "fedavg,fedlgd"
    budget: Annotated[str, Option(help="Time of the search: 2h, 90min. It sets the number of candidates.")] = "1h"
    candidates: Annotated[
        int | None, Option(min=2, help="Candidates of each method, instead of a budget.", show_default="by budget")
    ] = None
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


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Output):
    name: Annotated[str, Argument(help="Federation (see fedlgd data list), or a folder.")] = "builtin-digits"
    settings: Set = None
    sheet: Annotated[Path | None, Option(help="Write a contact sheet of real images (PNG).")] = None
    shift: Annotated[bool, Option("--shift", help="Measure the domain shift between sites.")] = False
    per_class: Annotated[bool, Option("--per-class", help="Also measure the shift per class.")] = False
    size: Annotated[int, Option(help="Images per site in each draw of --shift.")] = 100
    draws: Annotated[int, Option(help="Number of draws of --shift.")] = 5
    biased: Annotated[bool, Option("--biased", help="Use the biased estimator of the paper's code.")] = False
    seed: Seed = 0


@dataclass(frozen=True, kw_only=True)
class CheckOptions(Output):
    folder: Annotated[Path, Argument(help="Your own images: a folder, a .csv or a .npz.")]
    settings: Set = None
    least: Annotated[int, Option(min=1, help="Warn below this many training images per class and site.")] = 10
    strict: Annotated[bool, Option("--strict", help="Treat warnings as errors.")] = False


@dataclass(frozen=True, kw_only=True)
class FetchOptions(Output):
    names: Annotated[list[str], Argument(help="Groups (digits, cifar10c, retina) or data sets (mnist, ...).")]
    originals: Annotated[Path | None, Option("--from", help="Folder of the original files; no download.")] = None
    again: Annotated[bool, Option("--again", help="Also prepare data sets that are ready.")] = False
    keep: Annotated[bool, Option("--keep-originals", help="Keep downloads in <data home>/originals.")] = False


@dataclass(frozen=True, kw_only=True)
class ProvisionOptions(Output):
    folder: Annotated[Path, Argument(help="Folder for the kits; new, unless --add or --renew is given.")]
    sites: Annotated[str, Option(help="Names of the sites, comma-separated: a,b,c")] = ""
    server: Annotated[str, Option(help="HOST:PORT at which the sites reach the coordinator.")] = ""
    days: Annotated[int, Option(min=1, max=3650, help="Validity of the server's certificate in days.")] = 730
    add: Annotated[str, Option(help="Add sites to existing kits: d,e")] = ""
    renew: Annotated[bool, Option("--renew", help="Only make a new certificate for the server.")] = False


@dataclass(frozen=True, kw_only=True)
class ServeOptions:
    kit: Annotated[Path, Argument(help="Kit of the server: FOLDER/server.")]
    listen: Annotated[str, Option(help="HOST:PORT to listen on, if it is not the address of the kit.")] = ""
    store: Annotated[int, Option(min=64, help="MiB on this disk for replies of one site that no run has read.")] = (
        1024
    )


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    kit: Annotated[Path, Argument(help="Kit of the site: FOLDER/site-NAME.")]
    data: Annotated[Path | None, Option("--data", help="Images of this site; by default those of last time.")] = (
        None
    )
    settings: Annotated[list[str] | None, Option("--set", "-s", help="How to read them: --set data.size=64")] = None
    threads: Threads = 1
    device: Device = "cpu"
    quiet: Annotated[bool, Option("--quiet", "-q", help="Do not print what the site does.")] = False


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Output):
    run: RunFolder
    images: Annotated[list[Path], Argument(help="Image files, or folders of them.")]
    site: Site = ""


@dataclass(frozen=True, kw_only=True)
class ExportOptions(Output):
    run: RunFolder
    out: Annotated[Path | None, Option("--out", "-o", help="Output folder (default: RUN/export).")] = None
    site: Site = ""
    onnx: Annotated[bool | None, Option(help="ONNX too (default: if its packages are installed).")] = None


@dataclass(frozen=True, kw_only=True)
class DistilOptions(ComputeOptions):
    data: Annotated[str | None, Argument(help="Federation (fedlgd data list), or a folder of images.")] = None
    folder: Folder = None
    per_class: Annotated[int | None, Option(min=1, help="Virtual images per class.")] = None
    net: Annotated[str | None, Option(help="Network (see fedlgd nets), or package.module:Class.")] = None
    settings: Set = None
    seed: Seed = 0
    out: Annotated[Path, Option("--out", "-o", help="Output folder.")] = Path("distilled")
    score: Annotated[
        bool,
        Option("--score/--no-score", help="Train networks on virtual, on as many real, and on all images."),
    ] = True
    score_steps: Annotated[int, Option(min=1, help="SGD steps of each of these networks.")] = 500
    estimate: Estimate = False


@dataclass(frozen=True, kw_only=True)
class InvertOptions(Output):
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


@dataclass(frozen=True, kw_only=True)
class AuditOptions(Output):
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
