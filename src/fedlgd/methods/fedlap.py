"""FedLAP-DP (Wang et al., PoPETs 2024): sites send images with the gradients of theirs near the model

The server trains on the images of all sites, and only as far from theta_t as they describe the loss of each site.
With `dp.epsilon` the gradients of real images are noisy, and the images are computed from nothing else: all rounds
together have the promised (epsilon, delta). Without it the method is FedLAP.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from fedlgd.core import meter
from fedlgd.core.device import noise, to_cpu, to_device
from fedlgd.core.errors import PrivacyError, check
from fedlgd.core.files import digest_json
from fedlgd.core.guard import unsealed
from fedlgd.core.train import Local, score
from fedlgd.core.tree import only, sqnorm, sub
from fedlgd.core.types import (
    Broadcast,
    Hello,
    LabelledSet,
    Params,
    ServerState,
    Site,
    SiteState,
    Update,
    VirtualSet,
)
from fedlgd.distill.augment import draw_transform
from fedlgd.distill.distribution import PixelOptimiser, check_finite
from fedlgd.distill.gradient import Gradients, anchor_gradient, batch_gradients, row_distance
from fedlgd.distill.init import from_noise, labels_for
from fedlgd.distill.settings import Budget, Distil, GradientBudget
from fedlgd.methods import common, union
from fedlgd.methods.protocol import Cost, Expected, Fit, Net, Presets, Stream, Updates, Visit, setting
from fedlgd.methods.registry import register

if TYPE_CHECKING:  # a run without epsilon enters no module of `fedlgd.dp`
    from fedlgd.dp.ledger import Book

RADIUS = "radius"
VOTES: Mapping[str, Callable[[list[float]], float]] = {"min": min, "median": statistics.median, "max": max}
PUBLISHED = {
    "allow_copies": True,
    "distil.per_class": 50,
    "distil.start": "real",
    "images": "new",
    "batches": 40,
    "inner": 2,
    "search": 100,
    "local.epochs": 100,
    "local.batch": 512,
    "local.schedule": "cosine",
}


def moved_by(w: Params, theta: Params, net: Net) -> float:
    """||w - theta||_2 over all trainable parameters"""
    with torch.no_grad():
        return math.sqrt(float(sqnorm(sub(only(w, net.trainable), only(theta, net.trainable)))))


@register
@dataclass(frozen=True, kw_only=True)
class FedLAP(union.Condensing):
    r"""Site c:  S_c <- S_c - lr d/dS Dist(grad CE(A(S_c); w), g*),  g* = gradient of a real batch at w, used in
    `boost` steps; w = theta_t, moved on by SGD on S_c.  r_c = ||w - theta_t|| where SGD on S_c no longer helps.
    Server:  theta_{t+1} = SGD from theta_t on CE(union of S_c), until ||w - theta_t|| >= min_c r_c.

    With epsilon  g* = (sum_i clip_C(grad_i) + sigma C N(0, I)) / (q n), and r_c is the setting `radius`.
    """

    name: ClassVar[str] = "fedlap"
    presets: ClassVar[Presets] = {
        "paper": PUBLISHED,
        "quick": {"outer": 2, "batches": 2, "search": 3, "local.epochs": 10},
    }
    sends: ClassVar[Mapping[str, str]] = {f"trees/{union.TREE}": "images", f"trees/{RADIUS}": "radius"}

    real_batch: int = setting(256, "Expected number of real images in a gradient.", least=1, most=1_000_000)
    trajectories: int = setting(1, "Paths of w from theta_t in a round.", least=1, most=10_000)
    outer: int = setting(5, "Points w of a path at which gradients are matched.", least=1, most=10_000)
    batches: int = setting(10, "Gradients of real images at a point.", least=1, most=100_000)
    boost: int = setting(5, "Steps on the pixels with the same gradient.", least=1, most=100_000)
    inner: int = setting(2, "Epochs on the images between two points; 0: w stays at theta_t.", least=0, most=10_000)
    squared: float = setting(0.1, "Weight of the squared distance of gradients; not used with epsilon.", least=0)
    radius: float = setting(10.0, "Largest distance from theta_t, of paths and of the server.", least=0, most=1e6)
    search: int = setting(10, "Epochs to look for the radius; 0 or epsilon: it is `radius`.", least=0, most=10_000)
    vote: Literal["min", "median", "max"] = setting("min", "The radius of the server from those of the sites.")
    images: Literal["keep", "new"] = setting("keep", "Before a round: `keep` images, or `new` from `distil.start`.")
    local: Local = Local(epochs=20, batch=256, lr=0.1)
    distil: Distil = Distil(start="noise", lr=100.0, smooth=0.0)
    dp: GradientBudget = GradientBudget()

    def __post_init__(self) -> None:
        super().__post_init__()
        check(
            self.distil.tiles == 1, "distil.tiles", self.distil.tiles, "gradients of tiles are not matched; use 1"
        )
        if self.dp.on and (self.distil.start, self.images) != ("noise", "keep"):
            raise PrivacyError("start-without-noise", start=self.distil.start, images=self.images)

    @property
    def label(self) -> str:
        return "FedLAP-DP" if self.dp.on else "FedLAP"

    @property
    def budget(self) -> Budget | None:
        return self.dp if self.dp.on else None

    @property
    def gradients(self) -> int:
        """Gradients of real images in a round; with epsilon each is a release."""
        return self.trajectories * self.outer * self.batches

    @property
    def by_means(self) -> Distil:
        """What controls of an audit distil: by means, for `distil` is of gradients, in the steps of a round."""
        return Distil(per_class=self.distil.per_class, short=self.distil.short, steps=self.gradients * self.boost)

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        """Unknown: the server stops at a distance."""

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        """With epsilon a site has images of all classes, so that they do not tell which it has."""
        if not self.dp.on:
            return super().enrol(site, net, rng)
        from fedlgd.dp.training import reserve_training

        book, account = self._account(site, net, rng.seed)
        counts = reserve_training(self.dp, self._steps, site, net, book, account)
        labels = labels_for(range(net.classes), self.distil.per_class)
        images = from_noise(len(labels), net.shape, rng.generator("start"))
        virtual = to_device(VirtualSet(images=images, labels=labels, origin=site.name, round=-1))
        state = SiteState(virtual=virtual, trees={"released": {"counts": counts}})
        return state, Hello(site=site.name, counts=torch.bincount(labels))

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        form, value = union.expected_upload(net, self.distil.per_class), {"value": torch.empty(())}
        return replace(form, trees={**form.trees, RADIUS: value}, least={**form.least, f"trees/{RADIUS}/value": 0})

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = common.fit
    ) -> Visit:
        """S_c after the steps of this round, and r_c; `fit` is not used."""
        before = state if self.images == "keep" else SiteState()
        virtual = union.images_before(before, site, net, self.distil, msg.round, rng.at("start"))
        if self.dp.on:
            images, radius = self._privately(msg, state, virtual, site, net, rng), self.radius
        else:
            rate = min(1.0, self.real_batch / len(site.train))
            real = batch_gradients(net, site.train, rate, rng.generator("real"))
            images = self.condense(virtual, net, msg.params, real, rng.at("match"))
            radius = self._radius(LabelledSet(images, virtual.labels), msg.params, site, net, rng.at("search"))
        check_finite(images, self.distil.lr, f"distillation at site {site.name!r}")
        virtual = replace(virtual, images=images, round=msg.round)
        tree = union.upload_of(virtual, net.classes, self.distil.per_class)
        sent = {union.TREE: tree, RADIUS: {"value": torch.tensor(radius)}}
        return Update(site=site.name, params={}, weight=1.0, trees=sent), replace(state, virtual=virtual)

    def condense(self, virtual: VirtualSet, net: Net, theta: Params, real: Gradients, rng: Stream) -> Tensor:
        """The images after all steps; a path that is `radius` away from theta_t ends."""
        images, labels, w = virtual.images, virtual.labels, theta
        names = [name for name in theta if name in net.trainable]
        optimiser, squared = PixelOptimiser(self.distil, None), 0.0 if self.dp.on else self.squared
        with meter.phase("distil"):
            for s in meter.track("distil", self.gradients):
                if s % (self.outer * self.batches) == 0:
                    w = theta
                if s % self.batches == 0:
                    inside, gradient = moved_by(w, theta, net) < self.radius, real(w)
                if not inside:
                    continue
                transform = draw_transform(self.distil.augment, net.shape[1:], rng.generator("augment", s))
                target = gradient(transform)
                for _ in range(self.boost):
                    given = (net, w, images, labels, target, names)
                    step, _ = anchor_gradient(*given, lambda a, b: row_distance(a, b, squared), transform)
                    images = optimiser(images, step)
                if self.inner and (s + 1) % self.batches == 0:
                    how = replace(self.local, epochs=self.inner, steps=0)
                    w = common.fit_on(net, w, LabelledSet(images, labels), how, rng.at("inner", s)).params
        return images

    def _radius(self, made: LabelledSet, theta: Params, site: Site, net: Net, rng: Stream) -> float:
        """||w - theta_t|| after the epoch of SGD on the images with the smallest loss of real images."""
        w, best = theta, (float("inf"), self.radius)
        with meter.phase("train", whole=True):  # the scores, too, are work of the site
            for epoch in range(self.search):
                w = common.fit_on(net, w, made, replace(self.local, epochs=1, steps=0), rng.at(epoch)).params
                best = min(best, (score(net, w, site.train, net.classes).loss, moved_by(w, theta, net)))
        return min(self.radius, best[1])

    @property
    def _steps(self) -> Local:
        """The releases of a round, as those of DP-SGD are told."""
        return Local(batch=self.real_batch, steps=self.gradients)

    def _account(self, site: Site, net: Net, seed: int) -> tuple["Book", str]:
        from fedlgd.dp.ledger import account_name, charged_settings, open_book

        later = ("allow_copies", "distil", "dp", "local", "search", "vote")  # not settings of the releases alone
        how = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in later}
        fixed = {name: value for name, value in self.distil.made_from.items() if name != "grows"}  # the rate is
        how |= {"dp": charged_settings(self.dp), "distil": fixed}
        return open_book(site.name, self.dp), account_name("fedlap", seed, unsealed(site), net.label, how=how)

    def _privately(
        self, msg: Broadcast, state: SiteState, virtual: VirtualSet, site: Site, net: Net, rng: Stream
    ) -> Tensor:
        """The images of a round, released once: computed from noisy gradients now, or read again."""
        from fedlgd.dp import ledger, training

        book, account = self._account(site, net, rng.seed)
        counts = to_cpu(state.trees["released"]["counts"])
        level, size = training.training_level(self.dp, self._steps, counts, site.name), float(counts.sum())
        if msg.round >= self.dp.rounds:
            raise PrivacyError("round-beyond-budget", rounds=self.dp.rounds, round=msg.round + 1)

        def make(generator: np.random.Generator) -> Params:
            train = unsealed(site).train
            real = training.noisy_gradients(net, train, level, self.dp.clip, size, generator)
            with noise(rng.at("noise").number()):
                return {"images": to_cpu(self.condense(virtual, net, msg.params, real, rng.at("match")))}

        before = ledger.params_digest({**msg.params, union.TREE: virtual.images})
        number = f"round {msg.round}, {before}, {digest_json(asdict(self.local))}"
        return to_device(book.once(account, "train", number, make)["images"])

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        radii: list[float] = []

        def noted() -> Iterator[Update]:
            for update in updates:
                radii.append(float(update.trees[RADIUS]["value"]))
                yield update

        everyone = union.union_of(noted())
        bound, before = VOTES[self.vote](radii), state.params
        trained = common.fit_on(
            net, before, everyone, self.local, rng, until=lambda w: moved_by(w, before, net) >= bound
        )
        return replace(state, params=trained.params, round=state.round + 1)
