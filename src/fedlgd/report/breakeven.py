"""After how many rounds training on virtual data has cost the sites less than training on the real data would.

    real, a round:   3 F sum_c E n_c       (steps times batch in place of E n_c where a run counts steps)
    own, so far:     what the sites were charged in the phases distil and train

F is the forward pass of one image, n_c the real images of a sampled site. Rounds after the last on record are
taken to cost what such rounds cost before: selected ones, as the settings schedule them, and the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import fmean

import msgspec

from fedlgd.report.groups import Group
from fedlgd.report.run import Round, Run

SITE_PHASES = ("distil", "train")
FARTHEST = 100_000  # rounds that are looked ahead


@dataclass(frozen=True, slots=True)
class BreakEven:
    """FLOPs of all sites in a mean round, and the round from whose end on the total is lower (None: never)."""

    label: str
    real: float
    own: float
    upfront: float
    without: int | None
    including: int | None


@dataclass(frozen=True, slots=True)
class _Selected:
    first: int = 0
    every: int = 1
    count: int = 0

    @property
    def rounds(self) -> range:
        return range(self.first, min(self.first + self.every * self.count, FARTHEST), max(1, self.every))


@dataclass(frozen=True, slots=True)
class _Part:
    selected: _Selected = _Selected()


@dataclass(frozen=True, slots=True)
class _Local:
    epochs: int
    batch: int
    steps: int = 0

    def images(self, size: int) -> int:
        """How many images a site of this size passes through the network in a round."""
        return self.steps * min(self.batch, size) if self.steps else self.epochs * size


@dataclass(frozen=True, slots=True)
class _Settings:
    local: _Local
    anchors: _Part = field(default_factory=_Part)
    refine: _Part = field(default_factory=_Part)


def break_evens(groups: Sequence[Group]) -> tuple[BreakEven, ...]:
    """One for each method that trains on virtual data, from its counted run with the lowest seed."""
    found = (_break_even(group.counted[0]) for group in groups)
    return tuple(each for each in found if each)


def crossing(upfront: float, own: Sequence[float], later: float, real: float) -> int | None:
    """The smallest T from which on  upfront + own_0 + ... + own_{T-1} < T real;  `later`: a round beyond `own`."""
    totals = accumulate(own, initial=upfront)
    gaps = [total - rounds * real for rounds, total in enumerate(totals)]
    if later >= real:
        return None
    if gaps[-1] >= 0:
        return len(own) + int(gaps[-1] / (real - later)) + 1
    return max(rounds for rounds, gap in enumerate((0.0, *gaps[1:])) if gap >= 0) + 1


def _break_even(run: Run) -> BreakEven | None:
    rounds = [record for record in run.records if record.round >= 0]
    try:
        settings = msgspec.convert(run.settings, _Settings)
    except msgspec.ValidationError:
        return None
    if not rounds or not _is_virtual(run):
        return None
    real = fmean(_real(run, record, settings.local) for record in rounds)
    own, later = _projected(rounds, {*settings.anchors.selected.rounds, *settings.refine.selected.rounds})
    upfront = sum(_at_sites(record) for record in run.records if record.round < 0)
    spent = fmean(map(_at_sites, rounds))
    return BreakEven(
        run.label, real, spent, upfront, crossing(0.0, own, later, real), crossing(upfront, own, later, real)
    )


def _is_virtual(run: Run) -> bool:
    return any("virtual" in record.flags for record in run.records if record.round < 0)


def _real(run: Run, record: Round, local: _Local) -> float:
    sizes = [site.train for site in run.manifest.data.sites if site.name in record.sampled]
    return 3 * run.manifest.net.flops * sum(map(local.images, sizes))


def _at_sites(record: Round) -> float:
    return sum(record.flops.get(phase, 0.0) for phase in SITE_PHASES)


def _projected(rounds: Sequence[Round], selected: set[int]) -> tuple[list[float], float]:
    """The cost of every round until the last selected one, and of a round after it."""
    spent = {record.round: _at_sites(record) for record in rounds}
    overall = fmean(spent.values())
    mean = {
        kind: fmean([cost for t, cost in spent.items() if (t in selected) is kind] or [overall])
        for kind in (True, False)
    }
    end = max(*spent, *selected) + 1 if selected else max(spent) + 1
    return [spent.get(t, mean[t in selected]) for t in range(end)], mean[False]
