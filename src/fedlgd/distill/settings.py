"""The settings of distillation, and of the privacy that it promises. `fedlgd.dp` keeps the promise."""

import math
import os
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar, Literal, Self

from fedlgd.core.errors import PrivacyError, SettingError, check
from fedlgd.core.settings import Settings, setting
from fedlgd.distill.augment import OPERATIONS

STARTS = ("statistics", "noise", "mean-image", "real", "kmeans", "neighbours")
PICKS = ("real", "kmeans")  # virtual images that are private images
SET_SUFFIXES = (".npz", ".safetensors")  # of files with a virtual set

Match = Literal["means", "moments", "kernel"]
Plan = Literal["bank", "exact"]
Statistics = Literal["class", "site"]
Optimiser = Literal["sgd", "adam"]
Adjacency = Literal["add-remove", "replace"]
Short = Literal["fewer", "refuse"]

TUNED_COUNT = 10  # virtual images of a class, for which `distil.lr` is
MAX_EPSILON = 100.0  # larger values promise nothing


@dataclass(frozen=True, kw_only=True)
class Budget(Settings):
    """An (epsilon, delta) promise for each training image of a site.

    `total` is what a site may spend in all runs together, on each training image and on each test image.
    `test_key` replaces the secret of the site, for tests and simulations: anyone can compute the noise. Nothing is
    protected then, and no ledger is kept.
    """

    protects: ClassVar[Literal["image", "site"]] = "image"

    epsilon: float = setting(0.0, "Privacy budget of this run at each site; 0 or inf: no noise.", least=0)
    delta: float = setting(1e-5, "Probability of failure; below 1 / images of a site.", above=0, below=0.1)
    adjacency: Adjacency = setting(
        "add-remove", "What stays hidden: that an image was there (`add-remove`), or which one it was (`replace`)."
    )
    total: float = setting(0.0, "Budget of a site over all its runs; 0: the budget of this run.", least=0)
    counts: float = setting(0.01, "Share of the budget for the number of images per class.", above=0, below=0.5)
    scores: float = setting(
        0.0,
        "Privacy budget of each test image for all scores of a run; 0: scores are exact.",
        least=0,
        most=MAX_EPSILON,
    )
    test_key: str = setting("", "For tests: a public key instead of the site's secret. No privacy, no ledger.")

    def __post_init__(self) -> None:
        super().__post_init__()
        path = f"{self.section}.epsilon"
        possible = self.epsilon <= MAX_EPSILON or math.isinf(self.epsilon)
        check(possible, path, self.epsilon, f"use {MAX_EPSILON:g} or less, or 0 for no noise")
        if self.on and 0 < self.total < self.epsilon:
            raise SettingError("total-below-epsilon", section=self.section, total=self.total, epsilon=self.epsilon)
        known = not self.scores or (self.on and self.scores <= self.limit)
        check(known, f"{self.section}.scores", self.scores, f"use at most {path}, which is {self.epsilon:g}")

    @property
    def on(self) -> bool:
        return 0 < self.epsilon < math.inf

    @property
    def limit(self) -> float:
        return self.total or self.epsilon

    @property
    def promise(self) -> str:
        """(epsilon, delta) = (4, 1e-05), add or remove one image"""
        relation = {"add-remove": "add or remove one image", "replace": "replace one image"}[self.adjacency]
        return f"(epsilon, delta) = ({self.epsilon:g}, {self.delta:g}), {relation}"

    @property
    def statement(self) -> str:
        """What is promised, in one sentence."""
        if self.test_key:
            return f"Simulation, no privacy: the noise comes from {self.section}.test_key, which is public."
        scores = f"epsilon {self.scores:g} for each of them" if self.scores else "not covered"
        run, together = "", ""
        if self.limit > self.epsilon:
            run, together = " in this run", f" All runs of a site together: epsilon at most {self.limit:g}."
        return f"Privacy of each training image{run}: {self.promise}.{together} Scores on test images: {scores}."


@dataclass(frozen=True, kw_only=True)
class Private(Budget):
    """Differentially private distillation: a site adds noise to sums of clipped features, once per sum.

    The budget is divided into shares of mu^2: `counts`, `start` (of the initial images `mean-image`), `refine`, and
    the rest for the first virtual set. A method that does not refine does not spend the share `refine`.
    """

    section: ClassVar[str] = "distil.private"

    start: float = setting(0.1, "Share of the budget for the initial images `mean-image`.", above=0, below=0.5)
    refine: float = setting(0.3, "Share of the budget for refinement; 0: none.", least=0, below=0.9)
    releases: int = setting(
        300, "Noisy sums for the first virtual set, each used again; at most `distil.steps`.", least=1, most=10_000
    )
    blocks: int = setting(10, "Blocks of steps; new sums are released before each.", least=1, most=10_000)
    clip: float = setting(0.6, "Clipping norm, relative to the feature norm of noise images.", above=0, most=100)
    rate: float = setting(1.0, "Part of the images in each sum, drawn at random in secret.", above=0, most=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        left = f"with counts {self.counts:g} and start {self.start:g} nothing is left for the first virtual set"
        check(self.counts + self.start + self.refine < 1, "distil.private.refine", self.refine, left)
        if self.on and self.rate < 1 and self.adjacency == "replace":
            raise SettingError("rate-with-replace")


@dataclass(frozen=True, kw_only=True)
class GradientBudget(Budget):
    """Noisy sums of clipped gradients, in all rounds of a run together."""

    section: ClassVar[str] = "dp"

    clip: float = setting(1.0, "Clipping norm of the gradient of an image.", above=0)
    rounds: int = setting(0, "Rounds that share the budget; 0: all rounds of the run.", least=0, most=1_000_000)

    def shrunk(self) -> Self:
        """One round that spends nothing, for an estimate of the time."""
        return replace(self, rounds=1, test_key="estimate")


@dataclass(frozen=True, kw_only=True)
class Distil(Settings):
    """How a site distils its images into a virtual set.

    Plan `exact` draws a network and an augmentation for every step, as published. Plan `bank` draws `pairs` of
    them, computes their real class means once, and takes `reuse` steps with each pair before it draws new pairs.
    """

    section: ClassVar[str] = "distil"

    per_class: int = setting(10, "Virtual images per class.", least=1, most=100_000)
    short: Short | None = setting(
        None,
        "A class with fewer images than `per_class`: `fewer` virtual images of it (default), or `refuse` to run.",
    )
    steps: int = setting(2000, "SGD steps on the pixels; 0 keeps the initial images.", least=0, most=10_000_000)
    match: Match = setting(
        "means",
        "Features of a class have the same `means` (Eq. 1), means and stds (`moments`), or MMD 0 (`kernel`).",
    )
    plan: Plan = setting("bank", "`exact`, as published, or `bank`, which reuses real class means.")
    pairs: int = setting(10, "Pairs of network and augmentation in the bank.", least=1, most=100_000)
    reuse: int = setting(2, "Steps of plan `bank` with each pair.", least=1, most=10_000_000)
    real_per_class: int = setting(32, "Real images per class in a draw.", least=1, most=10_000_000)
    lr: float = setting(1.0, "Pixel learning rate; Eq. 1 with `bank`: times n / 10 for n > 10 per class.", above=0)
    momentum: float = setting(0.5, "SGD momentum for the pixels.", least=0, below=1)
    smooth: float = setting(1.5, "Strength of gradient smoothing (low frequencies first); 0: plain SGD.", least=0)
    start: str = setting(
        "statistics",
        "Initial images: `statistics`, `noise`, `mean-image`, `neighbours`, `real`, `kmeans`, or a file of sets.",
    )
    tiles: int = setting(1, "Small pictures along each side of a virtual image: tiles^2 in one.", least=1, most=16)
    statistics: Statistics = setting("class", "Statistics per `class`, or per `site` as in the released code.")
    start_scale: float = setting(0.3, "Factor on the std for `statistics`; 1: as measured.", least=0)
    augment: tuple[str, ...] = setting(
        ("color", "crop", "cutout", "scale", "rotate"), "Operations of the siamese augmentation; []: off."
    )
    net: str = setting("same", "Random networks: `same` architecture as the run, or the name of a network.")
    width: int = setting(32, "Width of the random networks; 0: their default width.", least=0, most=100_000)
    private: Private = Private()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_start("distil.start", self.start, STARTS)
        for name in self.augment:
            if name not in OPERATIONS:
                raise SettingError("augmentation-unknown", name=name, available=[*OPERATIONS])
        if not self.private.on:
            return
        if self.tiles > 1:
            raise PrivacyError("private-tiles")
        if self.start in (*PICKS, "neighbours"):
            raise PrivacyError("private-start-copies", start=self.start)
        if is_file_name(self.start):
            raise PrivacyError("private-start-file", start=self.start)
        if self.plan == "exact":
            raise PrivacyError("private-plan-exact", steps=self.steps)
        if self.match != "means":
            raise PrivacyError("private-match", match=self.match)
        if 0 < self.steps < self.private.releases:  # a sum that no step uses would only add to the noise
            object.__setattr__(self, "private", replace(self.private, releases=self.steps))

    @property
    def pictures(self) -> int:
        """Pictures per class."""
        return self.per_class * self.tiles**2

    @property
    def distinct(self) -> int:
        """The different pairs of network and augmentation in all steps."""
        return math.ceil(self.steps / (1 if self.plan == "exact" else self.reuse))

    def images_of(self, real: int) -> int:
        """The virtual images of a class with so many real ones: as many, but at most `per_class`.

        A class with fewer than `real_per_image` has one, in which images are repeated.
        """
        return min(self.per_class, max(real // self.real_per_image, min(real, 1)))

    @property
    def real_per_image(self) -> int:
        """The different real images of which a virtual one is made at its start."""
        return self.tiles**2 if self.start in PICKS else 1

    @property
    def made_from(self) -> dict[str, Any]:
        """What a virtual set depends on. `short` only says whether; sets are older than `match`, and than a rate
        that grows with their images."""
        without = ("short", "match") if self.match == "means" else ("short",)
        grows = {"grows": True} if self.plan == "bank" and self.per_class > TUNED_COUNT else {}
        return {name: value for name, value in asdict(self).items() if name not in without} | grows

    @property
    def optimiser(self) -> Optimiser:
        """Of the pixels."""
        return "sgd"

    def shrunk(self) -> "Distil":
        """Settings with one draw and its steps, enough to measure the cost of a step."""
        if self.private.on:
            few = replace(self.private, releases=1, blocks=1, test_key="estimate")
            return replace(self, private=few, steps=min(self.steps, max(1, self.steps // self.private.releases)))
        return replace(self, pairs=1, steps=min(self.steps, 1 if self.plan == "exact" else self.reuse))


@dataclass(frozen=True, kw_only=True)
class Refinement(Distil):
    """The settings of a refinement: those of the first distillation, and an optimiser."""

    optimiser: Optimiser = "sgd"


def check_start(setting: str, start: str, words: tuple[str, ...]) -> None:
    if start not in words and not is_file_name(start):
        raise SettingError("start-unknown", setting=setting, start=start, words=words)


def is_file_name(start: str) -> bool:
    """Whether a setting `start` names a file or a folder, and not a kind of start."""
    return os.sep in start or start.endswith(SET_SUFFIXES)
