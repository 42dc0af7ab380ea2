"""Regularisers by name: losses between features and anchors, and terms for the loss of any method."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedlgd.core.errors import SettingError, did_you_mean
from fedlgd.core.losses import class_means, mean_gap, mmd_rbf, supervised_contrastive
from fedlgd.core.settings import import_object
from fedlgd.core.tree import only, sqnorm, sub
from fedlgd.core.types import Broadcast, Params, Site, SiteState
from fedlgd.methods.common import Batch, Embedded, Term, fit
from fedlgd.methods.parts import Part, qualified
from fedlgd.methods.protocol import Fit, Net, Settings, Stream, Trained, Visit, setting

# Losses between features and anchors


def contrastive(z: Embedded, pull: "Pull") -> Tensor:
    """L_Con: `core.losses.supervised_contrastive` over the local part of the batch and all anchors."""
    if not pull.repeat:
        return supervised_contrastive(z.features, z.labels, pull.temperature)
    rows = torch.cat([z.batch, torch.arange(z.local, len(z.labels))])
    return supervised_contrastive(z.features[rows], z.labels[rows], pull.temperature)


def rbf(z: Embedded, pull: "Pull") -> Tensor:
    """RBF-MMD between the batch and all anchors, without class labels."""
    return mmd_rbf(z.features[z.batch], z.features[z.local :])


def means(z: Embedded, pull: "Pull") -> Tensor:
    """Eq. 1 between the local part of the batch and the anchors, over the classes of the batch."""
    m, classes = z.local, z.labels[: z.local].unique()
    here = class_means(z.features[:m], z.labels[:m], classes)
    return mean_gap(class_means(z.features[m:], z.labels[m:], classes), here)


PULLS: dict[str, Callable[[Embedded, "Pull"], Tensor]] = {
    "contrastive": contrastive,
    "mmd-rbf": rbf,
    "mmd-means": means,
}


@dataclass(frozen=True, kw_only=True)
class Pull(Settings):
    """The regulariser that aligns a site's features with the anchors, off in selected rounds: weight * loss."""

    section: ClassVar[str] = "pull"

    weight: float = setting(10.0, "Weight of the regulariser, lambda; 0: off.", least=0)
    temperature: float = setting(0.07, "Temperature of the contrastive loss.", above=0)
    loss: str = setting(
        "contrastive", "`contrastive`, `mmd-rbf`, `mmd-means`, or your own function(embedded, pull) as module:name."
    )
    repeat: bool = setting(False, "Anchors in the batch count twice, as in the released code.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in PULLS and ":" not in self.loss:
            known = [*map(repr, PULLS)]
            raise SettingError("pull-unknown", loss=self.loss, hint=did_you_mean(self.loss, PULLS), available=known)

    def __call__(self, z: Embedded) -> Tensor:
        loss = PULLS.get(self.loss) or import_object(self.loss, "pull.loss")
        value: Tensor = self.weight * loss(z, self)
        return value


# Terms for any method


@dataclass(frozen=True, kw_only=True)
class Regulariser(Settings):
    """A term for the loss of any method: `--method fedlgd+proximal`. Subclasses implement `term`."""

    def __init_subclass__(cls) -> None:
        cls.section = cls.__dict__.get("section") or cls.__name__.lower()

    @abstractmethod
    def term(self, msg: Broadcast, state: SiteState, net: Net) -> Term | None:
        """The term in this round at this site, or None."""


def proximal(w: Params, start: Params, mu: float, trainable: frozenset[str]) -> Tensor:
    """mu/2 ||w - theta_t||^2 over the trainable parameters."""
    return mu / 2 * sqnorm(sub(only(w, trainable), only(start, trainable)))


@dataclass(frozen=True, kw_only=True)
class Proximal(Regulariser):
    """mu/2 ||w - theta_t||^2 (FedProx, Li et al., MLSys 2020)"""

    section: ClassVar[str] = "proximal"

    mu: float = setting(0.01, "Weight of the proximal term; 0: off.", least=0)

    def term(self, msg: Broadcast, state: SiteState, net: Net) -> Term | None:
        shared = net.trainable & msg.params.keys()  # personalised methods send only a part of the model, or nothing

        def near(w: Params, batch: Batch) -> Tensor:
            return proximal(w, msg.params, self.mu, shared)

        return near if self.mu and shared else None


REGULARISERS: dict[str, type[Regulariser]] = {"proximal": Proximal}


@dataclass(frozen=True, kw_only=True)
class Regularised(Part):
    """Adds a term to the loss of any method."""

    kind: ClassVar[str] = "regulariser"

    term: Regulariser

    @property
    def sections(self) -> dict[str, Settings]:
        return {self.term.section: self.term}

    @property
    def stack(self) -> str:
        return qualified(type(self.term), self.term.section)

    @property
    def title(self) -> str:
        return self.term.section

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        extra = self.term.term(msg, state, net)

        def regularised(*given: Any, terms: Sequence[Term] = (), **more: Any) -> Trained:
            return fit(*given, terms=[*terms, extra], **more)

        return self.method.site(msg, state, site, net, rng, regularised if extra else fit)
