"""The manifest of a run: what it knows about itself, written once at its start. No torch.

Runs write a `Manifest`; reports, attacks and everything else that opens a run read it. Nothing is told again from
`config.toml`, except by `upgrade` for folders of older versions.
"""

import json
import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from fedlgd.core.errors import RunError
from fedlgd.core.files import read_json, reading, write_json
from fedlgd.core.text import enumeration

FORMAT = 5
UPGRADED = (1, 2, 3, 4)  # formats of older folders
MANIFEST = "manifest.json"
LABEL_NOTE = re.compile(r"(?P<base>.+) \((?P<note>[\w.-]+=[^,()]+(?:, [\w.-]+=[^,()]+)*)\)")

Positive = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True)
class Rounds:
    """The rounds first, first + every, ...: `count` of them, also those after the planned end of a run."""

    first: int
    every: Positive
    count: int

    def until(self, end: int) -> range:
        """Those before round `end`."""
        return range(self.first, min(self.first + self.every * self.count, end), self.every)


TrainOn = Literal["real", "virtual", "nothing"]
Reading = Literal["enrolment", "selected", "every"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodInfo:
    """The declarations of the method of a run. What was observed is in the records.

    selected: the rounds in which more happens than training, by what moves: `refine` and `redraw` for virtual sets,
    `anchors`.
    reads: when private training images are read: at the enrolment, in selected or in every round; empty: never.
    sends: the kind of what a site sends, by its path: `params`, `trees/NAME`, `metrics/NAME`, `hello/NAME`.
    sources: digests of source files that are not ours.
    """

    name: str
    label: str
    train_on: TrainOn
    reads: tuple[Reading, ...]
    sends: Mapping[str, str]
    selected: Mapping[str, Rounds] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """(epsilon, delta) of each training image (or of each site), and how the budget is spent.

    mu: the Gaussian-DP parameter of the whole budget; None in folders of older versions. simulation: the noise
    came from a public key, so that nothing is protected. releases, refinements: noisy sums for the first virtual
    set, and for all its refinements. gaussian: every release sees all images, so that mu^2 of several runs adds up.
    scores: epsilon of each test image for all scores; 0: they are exact. shares: parts of mu^2 by their purpose.
    """

    epsilon: float
    delta: float
    mu: float | None = None
    simulation: bool = False
    protects: Literal["image", "site"] = "image"
    adjacency: Literal["add-remove", "replace"] = "add-remove"
    releases: int = 0
    refinements: int = 0
    gaussian: bool = False
    scores: float = 0.0
    shares: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteInfo:
    """A site of the run; `folder` is the file name of its images.

    real_work: the images that one round of training on its real images would take; None if it is not known.
    short: the classes with fewer virtual images than `distil.per_class`, and how many real images they have.
    """

    name: str
    folder: str
    train: int
    test: int
    note: str = ""
    real_work: int | None = None
    short: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DataInfo:
    """The federation a run was trained on; `shape` is channels, height, width.

    prepare: how images become network input, as `data.prepare.Preparation` is written; None in old folders. public:
    whether anyone may see the images, as in the data sets of papers; False also if an old folder does not say.
    """

    name: str
    digest: str
    shape: tuple[Positive, Positive, Positive]
    classes: tuple[str, ...]
    sites: tuple[SiteInfo, ...]
    note: str = ""
    prepare: Mapping[str, Any] | None = None
    public: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NetInfo:
    """The network, its size, and the FLOPs of one forward pass of one image. A label has the digest of its source
    if it is not one of ours."""

    label: str
    parameters: int
    flops: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineInfo:
    """Where the work was done. `local`: the sites were simulated here, so that their states are in the folder."""

    name: str = "loop"
    local: bool = True
    workers: int = 1
    threads: int = 1
    device: str = "cpu"
    precision: str = "float32"
    compile: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A run that got more rounds: how many it had, and the digest of the configuration before."""

    rounds_before: int
    rounds: int
    after_round: int
    command: str
    config_before: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeChange:
    """A source file that was another one when a run went on after so many rounds: digests before and after, empty
    if there was no such file."""

    file: str
    after_round: int
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of `manifest.json`.

    label: the name of the run in tables. config: the digest of `config.toml`; variant: that of all settings but
    data, seed and rounds. A run that does not compete (personalised models, pooled data) is shown beside the
    others and never marked best. code_changed: the files with which it went on as they were not at its start.
    copy_of: the run that a comparison copied. positive: of two classes, the one that sensitivity is about; empty:
    the last one. commit: that of the checkout of the package at the start, with `-dirty` if a file differs from it;
    empty without a checkout.
    """

    label: str
    method: MethodInfo
    command: str
    threads: int
    versions: Mapping[str, str]
    data: DataInfo
    net: NetInfo
    format: int = FORMAT
    config: str = ""
    variant: str = ""
    competes: bool = True
    engine: EngineInfo = EngineInfo()
    promise: Promise | None = None
    extended: tuple[Extension, ...] = ()
    code_changed: tuple[CodeChange, ...] = ()
    copy_of: str = ""
    positive: str = ""
    commit: str = ""

    def write(self, folder: Path) -> None:
        write_json(folder / MANIFEST, msgspec.to_builtins(self))


def with_note(label: str, settings: Mapping[str, Any]) -> str:
    """`FedLGD (pull.weight=1)`"""
    note = ", ".join(f"{path}={value}" for path, value in settings.items())
    return f"{label} ({note})" if note else label


def without_note(label: str) -> tuple[str, dict[str, str]]:
    """`FedLGD` and the settings in the note of a label."""
    found = LABEL_NOTE.fullmatch(label)
    if not found:
        return label, {}
    pairs = (each.partition("=") for each in found["note"].split(", "))
    return found["base"], {path: value for path, _, value in pairs}


def read_manifest(folder: Path, as_written: bool = True) -> Manifest:
    """The manifest of a run folder; one of an older version in the form of today.

    as_written: refuse a file that was changed since. A report still shows it.
    """
    file = folder / MANIFEST
    if not file.exists():
        raise RunError("manifest-missing", file=str(file))
    with reading(file):
        raw = json.loads(file.read_bytes())
        if raw["format"] not in (*UPGRADED, FORMAT):
            raise RunError("manifest-format", file=str(file), format=raw["format"], known=FORMAT)
        raw = read_json(file) if as_written else raw
        if raw["format"] != FORMAT:
            raw = upgrade(raw, tomllib.loads((folder / "config.toml").read_text(encoding="utf-8")))
        if raw.get("engine", {}).pop("autocast", False):  # the name of this setting in older folders
            raw["engine"]["precision"] = "bf16"
        return msgspec.convert(raw, Manifest)


def upgrade(raw: Mapping[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """An older manifest in the form of today. Missing facts of formats 1 and 2 follow from the settings of the run:
    a run without the settings `train_on` and `anchors` trained on real images.
    """
    if raw["format"] > 2:
        method = _declared(raw["method"]) if raw["format"] == 3 else raw["method"]
        return _with_parts({**raw, "format": FORMAT, "method": method}, config)
    anchors, refine = config.get("anchors", {}), config.get("refine", {})
    refines = refine.get("steps", 1) or refine.get("start", "keep") != "keep"
    active = {"anchors": anchors.get("per_class", 1), "refine": refines}
    selected: dict[str, Any] = {
        part: config[part].get("selected") for part, moves in active.items() if part in config and moves
    }
    work: list[int | None]
    try:
        msgspec.convert(selected, dict[str, Rounds])
        epochs, steps, batch = (int(config["local"][name]) for name in ("epochs", "steps", "batch"))
        sizes = [site["train"] for site in raw["data"]["sites"]]
        work = [steps * min(batch, size) if steps else epochs * size for size in sizes]
    except (msgspec.ValidationError, LookupError, TypeError, ValueError):  # a setting that is needed is missing
        selected, work = {}, [None] * len(raw["data"]["sites"])
    uploads = anchors.get("start") == "statistics" and anchors.get("per_class", 1)
    method = {
        "name": raw["method"],
        "label": raw["label"],
        "train_on": config.get("train_on", "virtual" if "anchors" in config else "real"),
        "selected": selected,
        "hello": ["counts", "statistics"] if uploads else ["counts"],
        "update": ["weights"] if "dp" in config else ["weights", "loss"],
    }
    sites = [{**site, "real_work": images} for site, images in zip(raw["data"]["sites"], work, strict=True)]
    newer = {"format": FORMAT, "method": _declared(method), "data": {**raw["data"], "sites": sites}}
    return _with_parts({**raw, **newer, "promise": _old_promise(config)}, config)


def settings_today(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an older run in the form of today: `refine.start = "neighbours"` is the part `+redraw`."""
    refine = dict(config.get("refine", {}))
    start = refine.pop("start", "keep")
    today = {**config, "refine": refine} if "refine" in config else dict(config)
    if start != "keep" and "selected" in refine:
        today |= {"method": f"{config['method']}+redraw", "redraw": {"selected": refine["selected"]}}
    return today


def _with_parts(raw: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """An older manifest with labels of today: they name redrawing, and what settings of FedLGD switch off."""
    today, method = settings_today(config), dict(raw["method"])
    name, added = method["name"].partition("+")[0], ""
    if "redraw" in today:
        selected, added = dict(method["selected"]), " + redraw"
        rounds = selected.pop("refine", today["redraw"]["selected"])
        refined = {"refine": rounds} if today["refine"].get("steps", 1) else {}
        method |= {"name": f"{method['name']}+redraw", "selected": {**selected, **refined, "redraw": rounds}}
    refine = today.get("refine", {})
    parts = {
        "matching": today.get("distil", {}).get("steps", 1),
        "refinement": refine.get("steps", 1) and refine.get("selected", {}).get("count", 1),
        "anchors": today.get("anchors", {}).get("per_class", 1),
    }
    without = [part for part, on in parts.items() if not on]
    if without and name == "fedlgd":
        added += f" without {enumeration(without)}"
    head = re.compile(rf"{re.escape(name)}\b(?: \+ [\w-]+)*", re.IGNORECASE)  # FedAvg + refine
    method["label"], label = (
        f"{found[0]}{added}{each[found.end() :]}" if (found := head.match(each)) else each
        for each in (method["label"], raw["label"])
    )
    return {**raw, "method": method, "label": label}


OLD_TREES = {
    "scaffold": {"trees/variate": "control variates"},
    "fednova": {"trees/nova": "work"},
    "fedproto-avg": {"trees/prototypes": "prototypes"},
    "fedproto-local": {"trees/prototypes": "prototypes"},
}
WITHOUT_WEIGHTS = ("local-only", "fedproto-local")


def _declared(method: Mapping[str, Any]) -> dict[str, Any]:
    """What a method of format 3, which had lists of words, reads and sends; for a method of a user, as it said."""
    name = method["name"].partition("+")[0]
    weights = {} if name in WITHOUT_WEIGHTS else {"params": "weights"}
    loss = {"metrics/loss": "loss"} if "loss" in method["update"] else {}
    hello = {f"hello/{word}": word for word in method["hello"]}
    reads = ["enrolment", "selected"] if "refine" in method["selected"] else ["enrolment"]
    return {
        **{key: value for key, value in method.items() if key not in ("hello", "update")},
        "reads": ["every"] if method["train_on"] == "real" else reads,
        "sends": {**hello, **weights, **loss, **OLD_TREES.get(name, {})},
    }


def _old_promise(config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The promise of an older run, by its settings."""
    distil, refine = config.get("distil", {}), config.get("refine", {})
    sections: dict[str, Any] = {"private": distil.get("private", {}), **config}
    on = [name for name in ("private", "dp", "site_dp") if 0 < sections.get(name, {}).get("epsilon", 0) < math.inf]
    if not on:
        return None
    budget, private = sections[on[0]], on[0] == "private"
    rounds = refine["selected"]["count"] if private and refine.get("steps") else 0
    shares: dict[str, float] = {}
    if private and "counts" in budget:
        start = {"mean-image": budget["start"], "statistics": 0.01}.get(distil["start"], 0.0)
        shares = {"counts": budget["counts"], "start": start, "refine": budget["refine"]}
        shares["distil"] = 1 - sum(shares.values())
    return {
        "epsilon": budget["epsilon"],
        "delta": budget["delta"],
        "simulation": bool(budget.get("test_key")),
        "protects": "site" if on[0] == "site_dp" else "image",
        "adjacency": budget.get("adjacency", "add-remove"),
        "releases": budget.get("releases", 0),
        "refinements": rounds * (refine["pairs"] if distil.get("augment") else 1) if rounds else 0,
        "gaussian": private and budget.get("rate") == 1,
        "scores": budget.get("scores", 0.0),
        "shares": shares,
    }
