"""A federation, nets and methods small enough that a whole run takes a fraction of a second."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlgd.core import losses
from fedlgd.core.net import Net
from fedlgd.core.types import LabelledSet, Params, ServerState, Site, SiteState, Stream
from fedlgd.data.federation import Federation, from_arrays
from fedlgd.engines.registry import Loop
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.storage import RamStates, RamStorage
from fedlgd.methods import registry
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.fedlgd import FedLGD
from fedlgd.methods.parts import Part
from fedlgd.methods.regularisers import Regularised
from fedlgd.nets.registry import build_net
from fedlgd.rundir.records import RoundRecord

SIDE = 8
CLASSES = 3
WIDTH = 4
NAMES = ("ape", "bee", "cat")

SETTINGS = {
    "local.batch": 4,
    "local.lr": 0.05,
    "distil.per_class": 2,
    "distil.steps": 2,
    "distil.real_per_class": 4,
    "distil.plan": "exact",
    "distil.width": 0,
    "distil.smooth": 0.0,
}
"""What every tiny method shares; `FEDLGD` is what FedLGD has beyond it: tau = {0, 2}."""

FEDLGD = {
    "refine.steps": 3,
    "refine.real_per_class": 4,
    "refine.selected.every": 2,
    "refine.selected.count": 2,
    "anchors.per_class": 2,
    "anchors.plan": "exact",
    "anchors.steps": 2,
    "anchors.selected.every": 2,
    "anchors.selected.count": 2,
}

SLOW = ("distil.steps", "distil.real_per_class", "refine.real_per_class", "anchors.steps")
"""Numbers of a preset that would take hours."""


def cross_entropy(net: Net, params: Params, batch: LabelledSet) -> Tensor:
    """Of a batch under a model."""
    return losses.cross_entropy(net(params, batch.x).logits, batch.y)


def federation(
    names: Sequence[str] = NAMES,
    train: int = 6,
    test: int = 4,
    classes: int = CLASSES,
    side: int = SIDE,
    missing: Mapping[str, int] | None = None,
) -> Federation:
    """RGB images, `train` and `test` per class and site. A class is where the image is bright, a site has its own
    colour cast; site `s` has no training image of class `missing[s]`."""
    missing = missing or {}
    arrays = {
        name: (
            *_images(name, "train", [k for k in range(classes) if missing.get(name) != k], train, side),
            *_images(name, "test", range(classes), test, side),
        )
        for name in names
    }
    return from_arrays(
        arrays, classes=[f"class {k}" for k in range(classes)], name="tiny", min_per_class=0 if missing else 1
    )


def _images(site: str, part: str, classes: Sequence[int], count: int, side: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng([*site.encode(), len(part)])
    cast = np.random.default_rng([*site.encode()]).uniform(0, 90, size=3)
    labels = np.repeat(np.array(classes), count)
    images = random.uniform(0, 60, size=(len(labels), side, side, 3)) + cast
    for image, k in zip(images, labels, strict=True):
        image[2 * k : 2 * k + 2] += 100
    return images.astype(np.uint8), labels


def net(shape: tuple[int, int, int] = (3, SIDE, SIDE), classes: int = CLASSES, **settings: Any) -> Net:
    return build_net("convnet", shape, classes, {"depth": 2, "width": WIDTH} | settings)


def forward_flops(side: int = SIDE, classes: int = CLASSES, width: int = WIDTH) -> int:
    """2 * multiply-adds of the tiny ConvNet, counted by hand: two 3x3 convolutions and the linear layer."""
    first = side * side * 9 * 3 * width
    second = (side // 2) ** 2 * 9 * width * width
    head = (side // 4) ** 2 * width * classes
    return 2 * (first + second + head)


def param_count(side: int = SIDE, classes: int = CLASSES, width: int = WIDTH) -> int:
    """Weights and biases of two convolutions, scale and shift of two norms, the linear layer."""
    first, second = 9 * 3 * width + width, 9 * width * width + width
    return first + second + 2 * 2 * width + (side // 4) ** 2 * width * classes + classes


def params(a: Net, seed: int = 0) -> Params:
    return a.init(Stream(seed).at("test"))


def double(tree: Params) -> Params:
    return {k: v.double() if v.is_floating_point() else v for k, v in tree.items()}


def labelled(a: Net, per_class: int = 2, seed: int = 0, dtype: torch.dtype = torch.float32) -> LabelledSet:
    """Random network inputs, sorted by class."""
    x = torch.randn(a.classes * per_class, *a.shape, generator=Stream(seed).generator("images"), dtype=dtype)
    return LabelledSet(x, torch.arange(a.classes).repeat_interleave(per_class))


def site_of(data: LabelledSet, name: str = "ape", classes: int = CLASSES) -> Site:
    return Site(name, data, data, tuple(f"class {k}" for k in range(classes)))


def settings(method: Any, values: Mapping[str, Any]) -> Any:
    """A copy of a nest of dataclasses with values set by dotted path."""
    for path, value in values.items():
        first, _, rest = path.partition(".")
        if isinstance(method, Regularised) and first == method.term.section:
            first = "term"
        if isinstance(method, Part) and first not in {f.name for f in fields(method)}:
            method = replace(method, method=settings(method.method, {path: value}))
            continue
        method = replace(method, **{first: settings(getattr(method, first), {rest: value}) if rest else value})
    return method


def fedavg(**values: Any) -> FedAvg:
    """Tiny FedAvg; a double underscore in a name is a dot: `local__batch=8`."""
    return settings(FedAvg(train_on="virtual"), SETTINGS | _dotted(values))


def fedlgd(preset: str = "paper", **values: Any) -> FedLGD:
    """Tiny FedLGD; the preset wins over tiny settings except for the numbers that make it slow."""
    own = {k: v for k, v in FedLGD.presets[preset].items() if k not in SLOW}
    fast = {"distil.net": "same"} if preset == "official" else {}
    return settings(FedLGD(), SETTINGS | FEDLGD | own | fast | _dotted(values))


def _dotted(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name.replace("__", "."): value for name, value in values.items()}


def stacked(name: str, **own: Any) -> Any:
    """A method by its whole name, such as `fedavg+anchors`, with its default settings but for `own`."""
    recipe = registry.recipe(name)
    return recipe.make(recipe.settings(**own))


class Kept(RamStorage):
    """The memories of both halves of a simulated run."""

    def __init__(self, states: Any = None) -> None:
        super().__init__()
        self.states = states or RamStates()

    def site(self, name: str) -> SiteState:
        """A site's state after the last commit."""
        return self.states.load(name, self.version(name))


def play(method: Any, data: Federation, using: Net, plan: RoundSettings, memory: Kept, engine: Any = Loop()) -> Any:
    return engine.run(method, data, using, plan, memory, memory.states)


class Run:
    """All that happened in a run: records, the server's state after each, and the memory."""

    def __init__(
        self,
        method: Any,
        data: Federation,
        plan: RoundSettings,
        memory: Kept | None = None,
        using: Net | None = None,
        rounds: int | None = None,
    ) -> None:
        self.memory = memory or Kept()
        self.names = list(data.by_name)
        self.records: list[RoundRecord] = []
        self.states: list[ServerState] = []
        self.virtual: list[dict[str, Tensor]] = []
        for record in play(method, data, using or net(classes=len(data.classes)), plan, self.memory):
            self.records.append(record)
            self.states.append(self.memory.server())
            sites = {name: self.memory.site(name) for name in self.names}
            self.virtual.append({k: s.virtual.images.clone() for k, s in sites.items() if s.virtual})
            if rounds is not None and record.round + 1 == rounds:
                break


def equal(a: Params, b: Params) -> bool:
    """The same bits under the same names."""
    return a.keys() == b.keys() and all(torch.equal(v, b[k]) for k, v in a.items())


def without_seconds(records: Sequence[RoundRecord]) -> list[RoundRecord]:
    return [replace(record, wall=0.0, seconds={}, cpu={}) for record in records]
