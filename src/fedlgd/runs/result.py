"""The result of a run: scores and costs, the model and its predictions, virtual sets and anchors.

`open_run` reads it from a run folder; `reopen` also gives the images back, for those who compute parts again.
"""

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch
from torch import Tensor, nn

from fedlgd import notebook
from fedlgd.core import files
from fedlgd.core.errors import DataError, FedlgdError, RunError, SettingError, did_you_mean, similar_path
from fedlgd.core.net import Net
from fedlgd.core.text import plural
from fedlgd.core.types import Params, SiteState, VirtualSet
from fedlgd.data.federation import POOLED, Federation
from fedlgd.data.prepare import Preparation
from fedlgd.engines.storage import States, Storage
from fedlgd.methods.protocol import Method
from fedlgd.nets.registry import named_net
from fedlgd.rundir.manifest import MANIFEST, Manifest, read_manifest, settings_today
from fedlgd.rundir.records import RoundRecord, in_order, refuse_links
from fedlgd.runs.config import Config, net_of, resolve
from fedlgd.runs.folder import RunDirectory
from fedlgd.runs.parse import read_toml
from fedlgd.runs.resume import changed_code, sources_of

T = TypeVar("T")
BATCH = 256  # images per pass of a prediction
LISTED = 12  # sites or images named when a result is printed
MAX_RUNS_IN_ERROR = 8
EDITION = re.compile("@[0-9a-f]{8}")  # the digest of its source in the label of a network


class Held(Mapping[str, T]):
    """A mapping from site names to values that are read on access, because there can be thousands of sites."""

    def __init__(self, names: Sequence[str], read: Callable[[str], Any]) -> None:
        self._names, self._read = dict.fromkeys(names), read

    def __getitem__(self, name: str) -> T:
        if name not in self._names:
            raise KeyError(name)
        held: T = self._read(name)
        return held

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<read on access: {', '.join(self._names) or 'nothing'}>"


class Spending(NamedTuple):
    """What a run cost, enrolment included: CPU seconds by phase, wall seconds of all work by phase, added up over
    sites even if they worked at the same time, and bytes to and from the sites.

    wall: the seconds that passed during the enrolment and the rounds; None if an older version recorded a round.
    """

    rounds: int
    cpu: Mapping[str, float]
    seconds: Mapping[str, float]
    bytes_up: int
    bytes_down: int
    wall: float | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Predictions:
    """Class probabilities (n, classes) of images, with the names of images and classes."""

    names: Sequence[str]
    classes: Sequence[str]
    probabilities: Tensor

    @property
    def labels(self) -> list[str]:
        """The most probable class of each image."""
        return [self.classes[k] for k in self.probabilities.argmax(1).tolist()]

    def plain(self) -> list[dict[str, Any]]:
        """One entry per image, for JSON."""
        return [
            {"image": name, "class": label, "probabilities": dict(zip(self.classes, row, strict=True))}
            for name, label, row in zip(self.names, self.labels, self.probabilities.tolist(), strict=True)
        ]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Name, class, its probability and the next most probable class, as text."""
        best = self.probabilities.topk(min(2, len(self.classes)), 1)
        return [
            (name, self.classes[k[0]], f"{p[0]:.3f}", f"{self.classes[k[-1]]} {p[-1]:.3f}" if len(k) > 1 else "")
            for name, k, p in zip(self.names, best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def __len__(self) -> int:
        return len(self.names)

    def __repr__(self) -> str:
        lines = [f"  {name}: {label} {p} (next: {second})" for name, label, p, second in self.rows()[:LISTED]]
        more = [f"  and {len(self) - LISTED} more"] if len(self) > LISTED else []
        return "\n".join([f"Predictions({plural(len(self), 'image')})", *lines, *more])

    def _repr_html_(self) -> str:
        return notebook.table(("image", "class", "probability", "next"), self.rows())


@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """The result of a run: the records of all rounds, the model, the anchors, and the virtual set of each site.

    `personal` has the weights of each site for personalised methods (FedBN, FedProto, local training).
    `preparation`: how an image becomes network input. `planned`: the number of rounds of the complete run.
    """

    records: list[RoundRecord]
    net: Net
    params: Params
    anchors: VirtualSet | None
    virtual: Mapping[str, VirtualSet]
    personal: Mapping[str, Params]
    preparation: Preparation
    label: str = ""
    planned: int = 0
    folder: Path | None = None

    @property
    def accuracy(self) -> dict[str, float]:
        """Accuracy on each site's test images after the last round that was evaluated."""
        scores = next((record.scores for record in reversed(self.records) if record.scores), {})
        return {name: score.accuracy for name, score in scores.items()}

    @property
    def evaluated(self) -> int:
        """The last round that was evaluated, counted from 1: that of `accuracy`; 0 if there is none."""
        return next((record.round + 1 for record in reversed(self.records) if record.scores), 0)

    @property
    def when(self) -> str:
        """` after round 8` if `accuracy` is not that of the last finished round; else empty."""
        return f" after round {self.evaluated}" if 0 < self.evaluated < self.rounds else ""

    @property
    def rounds(self) -> int:
        """The number of finished rounds."""
        return self.records[-1].round + 1

    @property
    def spent(self) -> Spending:
        cpu, seconds = Counter[str](), Counter[str]()
        for record in self.records:
            cpu.update(record.cpu)
            seconds.update(record.seconds)
        up, down = (sum(getattr(r, f"bytes_{way}") for r in self.records) for way in ("up", "down"))
        wall = sum(record.wall for record in self.records) if all(record.wall for record in self.records) else None
        return Spending(self.rounds, dict(cpu), dict(seconds), up, down, wall)

    @cached_property
    def model(self) -> nn.Module:
        """The trained network as a module in eval mode: images -> (features, logits)."""
        if self.personal:
            raise FedlgdError("no-global-model")
        return self.net.module(self.params)

    def params_at(self, site: str = "") -> Params:
        """The weights of the model for this site: the global ones unless the method is personalised."""
        if not self.personal:
            return self.params
        if site not in self.personal:
            known = list(self.personal)[:LISTED]
            if not site:
                raise FedlgdError("site-not-given", label=self.label, known=known)
            hint = did_you_mean(site, self.personal) or ";"
            raise FedlgdError("site-without-model", label=self.label, site=site, hint=hint, known=known)
        return self.personal[site]

    def predict(self, images: Any, site: str = "", unreadable: list[DataError] | None = None) -> Predictions:
        """The classes of images: paths, folders, PIL images, arrays (uint8, or floats 0..1), or a list of these.

        Images are prepared like those of `site`; without a site, by the mean of the sites' scalings. unreadable: a
        list that gets the errors of files that cannot be read, so that the others are classified.
        """
        scale, params = self.preparation.scale(site), self.params_at(site)
        names, pixels = self.preparation.batch(images, unreadable)
        classes = self.preparation.classes
        logits = [self.net.frozen(params, scale.to_input(part)).logits for part in pixels.split(BATCH)]
        return Predictions(names, classes, torch.cat(logits)[:, : len(classes)].softmax(1))

    def export(self, folder: str | Path, site: str = "", onnx: bool | None = None) -> list[Path]:
        """Write the model with its preprocessing, a snippet that uses it, virtual images and anchors to `folder`.

        onnx None: also as ONNX if the packages of the extra `export` are installed.
        """
        from fedlgd.runs.export import export

        return export(self, Path(folder), site, onnx)

    def __repr__(self) -> str:
        values = self.accuracy.values()
        mean = f"mean accuracy {100 * fmean(values):.1f} %" if values else "not evaluated yet"
        head = f"Result({self.label or 'run'}: {self.rounds} of {plural(self.planned or self.rounds, 'round')}, "
        sites = [f"  {site}: {100 * a:.1f} %" for site, a in list(self.accuracy.items())[:LISTED]]
        anchors = "no anchors" if self.anchors is None else plural(len(self.anchors), "anchor")
        kept = f"{plural(len(self.virtual), 'virtual set')}, {anchors}"
        return "\n".join([f"{head}{mean}{self.when}, {kept}", *sites]) + ")"

    def _repr_html_(self) -> str:
        rows = [(site, f"{100 * a:.1f} %") for site, a in list(self.accuracy.items())[:LISTED]]
        title = escape(repr(self).partition("\n")[0].removeprefix("Result(").rstrip(")"))
        anchors = f"<p>anchors</p>{self.anchors._repr_html_()}" if self.anchors else ""
        return f"<p>{title}</p>{notebook.table(('site', 'accuracy'), rows)}{anchors}"


class Kept(NamedTuple):
    """The stored states of a run: those of the server and of the sites in `names`."""

    memory: Storage
    states: States
    names: Sequence[str]

    def at(self, site: str) -> SiteState:
        return self.states.load(site, self.memory.version(site))


def result_of(
    config: Config, net: Net, kept: Kept, records: list[RoundRecord], preparation: Preparation, folder: Path | None
) -> Result:
    """The result of the committed rounds of a run."""
    state, method = kept.memory.server(), config.method
    if state is None:
        raise RunError("no-server-state", path=str(folder))
    params, names = state.params, kept.names
    virtual: Held[VirtualSet] = Held([n for n in names if kept.at(n).virtual], lambda name: kept.at(name).virtual)
    personal: Held[Params] = Held(
        names if method.personal else [], lambda name: method.model_at(params, kept.at(name))
    )
    planned, label = config.plan.rounds, method.label
    return Result(records, net, params, state.anchors, virtual, personal, preparation, label, planned, folder)


def open_run(
    path: str | Path, net: nn.Module | Callable[..., nn.Module] | None = None, method: Method | None = None
) -> Result:
    """The result of a run folder, finished or not, without the images it was made from. Nothing in it is changed.

    `net` and `method` are needed only for those that were given to `fedlgd.run` as Python objects and that no
    module can be imported for.
    """
    folder = Path(path).expanduser()
    manifest = manifest_of(folder)
    settings = read_toml(folder / "config.toml")
    preparation = _preparation(folder, manifest)
    config = _config(settings, method)
    built = _net(settings["net"], preparation, manifest.net.label, net)
    scales = {POOLED: preparation.scale()} if config.method.pooled else preparation.scales  # of who trained
    local = manifest.engine.local  # real sites keep their states
    directory = RunDirectory(folder, scales, local)
    if not directory.records:
        raise RunError("no-finished-round", path=str(folder), command=manifest.command)
    kept = Kept(directory, directory.states, list(scales) if local else [])
    order = [site.name for site in manifest.data.sites]
    records = [in_order(record, order) for record in directory.records]
    return result_of(config, config.method.adapt(built), kept, records, preparation, folder)


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A simulated run with the images it was made from, which are opened when they are asked for."""

    folder: Path
    manifest: Manifest
    config: Config

    @cached_property
    def result(self) -> Result:
        return open_run(self.folder)

    @cached_property
    def federation(self) -> Federation:
        opened = self.config.data.open()
        if opened.digest != self.manifest.data.digest:
            raise RunError("images-changed", data=opened.name, path=str(self.folder))
        return opened

    @cached_property
    def net(self) -> Net:
        """The network, if its code and that of the method are still those of the run."""
        net = self.config.net_for(self.federation)
        if changed := changed_code(self.manifest, sources_of(self.config.method, net)):
            raise RunError("attack-code-changed", path=str(self.folder), files=changed)
        if self.manifest.code_changed:
            text = "has rounds of different code; what is computed again is all of the code of today"
            warnings.warn(f"{self.folder} {text}", stacklevel=2)
        return net


def reopen(folder: Path) -> StoredRun:
    """The run in this folder, to compute parts of it again."""
    manifest = manifest_of(folder)
    if not manifest.engine.local:
        raise RunError("run-of-real-sites", path=str(folder))
    try:
        config = resolve(settings_today(read_toml(folder / "config.toml")))
    except FedlgdError as error:
        raise RunError("run-not-reproducible", path=str(folder), error=str(error)) from error
    return StoredRun(folder, manifest, config)


def manifest_of(folder: Path) -> Manifest:
    """The manifest of a run folder; a path that is no run folder is refused with what is near it."""
    if not folder.exists():
        hint = similar_path(folder, folders_only=True) or "; fedlgd run prints the folder of a run"
        raise RunError("no-such-run", path=str(folder), hint=hint)
    if not (folder / MANIFEST).is_file():
        inside = sorted({file.parent for file in folder.rglob(MANIFEST)}) if folder.is_dir() else []
        if inside:
            raise RunError("folder-of-runs", path=str(folder), runs=inside[:MAX_RUNS_IN_ERROR])
        raise RunError("not-a-run-folder", path=str(folder), file=MANIFEST)
    refuse_links(folder)
    return read_manifest(folder)


def _preparation(folder: Path, manifest: Manifest) -> Preparation:
    if manifest.data.prepare is None:
        raise RunError("preparation-unknown", path=str(folder), command=manifest.command)
    with files.reading(folder / MANIFEST):
        return msgspec.convert(manifest.data.prepare, Preparation)


def _config(settings: dict[str, Any], method: Method | None) -> Config:
    """The configuration without data and network, which need not be there any more."""
    rest = {name: value for name, value in settings.items() if name not in ("data", "net")}
    if method is not None:
        return Config(method=method, plan=resolve({"rounds": rest["rounds"], "seed": rest["seed"]}).plan)
    try:
        return resolve(settings_today(rest))
    except SettingError as error:
        raise RunError("method-not-found", error=str(error)) from error


def _net(settings: dict[str, Any], preparation: Preparation, label: str, given: Any) -> Net:
    named = settings if given is None else named_net(given, settings.get("features", ""))
    net = net_of(named, preparation.shape, len(preparation.classes), given)
    if net.label != label and EDITION.sub("", net.label) != label:  # one without source had no digest in older runs
        raise RunError("other-net", stored=label, found=net.label)
    return net


def how_to_go_on(result: Result, command: str) -> str:
    """The commands for more rounds, a report and predictions."""
    folder, finished = result.folder, result.rounds >= result.planned
    more = 2 * result.planned if finished else result.planned
    verb = "More rounds" if finished else "Finish"
    run = f"fedlgd run --config {folder}/config.toml --out {folder}" + (f" --rounds {more}" if finished else "")
    if command.startswith("fedlgd.run"):
        run = f"fedlgd.run(..., rounds={more}, out={str(folder)!r}) with the same other arguments"
    site = " --site SITE" if result.personal else ""
    return f"{verb}: {run}\nPredict: fedlgd predict {folder} IMAGE...{site}"
