"""The content of `audit.json` and its like in a run folder: what membership attacks found. Without torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

AUDIT = "audit"  # the kind of its files
FORMAT = 1
RATES = (0.01, 0.001)  # false positive rates at which true positives are reported

Interval = tuple[float, float, float]
"""Low end, value, high end of a 95 % interval."""

Kind = Literal["run", "blind", "baseline", "positive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One attack: which target, by which statistic, and how often it was right.

    kind: the audited `run`, or a control: `blind` (a release that saw neither side), a `baseline`, or `positive`
    (must leak). tpr: true positive rate by false positive rate; None: not measurable with so few images. exact: its
    Clopper-Pearson interval. roc: false positive rate, true positive rate, low, high. worst: the 99th percentile of
    the area over single images. accuracy: of the attacked models, mean over sites.
    """

    label: str
    kind: Kind
    target: Literal["model", "virtual", "anchors", "updates", "releases"]
    statistic: str
    federations: int
    n_in: int
    n_out: int
    auc: Interval
    tpr: Mapping[str, Interval | None]
    exact: Mapping[str, tuple[float, float] | None]
    roc: tuple[tuple[float, float, float, float], ...] = ()
    accuracy: float | None = None
    epsilon_lower: float | None = None
    worst: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """(epsilon, delta) of each training image, and the Gaussian-DP parameter of the whole budget.

    simulation: the noise came from a public key, so that nothing is protected.
    """

    epsilon: float
    delta: float
    mu: float
    simulation: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """All findings of one audit of one site of a run."""

    format: int
    attack: Literal["rmia", "lira", "paper"]
    site: str
    images: int
    federations: int
    findings: tuple[Finding, ...]
    settings: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    promised: Promise | None = None
    notes: tuple[str, ...] = ()
