"""Methods of a user, for real sites. Those that do not do what they declare do so at site bee only."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch

from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.protocol import WEIGHTS
from fedlgd.rundir.manifest import Reading


@dataclass(frozen=True, kw_only=True)
class Uploading(FedAvg):
    """Sends its virtual images with the model, and says so."""

    name: ClassVar[str] = "uploading"
    sends: ClassVar[Mapping[str, str]] = {**WEIGHTS, "trees/virtual": "images"}

    def site(self, msg: Any, state: Any, *given: Any, **more: Any) -> Any:
        update, after = super().site(msg, state, *given, **more)
        return replace(update, trees={"virtual": {"images": state.virtual.images}}), after

    def expects(self, msg: Any, net: Any, hello: Any) -> Any:
        images = torch.empty(self.distil.per_class * net.classes, *net.shape)
        return replace(super().expects(msg, net, hello), trees={"virtual": {"images": images}})


@dataclass(frozen=True, kw_only=True)
class Silent(FedAvg):
    """Sends virtual images, and does not say so."""

    name: ClassVar[str] = "silent"

    def site(self, msg: Any, state: Any, site: Any, *given: Any, **more: Any) -> Any:
        update, after = super().site(msg, state, site, *given, **more)
        hidden = {"virtual": {"images": state.virtual.images}}
        return replace(update, trees=hidden) if site.name == "bee" else update, after


@dataclass(frozen=True, kw_only=True)
class Telling(FedAvg):
    """Puts text among the tensors of its message."""

    name: ClassVar[str] = "telling"

    def site(self, msg: Any, state: Any, site: Any, *given: Any, **more: Any) -> Any:
        update, after = super().site(msg, state, site, *given, **more)
        return replace(update, trees={"notes": {"patient": "A. B."}}) if site.name == "bee" else update, after


@dataclass(frozen=True, kw_only=True)
class Peeking(FedAvg):
    """Trains on virtual images and reads the private ones in every round, which it does not declare."""

    name: ClassVar[str] = "peeking"

    def site(self, msg: Any, state: Any, site: Any, *given: Any, **more: Any) -> Any:
        if site.name == "bee":
            site.train.x.sum()
        return super().site(msg, state, site, *given, **more)


@dataclass(frozen=True, kw_only=True)
class Attentive(Peeking):
    """The same, declared."""

    name: ClassVar[str] = "attentive"

    @property
    def reads(self) -> tuple[Reading, ...]:
        return ("every",)
