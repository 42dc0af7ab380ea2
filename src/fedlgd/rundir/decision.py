"""Should a site join? What it gains in accuracy against training alone, and what joining costs. Without torch.

The gain is that of the method with which sites would join, FedLGD if it is among the runs, paired over seeds. Its
interval is that of `core.intervals.gap_interval`: it covers the choice of test images and, from three seeds on, the
variation over seeds. It is not corrected for the number of sites.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from fedlgd.core.score import Score
from fedlgd.core.text import duration, number_of_bytes, percentage_points, plural, rounded_up
from fedlgd.rundir.intervals import MIN_SEEDS, gap_interval, images_needed, seed_noise

ALONE, JOINING, POOLED = "local-only", "fedlgd", "pooled"  # names of methods
MAX_NEEDED = 100_000  # test images; a larger number says that the difference is nil


@dataclass(frozen=True, slots=True, kw_only=True)
class MethodRuns:
    """The runs of one method: its scores by seed and site after the last round, and the cost of a mean run.

    competes: it is federated and has one model for all sites.
    """

    label: str
    method: str
    competes: bool
    scores: Mapping[int, Mapping[str, Score]]
    bytes: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """The gain of one site by joining: accuracies as means over seeds, and the 95 % interval of their difference.

    needed: the test images that would show this difference; None: it is told, or no number of images would.
    largest: the share of the largest class, which a model reaches that has learned nothing.
    """

    site: str
    images: int
    seeds: int
    alone: float
    joined: float
    interval: tuple[float, float]
    needed: int | None
    largest: float

    @property
    def mean(self) -> float:
        return self.joined - self.alone

    @property
    def kind(self) -> str:
        """gains, loses; or why it cannot be told: nothing-learned, too-few-images, too-few-seeds, no-difference."""
        low, high = self.interval
        if max(self.alone, self.joined) <= self.largest:
            return "nothing-learned"
        if low > 0 or high < 0:
            return "gains" if low > 0 else "loses"
        if self.needed is not None:
            return "too-few-images"
        return "no-difference" if percentage_points(self.mean) == "0.0" else "too-few-seeds"

    @property
    def range(self) -> str:
        """`+1.0 to +7.2`, in points."""
        return " to ".join(map(percentage_points, self.interval))

    @property
    def text(self) -> str:
        """The gain of this site in one sentence."""
        if self.kind in ("gains", "loses"):
            ends = " to ".join(f"{100 * end:.1f}" for end in sorted(map(abs, self.interval)))
            return f"{self.site} {self.kind} {100 * abs(self.mean):.1f} points ({ends}) by joining."
        images, seen = plural(self.images, "test image"), f"{percentage_points(self.mean)} points, {self.range}"
        if self.kind == "nothing-learned":
            shares = f"alone {100 * self.alone:.1f} %, joined {100 * self.joined:.1f} %"
            largest = f"the largest class ({100 * self.largest:.1f} % of {images})"
            return f"{self.site} cannot be told: neither model is better than always answering {largest}; {shares}."
        if self.needed is not None:
            most = "more than 100 000" if self.needed > MAX_NEEDED else f"about {rounded_up(self.needed)}"
            return f"{self.site} cannot be told with {images} ({seen}): {most} would be needed."
        if self.kind == "no-difference":
            return f"{self.site} shows no difference with {images} ({seen})."
        return f"{self.site} cannot be told with {self.seeds} seeds ({seen}): more seeds are needed."

    def plain(self) -> dict[str, Any]:
        low, high = self.interval
        found = {"site": self.site, "test": self.images, "alone": self.alone, "joined": self.joined}
        return {
            **found,
            "gain": self.mean,
            "low": low,
            "high": high,
            "needed": self.needed,
            "largest": self.largest,
            "kind": self.kind,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """What joining changes at each site, by the method of `joined` and by all others. `clock`: the time of arms."""

    alone: MethodRuns
    joined: MethodRuns
    seeds: int
    gains: tuple[Gain, ...]
    others: Mapping[str, tuple[Gain, ...]]
    unscored: tuple[str, ...] = ()
    clock: str = "CPU time"

    @property
    def title(self) -> str:
        """By joining with FedLGD, 1 of 3 sites gains accuracy, none loses and 2 cannot be told."""
        won, lost = (sum(gain.kind == kind for gain in self.gains) for kind in ("gains", "loses"))
        sites = plural(len(self.gains), "site")
        if not won and not lost:
            return f"Whether joining with {self.joined.label} pays cannot be told at any of {sites}."
        unknown = len(self.gains) - won - lost
        parts = [f"{won or 'none'} of {sites} {'gain' if won > 1 else 'gains'} accuracy"]
        parts.append(f"{lost or 'none'} {'lose' if lost > 1 else 'loses'}")
        parts += [f"{unknown} cannot be told"] if unknown else []
        return f"By joining with {self.joined.label}, {', '.join(parts[:-1])} and {parts[-1]}."

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Kind and text: a sentence for each site, what the intervals leave out, and the cost."""
        yield from ((gain.kind, gain.text) for gain in self.gains)
        for site in self.unscored:
            yield "no-score", f"{site} has no score of both: nothing can be said."
        if self.seeds < MIN_SEEDS:
            many = "One seed: the spread over seeds is not known" if self.seeds == 1 else "Two seeds are too few"
            rest = "" if self.seeds == 1 else " to know their spread"
            yield "few-seeds", f"{many}{rest}; the intervals cover the choice of test images only."
        each = number_of_bytes(self.joined.bytes / max(1, len(self.gains) + len(self.unscored)))
        took, alone = duration(self.joined.seconds), duration(self.alone.seconds)
        costs = f"moves {each} to and from each site and takes {took} of {self.clock} in all"
        yield "cost", f"A run of {self.joined.label} {costs}; training alone takes {alone} and moves no model."

    def plain(self) -> dict[str, Any]:
        """The decision for JSON; shares are between 0 and 1, `seconds` and `bytes` are those of a mean run."""
        arms = {"alone": self.alone, "joined": self.joined}
        costs = {name: {"bytes": arm.bytes, "seconds": arm.seconds} for name, arm in arms.items()}
        return {
            "title": self.title,
            **{name: arm.label for name, arm in arms.items()},
            "seeds": self.seeds,
            "sites": [gain.plain() for gain in self.gains],
            "others": {label: [gain.plain() for gain in gains] for label, gains in self.others.items()},
            "cost": {**costs, "clock": self.clock},
            "sentences": [{"kind": kind, "text": text} for kind, text in self.sentences()],
        }

    def __str__(self) -> str:
        return "\n".join((self.title, *(text for _, text in self.sentences())))


def decide(arms: Sequence[MethodRuns], clock: str = "CPU time") -> Decision | None:
    """The decision if exactly one arm is that of sites alone and another one competes; else None.

    Sites join by FedLGD, or else by the first arm that competes.
    """
    apart = [arm for arm in arms if arm.method == ALONE]
    federated = [arm for arm in arms if arm.competes and arm.method not in (ALONE, POOLED)]
    joining = sorted(federated, key=lambda arm: arm.method.partition("+")[0] != JOINING)
    if len(apart) != 1 or not joining:
        return None
    alone, joined = apart[0], joining[0]
    seeds = len(alone.scores.keys() & joined.scores.keys())
    if not seeds:
        return None
    gains = tuple(gains_of(alone, joined))
    others = {arm.label: tuple(gains_of(alone, arm)) for arm in arms if arm not in (alone, joined)}
    sites = dict.fromkeys(site for arm in (alone, joined) for scores in arm.scores.values() for site in scores)
    unscored = tuple(site for site in sites if site not in [gain.site for gain in gains])
    return Decision(
        alone=alone, joined=joined, seeds=seeds, gains=gains, others=others, unscored=unscored, clock=clock
    )


def gains_of(alone: MethodRuns, other: MethodRuns) -> Iterator[Gain]:
    """The gain at every site that has test images and scores of both methods with the same seed."""
    pairs = [(scores, other.scores[seed]) for seed, scores in alone.scores.items() if seed in other.scores]
    for site in dict.fromkeys(site for scores, _ in pairs for site in scores):
        both = [(one[site], two[site]) for one, two in pairs if site in one and site in two]
        images = min((sum(score.total) for each in both for score in each), default=0)
        if images:
            noise = seed_noise([two.accuracy - one.accuracy for one, two in both]) or 0.0
            before, after = (fmean(each[at].accuracy for each in both) for at in (0, 1))
            interval = gap_interval(after, before, images, noise)
            told, needed = interval[0] > 0 or interval[1] < 0, images_needed(after, before, noise)
            yield Gain(
                site=site,
                images=images,
                seeds=len(both),
                alone=before,
                joined=after,
                interval=interval,
                needed=None if told or needed is None else max(needed, images + 1),
                largest=max(max(score.total) / sum(score.total) for score, _ in both),
            )
