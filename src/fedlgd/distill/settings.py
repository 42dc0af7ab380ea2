"""The settings of distillation."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from fedlgd.core.errors import PrivacyError, SettingError
from fedlgd.core.settings import Settings, setting
from fedlgd.distill.augment import OPERATIONS
from fedlgd.distill.init import PICKS, STARTS, Statistics, check_start, is_file_name
from fedlgd.distill.optim import Descent, Optimiser
from fedlgd.dp.budget import Private

Plan = Literal["bank", "exact"]


@dataclass(frozen=True, kw_only=True)
class Distil(Settings):
    """How a site distils its images into a virtual set.

    Plan `exact` draws a network and an augmentation for every step, as published. Plan `bank` draws `pairs` of
    them, computes their real class means once, and takes `reuse` steps with each pair before it draws new pairs.
    """

    section: ClassVar[str] = "distil"

    per_class: int = setting(10, "Virtual images per class.", least=1, most=100_000)
    steps: int = setting(2000, "SGD steps on the pixels; 0 keeps the initial images.", least=0, most=10_000_000)
    plan: Plan = setting("bank", "`exact`, as published, or `bank`, which reuses real class means.")
    pairs: int = setting(10, "Pairs of network and augmentation in the bank.", least=1, most=100_000)
    reuse: int = setting(2, "Steps of plan `bank` with each pair.", least=1, most=10_000_000)
    real_per_class: int = setting(32, "Real images per class in a draw.", least=1, most=10_000_000)
    lr: float = setting(1.0, "Learning rate of the pixels.", above=0)
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
                raise SettingError(f"distil.augment has {name!r}; available: {', '.join(OPERATIONS)}")
        if self.private.on:
            self._check_private()
            if 0 < self.steps < self.private.releases:  # a sum that no step uses would only add to the noise
                object.__setattr__(self, "private", replace(self.private, releases=self.steps))

    def _check_private(self) -> None:
        """Refuse what differential privacy does not cover."""
        if self.tiles > 1:
            raise PrivacyError("distil.tiles is above 1; with distil.private.epsilon use distil.tiles=1")
        if self.start in (*PICKS, "neighbours"):
            raise PrivacyError(
                f"distil.start is {self.start!r}, which copies private images into the virtual set; with "
                "distil.private.epsilon use distil.start=noise, statistics or mean-image"
            )
        if is_file_name(self.start):
            raise PrivacyError(
                f"distil.start is {self.start!r}, and the ledger does not know what made its images; with "
                "distil.private.epsilon use distil.start=noise, statistics or mean-image"
            )
        if self.plan == "exact":
            raise PrivacyError(
                f"distil.plan is 'exact', which would ask the private images {self.steps:,} times; with "
                "distil.private.epsilon use distil.plan=bank, which releases distil.private.releases sums and uses "
                "each of them again"
            )

    @property
    def pictures(self) -> int:
        """Pictures per class."""
        return self.per_class * self.tiles**2

    def descent(self) -> Descent:
        """A new optimiser of the pixels."""
        return Descent(self.lr, self.momentum, self.smooth)

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

    def descent(self) -> Descent:
        return Descent(self.lr, self.momentum, self.smooth, self.optimiser)
