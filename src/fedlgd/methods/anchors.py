"""Anchors: the paper's global virtual data, as a part a method can hold.

The server starts them, sends them to sites whose copy is old, and moves them by gradient matching in selected
rounds. A site adds them to its cross-entropy and pulls its features to them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from fedlgd.core.errors import SettingError, check
from fedlgd.core.losses import class_means, cross_entropy, mean_gap, mmd_rbf, supervised_contrastive
from fedlgd.core.meter import phase
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.train import Objective
from fedlgd.core.types import Hello, LabelledSet, Params, ServerState, Update, VirtualSet
from fedlgd.distill.gradient import match_gradient, pseudo_gradient
from fedlgd.distill.start import from_noise, from_statistics, labels_for
from fedlgd.methods.objective import Batch, Term, added


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """tau = {first, first + every, ...}, `count` rounds; count 0 selects none."""

    first: int = 0
    every: int = 5
    count: int = 10

    def __post_init__(self) -> None:
        if self.first < 0 or self.every < 1 or self.count < 0:
            raise SettingError(
                f"selected rounds first={self.first}, every={self.every}, count={self.count}: "
                "use first >= 0, every >= 1, count >= 0"
            )

    def __contains__(self, t: int) -> bool:
        return t in range(self.first, self.first + self.every * self.count, self.every)


@dataclass(frozen=True, slots=True, kw_only=True)
class Anchors:
    """How the server makes anchors, `per_class` images a class (0: none). start: "noise" N(0,1), or "statistics"
    averaged over the sites' uploads. In `selected` rounds they move by gradient matching. plan: "exact" takes
    `steps` of SGD at `lr` and `momentum`, as published; "target" goes by L-BFGS, its first step at `lr`, until a
    row's gradient is `tolerance` from the wanted one (1 - cosine, mean over rows), or falls no more, or `steps` are
    done. in_loss: the rounds in which sites train on them, "unselected", "always" or "never"."""

    per_class: int = 10
    start: Literal["noise", "statistics"] = "noise"
    selected: Selected = Selected()
    plan: Literal["target", "exact"] = "target"
    tolerance: float = 0.02
    steps: int = 50
    lr: float = 1.0
    momentum: float = 0.5
    in_loss: Literal["unselected", "always", "never"] = "unselected"

    def __post_init__(self) -> None:
        check(self.per_class >= 0, "anchors.per_class", self.per_class, "use 0 (no anchors) or more")
        check(self.steps >= 0, "anchors.steps", self.steps, "use 0 (anchors never move) or more")
        check(self.tolerance >= 0, "anchors.tolerance", self.tolerance, "use 0 (all steps) up to 1")
        check(self.lr > 0, "anchors.lr", self.lr, "use a positive one such as 1.0")
        check(0 <= self.momentum < 1, "anchors.momentum", self.momentum, "use 0 (off) up to below 1")

    def train_in(self, t: int) -> bool:
        """Do anchors join the cross-entropy in round t?"""
        return self.in_loss == "always" or (self.in_loss == "unselected" and t not in self.selected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pull:
    """The regulariser that draws a site's features to the anchors, off in selected rounds.

    weight: lambda. loss: "contrastive", "mmd-rbf" (class-blind) or "mmd-means" (Eq. 1 on the batch).
    repeat: anchors drawn into the batch count twice, as in the released code.
    """

    weight: float = 10.0
    temperature: float = 0.07
    loss: Literal["contrastive", "mmd-rbf", "mmd-means"] = "contrastive"
    repeat: bool = False

    def __post_init__(self) -> None:
        check(self.weight >= 0, "pull.weight", self.weight, "use 0 (off) or a positive weight")
        check(self.temperature > 0, "pull.temperature", self.temperature, "use a positive one such as 0.07")


def start_anchors(how: Anchors, hellos: Sequence[Hello], net: Net, rng: Stream) -> VirtualSet:
    """N(0,1) pixels, or N(mean of the sites' class means, mean of their stds); a class nobody has is N(0,1)."""
    generator = rng.generator("anchors")
    if how.start == "noise":
        images = from_noise(net.classes * how.per_class, net.shape, generator)
    else:
        uploads = [hello.statistics for hello in hellos if hello.statistics is not None]
        mean = torch.stack(uploads).nanmean(0)
        mean = torch.where(mean.isnan(), torch.tensor([0.0, 1.0])[:, None], mean)
        images = from_statistics(mean, how.per_class, net.shape[1:], 1.0, generator)
    labels = labels_for(range(net.classes), how.per_class)
    return VirtualSet(images=images, labels=labels, origin="server", round=-1)


def pulls_in(how: Anchors, pull: Pull, t: int) -> bool:
    """Does the regulariser act in round t?"""
    return t not in how.selected and pull.weight > 0


def needed_in(how: Anchors, pull: Pull, t: int) -> bool:
    """Does a site need the anchors in round t?"""
    return how.per_class > 0 and (pulls_in(how, pull, t) or how.train_in(t))


def send_anchors(state: ServerState, site: str, needed: bool) -> VirtualSet | None:
    """The anchors if the site needs them now and holds an older version, or none."""
    stale = state.anchors is not None and state.held.get(site, -2) < state.anchors.round
    return state.anchors if needed and stale else None


def noting(updates: Iterable[Update], held: dict[str, int], version: int) -> Iterator[Update]:
    """Passes updates on and notes that these sites hold this version of the anchors now."""
    for update in updates:
        held[update.site] = version
        yield update


def move_anchors(how: Anchors, before: ServerState, params: Params, lr: float, net: Net) -> VirtualSet | None:
    """Gradient matching under the old model, towards where the average went, in selected rounds."""
    anchors = before.anchors
    if anchors is None or before.round not in how.selected or how.steps == 0:
        return anchors
    with phase("server"):
        target = pseudo_gradient(before.params, params, lr)
        moved, _ = match_gradient(anchors, net, before.params, target, how, before.round)
    return moved


def anchored(
    net: Net, local: LabelledSet, anchors: LabelledSet, pull: Pull, terms: Sequence[Term] = ()
) -> Objective:
    r"""CE(batch) + lambda * pull(Z) + terms, over batches of V^c + V^g; an index from len(local) on is an anchor.

    Z = (local part of the batch) + all anchors. Each image is embedded once, with gradient.
    """
    n = len(local)

    def loss(w: Params, index: Tensor) -> Tensor:
        mine, drawn = local.take(index[index < n]), index[index >= n] - n
        m = len(mine)
        x, y = torch.cat([mine.x, anchors.x]), torch.cat([mine.y, anchors.y])
        out = net(w, x)
        rows = torch.cat([torch.arange(m), m + drawn])
        batch = Batch(x[rows], y[rows], out.features[rows])
        ce = cross_entropy(out.logits[rows], batch.y)
        return ce + added(terms, w, batch) + pull.weight * _pull(pull, out.features, y, rows, m)

    return loss


def _pull(pull: Pull, features: Tensor, labels: Tensor, batch: Tensor, m: int) -> Tensor:
    """Rows below m are the local part of the batch, the others all anchors; `batch` names the batch's rows."""
    if pull.loss == "mmd-rbf":
        return mmd_rbf(features[batch], features[m:])
    if pull.loss == "mmd-means":
        classes = labels[:m].unique()
        here = class_means(features[:m], labels[:m], classes)
        return mean_gap(class_means(features[m:], labels[m:], classes), here)
    if pull.repeat:
        rows = torch.cat([batch, torch.arange(m, len(labels))])
        features, labels = features[rows], labels[rows]
    return supervised_contrastive(features, labels, pull.temperature)
