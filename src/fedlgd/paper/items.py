"""The tables and figures of the paper as data: one TOML file for each in `fedlgd/paper/content`.

`jobs_of` makes its runs, and `stored` finds those in <folder>/<scale>/<item>/<part>/<entry>/seed<n>.

An item is a comparison, or several (its parts). Settings are merged in this order: those of the item, of the part,
of the scale and of its data (`scales.toml`), of the item at this scale, and of the part at this scale.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any, Literal

import msgspec

from fedlgd.core.errors import SettingError, did_you_mean
from fedlgd.core.text import plural
from fedlgd.report.groups import Group, group_runs
from fedlgd.report.tables import NONE
from fedlgd.rundir.read import Run, read_runs, run_folders
from fedlgd.runs.entries import Entry, Job, parse_entry, plan_jobs
from fedlgd.runs.parse import entry_folder, swept

Settings = Mapping[str, Any]
Axes = Mapping[str, tuple[Any, ...]]
FOLDER = resources.files("fedlgd.paper") / "content"
OF_ANY_DATA = ("data.name", "data.limit", "data.test_limit")
MEAN = "Average"  # in the place of a printed number, where sites have their names
SCALES = ("tiny", "desk", "half", "full", "paper")
Metric = Literal["accuracy", "distance", "shift", "area"]
Word = Literal["confirmed", "not confirmed", "not decided", "cannot be decided"]
NAMES = {
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fednova": "FedNova",
    "scaffold": "Scaffold",
    "moon": "MOON",
    "fedproto-avg": "FedProto",
    "vhl": "VHL",
    "fedlgd": "FedLGD",
}
"""The methods as the paper prints them."""
CONTROLS = {
    "fedproto-local": "FedProto, no shared model",
    "fedavg:local.steps=": "FedAvg, equal steps",
    "fedavg+noise": "FedAvg with noise images",
    "fedavg+refine": "FedAvg with refinement",
    "fedavg+anchors": "FedAvg with anchors",
    "fedavg:distil.start=real:distil.steps=0": "FedAvg on random real images",
    "fedavg:distil.start=kmeans:distil.steps=0": "FedAvg on k-means picks",
    "fedavg:distil.start=real:distil.steps=0:local.steps=": "FedAvg on random real images, equal steps",
    "fedlgd:distil.start=real:distil.steps=0:refine.steps=0": "FedLGD on random real images",
}
"""What the entries are called that the paper does not have. A number of steps at the end is left out."""
SETTINGS = {
    "local.batch": "batch {}",
    "local.epochs": "local epochs: {}",
    "distil.start": "start from {}",
    "pull.loss": "{} form",
    "pull.weight": "weight {}",
    "anchors.selected.count": "{} selected rounds",
    "refine.selected.count": "",  # as many, of the same rounds
    "refine.steps": "{} steps of refinement",
    "anchors.steps": "{} of matching",
    "real": "real images",
    "statistics": "class statistics",
    "mmd-rbf": "MMD",
}
"""What the settings of swept entries are called, and some of their values."""
OWNERS = {"anchors": ("fedlgd", "anchors"), "pull": ("fedlgd", "anchors"), "refine": ("fedlgd", "refine")}
"""The methods and parts that the settings of a section apply to."""
STORED = tuple(reversed(SCALES[1:]))  # a verdict is never based on the scale tiny


@dataclass(frozen=True, kw_only=True)
class Rule:
    """`left` minus each of `right` is above `margin`: its interval over seeds lies above it.

    Left and right are entries of the part `part`. Metric `accuracy` is in points. `distance` is the decrease of the
    distance between virtual sets and anchors from the first to the last measurement, and has no `right`. `shift` is
    the share of the mean squared MMD between sites under the model of `right` that is gone under that of `left`.
    `area` is that under the ROC curve of two classes at every site, with its interval over test images; no `right`.
    """

    left: str
    right: tuple[str, ...] = ()
    part: str = ""
    metric: Metric = "accuracy"
    margin: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A statement of the paper, in a line (`short`) and in full, what it prints, and the rule that decides it.

    The rule was written before the runs. `at` has that of a scale that is run with other values of the swept
    settings. `needs`: if this rule does not hold, such as that a model learns anything on these sites, the claim
    cannot be decided there. `tried`: the numbers of seeds, by scale, that had not decided it before more were run;
    every further test has a wider interval (`half_width`). Without a rule or its runs, `verdict` is decided in
    another way: `ours` is what was measured, and `why` says how the claim was decided, or why nothing here can
    decide it.
    """

    text: str
    short: str
    printed: str
    rule: Rule | None = None
    at: Mapping[str, Rule] = field(default_factory=dict)
    needs: Rule | None = None
    tried: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ours: str = NONE
    verdict: Word = "not decided"
    why: str = ""

    def rule_at(self, scale: str) -> Rule | None:
        return self.at.get(scale, self.rule)

    def tests(self, scale: str, seeds: int) -> int:
        """How often the claim has been tested at a scale once it is tested with so many seeds."""
        return 1 + sum(count < seeds for count in self.tried.get(scale, ()))


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What a part or a scale changes. Without methods or seeds: those of the item.

    `steps` replaces {steps} in entries. `printed` is the place of the paper's numbers in `printed.json`, with `*`
    for the method, or the place of each entry. `reduced` says what is less than in the paper. `cpu` is an estimate
    of the CPU time.
    """

    settings: Settings = field(default_factory=dict)
    methods: tuple[str, ...] = ()
    sweep: Axes | None = None
    seeds: int = 0
    steps: int = 0
    printed: str | Mapping[str, str] = ""
    reduced: str = ""
    cpu: str = ""


@dataclass(frozen=True, kw_only=True)
class PaperScale(Variant):
    """How long the runs are; `only`: the parts that are run.

    `data` is what is less of a data set, by its name, in all items.
    """

    preset: str = ""
    parts: Mapping[str, Variant] = field(default_factory=dict)
    data: Mapping[str, Variant] = field(default_factory=dict)
    only: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Item:
    """One table or figure: what it shows, what is run for it, and what it claims.

    `runs_of` names another item whose runs it uses. `command` makes it if it needs no runs of its own. `sites` are
    the names of our sites in the paper.
    """

    title: str
    figure: str
    command: str = ""
    methods: tuple[str, ...] = ()
    settings: Settings = field(default_factory=dict)
    sweep: Axes = field(default_factory=dict)
    parts: Mapping[str, Variant] = field(default_factory=lambda: {"": Variant()})
    claims: tuple[Claim, ...] = ()
    scales: Mapping[str, PaperScale] = field(default_factory=dict)
    runs_of: str = ""
    sites: Mapping[str, str] = field(default_factory=dict)
    note: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRuns:
    """One part of an item at one scale: what `fedlgd compare` is asked for."""

    methods: tuple[str, ...]
    settings: Settings
    seeds: int
    preset: str


def requested_runs(item: Item, part: str, scale: str, seeds: int = 0) -> RequestedRuns:
    """What is run for a part of an item at a scale. seeds: in place of the number that the item fixes."""
    common, own, at = _common()[scale], item.parts[part], item.scales.get(scale, PaperScale())
    at_part = at.parts.get(part, Variant())
    axes = next((each.sweep for each in (at_part, at, own) if each.sweep is not None), item.sweep)
    of_data = _of_data(item, part, scale)
    layers = (item.settings, own.settings, common.settings, of_data.settings, at.settings, at_part.settings)
    methods = at_part.methods or at.methods or own.methods or item.methods
    steps = at_part.steps or at.steps or own.steps
    settings = {path: value for layer in layers for path, value in layer.items()}
    if settings.get("data.name") == "builtin-digits":  # in place of data whose settings it does not have
        settings = {path: value for path, value in settings.items() if path in OF_ANY_DATA or path[:5] != "data."}
    return RequestedRuns(
        methods=tuple(entry.replace("{steps}", str(steps)) for entry in swept(methods, axes)),
        settings=settings,
        seeds=seeds or at_part.seeds or at.seeds or common.seeds,
        preset=at.preset or common.preset,
    )


def _of_data(item: Item, part: str, scale: str) -> Variant:
    """What the scale changes for the data of a part."""
    name = {**item.settings, **item.parts[part].settings}.get("data.name")
    return _common()[scale].data.get(str(name), Variant())


def parts_at(item: Item, scale: str) -> tuple[str, ...]:
    """The parts that are run at this scale."""
    only = item.scales.get(scale, PaperScale()).only
    return tuple(part for part in item.parts if not only or part in only) if item.methods else ()


def reduced(item: Item, part: str, scale: str) -> str:
    """In words what is less than in the paper."""
    own = item.scales.get(scale, PaperScale())
    common, at_part = own.reduced or _common()[scale].reduced, own.parts.get(part, Variant()).reduced
    here = ", ".join(filter(None, (common, _of_data(item, part, scale).reduced)))
    return "; this part: ".join(filter(None, (here, at_part)))


def command_of(item: Item) -> str:
    """The command that makes an item."""
    return item.command or f"fedlgd paper {item.name} --scale desk"


def estimate_of(item: Item, scale: str, part: str) -> str:
    """The CPU time that the file of an item says of a part, in words."""
    return item.scales.get(scale, PaperScale()).parts.get(part, Variant()).cpu


def cpu_times(item: Item, measured: Mapping[str, str]) -> dict[str, str]:
    """The CPU time of an item in words, at the scales where it is measured or estimated."""
    known = {
        scale: measured.get(scale) or item.scales.get(scale, PaperScale()).cpu or _common()[scale].cpu
        for scale in SCALES
    }
    return {scale: cpu for scale, cpu in known.items() if cpu and item.methods}


@cache
def items() -> dict[str, Item]:
    """All items by name, in the order of `order` in `scales.toml`."""
    order = tomllib.loads((FOLDER / "scales.toml").read_text())["order"]
    contents = {name: tomllib.loads((FOLDER / f"{name}.toml").read_text()) for name in order}
    return {name: msgspec.convert({**content, "name": name}, Item) for name, content in contents.items()}


def find_item(name: str) -> Item:
    if name not in items():
        raise SettingError("unknown-item", item=name, hint=did_you_mean(name, items()))
    return items()[name]


def check_part(item: Item, part: str | None) -> None:
    """Refuse the name of a part that the item does not have; None stands for all."""
    if part is not None and part not in item.parts:
        if "" in item.parts:
            raise SettingError("item-without-parts", item=item.name)
        raise SettingError("unknown-part", item=item.name, part=part, parts=list(item.parts))


def owner_of(item: Item) -> Item:
    """The item whose runs this one uses, which can be itself."""
    return find_item(item.runs_of or item.name)


@cache
def _common() -> dict[str, PaperScale]:
    content = tomllib.loads((FOLDER / "scales.toml").read_text())
    return {name: msgspec.convert(content[name], PaperScale) for name in SCALES}


@cache
def _printed() -> Any:
    return json.loads((FOLDER / "printed.json").read_text())


def printed(part: Variant, entry: str, site: str = "") -> float | None:
    """The accuracy in percent that the paper prints for an entry of a part, as a mean over sites or at one."""
    if isinstance(part.printed, str):
        name = NAMES.get(entry)
        place = part.printed.replace("*", name) if name else ""
    else:
        place = part.printed.get(entry, "")
    found = _printed()
    for key in place.replace(MEAN, site or MEAN).split("/") if place else ():
        found = found[int(key)] if isinstance(found, list) else found.get(key)
        if found is None:
            return None
    return float(found) if place else None


def entry_name(entry: str) -> str:
    """An entry as tables call it: `FedAvg, equal steps`, or `FedLGD, batch 8`."""
    if known := {**NAMES, **CONTROLS}.get(re.sub(r"(?<=:local\.steps=)\d+$", "", entry)):
        return known
    method, *settings = entry.split(":")
    pairs = [each.partition("=") for each in settings]
    said = [SETTINGS.get(path, f"{path}={{}}").format(SETTINGS.get(value, value)) for path, _, value in pairs]
    return ", ".join(filter(None, (NAMES.get(method, method), *said)))


def jobs_of(wanted: RequestedRuns, out: Path, library: Path | None = None) -> list[Job]:
    """The runs of a part.

    A finished run with the same configuration in `library`, such as one of another item, is copied.
    """
    shared = {path: value for path, value in wanted.settings.items() if path.partition(".")[0] not in OWNERS}
    entries = [_with_own(parse_entry(spec), wanted.settings) for spec in wanted.methods]
    jobs = plan_jobs(entries, wanted.seeds, out, shared, wanted.preset)
    return [replace(job, library=library) for job in jobs]


def _with_own(entry: Entry, settings: Mapping[str, Any]) -> Entry:
    """The entry with the settings of anchors, pull and refine if it has them; its own settings win."""
    words = entry.name.split("+")
    own = {
        path: value
        for path, value in settings.items()
        if any(word in words for word in OWNERS.get(path.partition(".")[0], ()))
    }
    return replace(entry, settings={**own, **entry.settings})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The stored runs of one part of an item at a scale, by entry."""

    item: Item
    part: str
    scale: str
    groups: Mapping[str, Group]

    @property
    def label(self) -> str:
        """`C10 (desk, 3 seeds)`"""
        seeds = sorted({len(group.counted) for group in self.groups.values()})
        count = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else plural(seeds[0], "seed")
        return f"{self.part or 'all'} ({self.scale}, {count})"


def stored_part(folder: Path, item: Item, part: str, scale: str) -> Found:
    """The finished runs of a part; an entry without any is missing."""
    owner = owner_of(item)
    specs = requested_runs(owner, part, scale).methods if part in owner.parts else ()
    paths = {spec: run_folders(folder / scale / owner.name / part / entry_folder(spec)) for spec in specs}
    known = tuple(path for each in paths.values() for path in each)
    written = [(file, file.stat()) for each in known for file in sorted(each.glob("[!.]*"))]
    runs = _finished_runs(known, tuple((file, stat.st_mtime_ns, stat.st_size) for file, stat in written))
    by_label = {run.path: group for group in group_runs(runs) for run in group.runs}
    groups = {spec: by_label[path] for spec, each in paths.items() for path in each[:1] if path in by_label}
    return Found(item=item, part=part, scale=scale, groups=groups)


@lru_cache(maxsize=256)
def _finished_runs(folders: tuple[Path, ...], _written: object) -> tuple[Run, ...]:
    """The finished ones of these runs. Tables, times and verdicts ask for the same; what was not written since is
    not read again."""
    return tuple(run for run in read_runs(folders)[0] if run.finished) if folders else ()


def stored(folder: Path, item: Item) -> Iterator[Found]:
    """All parts with runs, at each scale that has any, the largest first."""
    for part, scale in product(owner_of(item).parts, STORED):
        found = stored_part(folder, item, part, scale)
        if found.groups:
            yield found
