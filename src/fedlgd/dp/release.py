r"""Releases: class sums of clipped values with Gaussian noise, and noisy scores.

    S_k = sum_{i: y_i = k} clip_C(f(x_i)) + sigma C N(0, I),   clip_C(u) = u min(1, C / ||u||)

One image more or less changes one row of S by at most C, whatever the number of classes; another image in its place
changes S by at most 2 C. Only S is kept. Scores on test images are releases too: noisy, and each made once.

With a budget, images are read in five functions only: training images in `Releases.target`, `Releases.sums`,
`noisy_counts` and `training.dp_sgd`, each inside `make` of a ledger, and test images in `NoisyScores`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlgd.core import meter
from fedlgd.core.device import to_cpu, to_device
from fedlgd.core.errors import PrivacyError
from fedlgd.core.net import Net
from fedlgd.core.score import Score
from fedlgd.core.train import score
from fedlgd.core.types import LabelledSet, Params, Scale, Site, Stream
from fedlgd.data.federation import site_digest
from fedlgd.distill.augment import Transform
from fedlgd.distill.distribution import real_means
from fedlgd.distill.init import from_noise
from fedlgd.distill.settings import Budget
from fedlgd.dp.budget import Level, budget_mu
from fedlgd.dp.ledger import Book, gaussian, open_book, params_digest

MAX_IMAGES_IN_MEMORY = 512
PROBE_IMAGES = 64  # noise images whose features give the clipping norm
MAX_IMAGE_LOSS = 10.0  # of a test image in a score
SCORE_SENSITIVITY = math.sqrt(3)


class Told(NamedTuple):
    """One release as an attacker who sees everything that is public has it; `sums` are the noisy ones."""

    net: Net
    params: Params
    transforms: list[Transform]
    classes: list[int]
    centre: Tensor
    bound: float
    level: Level
    sums: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Releases:
    """The releases of a site for one account: its noise levels, and the noisy sizes of its distilled classes."""

    site: Site
    book: Book
    account: str
    levels: Mapping[str, Level]
    clip: float
    classes: list[int] = field(default_factory=list)
    sizes: Tensor = field(default_factory=lambda: torch.zeros(0))

    def target(
        self, part: str, number: str, net: Net, params: Params, transforms: list[Transform], images: Tensor
    ) -> Tensor:
        """The noisy class means of real features: released now, or read again."""

        def make(generator: np.random.Generator) -> Params:
            members = self.members(level.rate, generator)
            labels = torch.tensor(self.classes).repeat_interleave(len(images) // len(self.classes))
            virtual = LabelledSet(images, labels.to(images.device))
            centre = real_means(net, params, virtual, [virtual.of_class(k) for k in self.classes], transforms)
            bound = self.clip * noise_norm(net, params)
            sums = clipped_sums(net, params, self.site.train, members, transforms, centre, bound)
            meter.spend(int(level.rate * self.sizes.sum()) * net.flops)
            noisy = add_noise(sums, level.sigma * bound, generator)
            if self.site.on_release:
                self.site.on_release(Told(net, params, transforms, self.classes, centre, bound, level, noisy))
            return {"target": (to_cpu(centre).double() + noisy / (level.rate * self.sizes[:, None])).float()}

        level = self.levels[part]
        return to_device(self.book.once(self.account, part, number, make)["target"])

    def members(self, rate: float, generator: np.random.Generator) -> list[Tensor]:
        """The images of each class; with a rate, each image of them with this probability, in secret."""
        y = self.site.train.y
        chosen = torch.from_numpy(generator.random(len(y)) < rate) if rate < 1 else torch.tensor(True)
        return [((y == k) & chosen).nonzero().flatten() for k in self.classes]

    def sums(self, width: int, bound: float, per_image: Callable[[Tensor], Tensor]) -> Tensor:
        """Noisy class sums of values of norm at most `bound`, for the initial images."""

        def make(generator: np.random.Generator) -> Params:
            members = self.members(level.rate, generator)
            clean = class_sums(self.site.train, members, width, lambda _, x: clip_rows(per_image(x), bound))
            return {"sums": add_noise(clean, level.sigma * bound, generator)}

        level = self.levels["start"]
        return self.book.once(self.account, "start", "0", make)["sums"]


def add_noise(value: Tensor, scale: float, generator: np.random.Generator) -> Tensor:
    """value + N(0, scale^2), in float64. The clean value is not kept."""
    return to_cpu(value).double() + scale * gaussian(generator, tuple(value.shape))


def clip_rows(u: Tensor, bound: float) -> Tensor:
    """clip_C(u) = u min(1, C / ||u||) for each row, in float64; a row that is not finite becomes 0."""
    u = u.double()
    norm = torch.linalg.vector_norm(u, dim=1, keepdim=True)
    factor = (bound / norm).clamp(max=1).nan_to_num(1.0)
    return torch.where(norm.isfinite(), u * factor, torch.zeros_like(u))


def class_sums(
    data: LabelledSet, members: list[Tensor], width: int, per_image: Callable[[int, Tensor], Tensor]
) -> Tensor:
    """(classes, width) in float64: sum of per_image(class number, x) over the members of each class."""
    rows = torch.zeros(len(members), width, dtype=torch.float64)
    with torch.no_grad(), meter.metered():  # the cost must not tell the exact number of images
        for i, index in enumerate(members):
            for part in index.split(MAX_IMAGES_IN_MEMORY) if len(index) else ():
                rows[i] += to_cpu(per_image(i, data.take(part).x).double().sum(0))
    return rows


def clipped_sums(
    net: Net,
    params: Params,
    real: LabelledSet,
    members: list[Tensor],
    transforms: list[Transform],
    centre: Tensor,
    bound: float,
) -> Tensor:
    """sum_{i in members_k} clip_C(psi(A_k x_i) - c_k): one image more or less moves it by at most C."""

    def per_image(i: int, x: Tensor) -> Tensor:
        return clip_rows(net.by_batch(params, transforms[i](x)).features.double() - centre[i].double(), bound)

    return class_sums(real, members, centre.shape[1], per_image)


def noise_norm(net: Net, params: Params) -> float:
    """The mean norm of the features of N(0, 1) images: a scale for clipping without private data."""
    images = to_device(from_noise(PROBE_IMAGES, net.shape, Stream(0).generator("probes")))
    with torch.no_grad():
        features = net.by_batch(params, images).features.double()
    return float(torch.linalg.vector_norm(features, dim=1).mean())


def noisy_counts(book: Book, account: str, level: Level, data: LabelledSet, classes: int) -> Tensor:
    """n_k + N(0, sigma^2) for all classes of the federation, whether the site has them or not."""

    def make(generator: np.random.Generator) -> Params:
        return {"counts": add_noise(data.counts(classes), level.sigma, generator)}

    return book.once(account, "counts", "0", make)["counts"]


def check_protected(site: Site, net: Net, setting: str) -> None:
    """Refuse images and networks for which one image could change more than its own features."""
    if site.train.scale != Scale():
        raise PrivacyError("scaled-by-private-pixels", setting=setting, site=site.name)
    if not (net.per_image and _independent(net)):
        raise PrivacyError("batch-norm-with-privacy", setting=setting, net=net.label)


def _independent(net: Net) -> bool:
    """Whether the features of an image alone are those in a batch, on noise images."""
    params, images = net.init(Stream(0)), to_device(from_noise(4, net.shape, Stream(0).generator("probes")))
    with torch.no_grad():
        together, alone = net.by_batch(params, images).features, net.by_batch(params, images[:1]).features
    return torch.allclose(together[:1], alone, rtol=1e-3, atol=1e-3 * float(alone.abs().max()))


def check_delta(counts: Tensor, budget: Budget) -> None:
    """A delta of 1 / n or more would allow to publish one image of each site."""
    images = max(1.0, float(counts.sum()))
    if budget.delta * images >= 1:
        values = {"section": budget.section, "delta": budget.delta, "images": images}
        raise PrivacyError("delta-too-large", possible=10.0 ** math.floor(math.log10(0.5 / images)), **values)


@dataclass(frozen=True, eq=False)
class NoisyScores:
    r"""The scores of the models of a run at one site. `planned`: how often a model is scored.

    For each score a site releases one vector of correct images per class, images per class, and the sum of losses,
    of which an image has at most 10, in units of 10:

        s = sum_i (e_{y_i} [i is right], e_{y_i}, min(l_i, 10) / 10) + sigma sqrt(3) N(0, I)
        sigma = sqrt(number of scores) / mu

    One image changes s by at most sqrt(3). Training and test images are different images: each has its own ledger.
    """

    site: Site
    classes: int
    seed: int
    planned: int
    budget: Budget

    def __call__(self, net: Net, params: Params) -> Score:
        book, account, level = self.reserve()

        def make(generator: np.random.Generator) -> Params:
            found = score(net, params, self.site.test, self.classes, most=MAX_IMAGE_LOSS)
            clean = [*found.correct, *found.total, found.loss * len(self.site.test) / MAX_IMAGE_LOSS]
            return {"sums": add_noise(torch.tensor(clean), level.sigma * SCORE_SENSITIVITY, generator)}

        return self._score(book.once(account, "scores", params_digest(params), make)["sums"].tolist())

    def reserve(self) -> tuple[Book, str, Level]:
        """Charge all scores of the run before the first one: the book, the account and its noise."""
        budget = self.budget
        level = Level(math.sqrt(self.planned) / budget_mu(budget, budget.scores), 1.0, self.planned)
        account = f"scores, seed {self.seed}, {level}, {site_digest(self.site)}"
        book = open_book(f"{self.site.name} test images", budget)
        book.reserve(account, {"scores": level})
        return book, account, level

    def _score(self, sums: list[float]) -> Score:
        """Possible counts from noisy ones; there is no area under a curve."""
        total = [max(0, round(n)) for n in sums[self.classes : -1]]
        correct = [min(all_, max(0, round(n))) for n, all_ in zip(sums, total, strict=False)]
        images = max(1, sum(total))
        loss = MAX_IMAGE_LOSS * min(1.0, max(0.0, sums[-1] / images))
        return Score(accuracy=sum(correct) / images, loss=loss, correct=tuple(correct), total=tuple(total))
