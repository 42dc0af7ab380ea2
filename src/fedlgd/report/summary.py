"""The result in words: the headline of a report, whether methods differ by more than the noise, and caveats."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TypeGuard

from fedlgd.core.settings import flat
from fedlgd.core.text import counted, duration, number_of_bytes, percentage_points, plural
from fedlgd.report.claims import undeclared
from fedlgd.report.classes import (
    LARGEST,
    MAX_SITES_IN_NOTE,
    largest_class,
    noisy_scores,
    one_class_notes,
    shows_largest,
    size_at,
)
from fedlgd.report.cost import clock, total
from fedlgd.report.groups import Group, site_names
from fedlgd.report.tables import Sentence, percent, percent_stat
from fedlgd.rundir.intervals import MIN_SEEDS, Ends, difference_interval, half_width, mean_interval, seed_noise
from fedlgd.rundir.read import Run

RULE = (
    "Accuracy on the real test images of every site after the last round, as the unweighted mean over sites. "
    "With several seeds: the mean over seeds ± the sample standard deviation."
)
WINNER = (
    " A winner is named only if the 95 % t interval of the differences between runs with the same seed excludes 0. "
    "Differences are computed before rounding."
)
MAX_CLASSES_IN_NOTE = 10  # of a site
MAX_METHODS_NAMED = 3  # methods in a headline without a winner
MIN_COST_RATIO = 1.2  # a ratio of costs that is worth a sentence; time varies a little from run to run


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean difference in accuracy over `seeds` pairs of runs, and its interval if there are enough: of 95 %, or
    of the `level` that belongs to one of several tests."""

    mean: float
    seeds: int
    interval: tuple[float, float] | None = None
    tests: int = 1

    @property
    def clear(self) -> bool:
        """Is 0 outside the interval?"""
        return self.interval is not None and (self.interval[0] > 0 or self.interval[1] < 0)

    def in_test(self, tests: int) -> "Difference":
        """With the interval of the k-th test of the same; see `half_width`."""
        if self.interval is None or tests == self.tests:
            return self
        wider = half_width(self.seeds, tests) / half_width(self.seeds, self.tests)
        half = (self.interval[1] - self.mean) * wider
        return replace(self, interval=(self.mean - half, self.mean + half), tests=tests)

    @property
    def level(self) -> str:
        return f"{100 - 5 / self.tests:.3g} %"

    @property
    def range(self) -> str:
        """` (+1.0 to +3.2)` in points, ` (too few seeds)` of two; empty for one."""
        ends = " to ".join(map(percentage_points, self.interval)) if self.interval else "too few seeds"
        return f" ({ends})" if self.seeds > 1 else ""


@dataclass(frozen=True, slots=True)
class Headline:
    """One sentence with the result, and one more for each comparison with the first method.

    winner: the method that is clearly above all others, or empty; gap: to the second best, or to its first rival.
    """

    title: str
    comparisons: tuple[Sentence, ...] = ()
    winner: str = ""
    gap: Difference | None = None

    @property
    def short(self) -> str:
        """The title without its numbers, which follow a colon."""
        return self.title.partition(": ")[0].rstrip(".")

    @property
    def numbers(self) -> str:
        return self.title.partition(": ")[2]


def headline(groups: Sequence[Group]) -> Headline:
    """The result over all groups that compete and have an evaluated round."""
    competing = [group for group in groups if group.competes] or groups
    results = [group for group in competing if group.accuracy]
    if not results:
        return Headline("No round has been evaluated yet.")
    first, *others = results
    verb = "ends" if all(each.finished for each in results) else "stands"
    low = _none_above_largest(results, verb)
    if not others:
        return Headline(low or f"{first.label} {verb} at {percent_stat(first.accuracy)} %.")
    compared = tuple(_comparison(first, other) for other in others)
    found = _of_two(first, others[0], verb, compared) if len(others) == 1 else _of_many(results, verb, compared)
    return found if low is None else Headline(low, compared, gap=found.gap)


def _of_two(first: Group, second: Group, verb: str, compared: tuple[Sentence, ...]) -> Headline:
    """The second method is the subject, whether it is higher or lower."""
    gap = difference(second, first)
    if not _clear(gap):
        return Headline(_no_winner((second, first), gap, verb), compared, gap=gap)
    numbers = f"{percent_stat(second.accuracy)} % against {percent_stat(first.accuracy)} %"
    title = f"{second.label} {verb} {_gap(gap)} {first.label}: {numbers}."
    return Headline(title, compared, second.label if gap.mean > 0 else first.label, gap)


def _of_many(results: Sequence[Group], verb: str, compared: tuple[Sentence, ...]) -> Headline:
    """The highest is named if it is clearly above every other method; else those it is not clearly above."""
    best, *others = sorted(results, key=lambda each: -each.mean)
    rivals = [other for other in others if not _clear(difference(best, other), above=True)]
    gap = difference(best, (rivals or others)[0])
    if rivals or gap is None:
        return Headline(_no_winner((best, *rivals), gap, verb), compared, gap=gap)
    place = f"{verb} highest of {len(results)} methods: {percent_stat(best.accuracy)} %"
    return Headline(f"{best.label} {place}, {_gap(gap)} {others[0].label}.", compared, best.label, gap)


def _none_above_largest(results: Sequence[Group], verb: str) -> str | None:
    """The title if no method is clearly above always the largest class; None if one is, or for equal classes."""
    if not shows_largest(results) or any(map(above_largest, results)):
        return None
    least = percent(fmean(largest_class(results).values()))
    if len(results) == 1:
        label, accuracy = results[0].label, percent_stat(results[0].accuracy)
        return f"{label} is not clearly above {LARGEST}: it {verb} at {accuracy} % against {least} %."
    best = max(results, key=lambda each: each.mean)
    place = f"the highest, {best.label}, {verb} at {percent_stat(best.accuracy)} % against {least} %"
    return f"No method is clearly above {LARGEST}: {place}."


def _no_winner(level: Sequence[Group], gap: Difference | None, verb: str) -> str:
    """The methods that no interval separates, with their numbers."""
    numbers = [f"{each.label} {percent_stat(each.accuracy)} %" for each in level[:MAX_METHODS_NAMED]]
    if len(level) > MAX_METHODS_NAMED:
        numbers.append(f"and {len(level) - MAX_METHODS_NAMED} more")
    seeds = f"over {plural(gap.seeds, 'seed')}" if gap else "without a common seed"
    return f"No clear winner {'' if verb == 'ends' else 'yet '}{seeds}: {', '.join(numbers)}."


def _clear(gap: Difference | None, above: bool = False) -> TypeGuard[Difference]:
    """Outside the noise, and not 0.0 as shown; `above`: and positive."""
    return gap is not None and gap.clear and percentage_points(gap.mean) != "0.0" and (gap.mean > 0 or not above)


def _gap(gap: Difference) -> str:
    size = percent(abs(gap.mean))
    return f"{size} {'point' if size == '1.0' else 'points'} {'above' if gap.mean > 0 else 'below'}"


def difference(subject: Group, other: Group) -> Difference | None:
    """Paired over the seeds that both have:  d ± t_{n-1} s / sqrt(n),  s the sample deviation of the n differences.

    None without a common seed: then nothing can be paired.
    """
    return paired_difference(by_seed(subject), by_seed(other))


def paired_difference(own: Mapping[int, float], others: Mapping[int, float]) -> Difference | None:
    """`difference` of any values by seed."""
    gaps = [own[seed] - others[seed] for seed in own if seed in others]
    if not gaps:
        return None
    mean, half = fmean(gaps), seed_noise(gaps)
    return Difference(mean, len(gaps), None if half is None else (mean - half, mean + half))


def by_seed(group: Group, site: str = "") -> Mapping[int, float]:
    """Final accuracy by seed, at a site or in the mean over sites; runs with the same seed are one, their mean."""
    found: dict[int, list[float]] = {}
    for run in group.counted:
        if run.final and (not site or site in run.final.scores):
            accuracy = run.final.scores[site].accuracy if site else run.final.accuracy
            found.setdefault(run.seed, []).append(accuracy)
    return {seed: fmean(values) for seed, values in found.items()}


def _over_images(group: Group, site: str) -> tuple[float, Ends] | None:
    """Accuracy at a site, or in the mean over sites, and its interval over test images; None if it is not known."""
    names = [site] if site else site_names([group])
    known = [(stat.mean, size_at(group, name)) for name in names if (stat := group.accuracy_at(name))]
    if not known or not all(size for _, size in known) or noisy_scores([group]):
        return None
    shares, sizes = zip(*known, strict=True)
    return fmean(shares), mean_interval(shares, sizes)


def clearly_above(group: Group, other: Group, site: str = "") -> bool:
    """Whether a method is above another outside the noise, at a site or in the mean over sites.

    The noise is the paired t interval over seeds; with fewer than `MIN_SEEDS` common seeds, that over test images.
    """
    gap = paired_difference(by_seed(group, site), by_seed(other, site))
    if gap and gap.seeds >= MIN_SEEDS:
        return gap.clear and gap.mean > 0
    own, rival = _over_images(group, site), _over_images(other, site)
    return own is not None and rival is not None and difference_interval(*own, *rival)[0] > 0


def above_largest(group: Group, site: str = "") -> bool:
    """Whether a method is above always the largest class outside the noise: that of the test images, and of the
    seeds if there are `MIN_SEEDS`. True if the counts of the classes are not known."""
    shares = largest_class([group])
    if not shares or (site and site not in shares):
        return True
    least = shares[site] if site else fmean(shares.values())
    own, seeds = _over_images(group, site), by_seed(group, site)
    over_seeds = paired_difference(seeds, dict.fromkeys(seeds, least))
    if own is None or own[1][0] <= least or over_seeds is None:
        return False
    return over_seeds.seeds < MIN_SEEDS or (over_seeds.clear and over_seeds.mean > 0)


def _comparison(first: Group, other: Group) -> Sentence:
    """The difference of the means, at how many common sites the other method is higher, and the noise."""
    gap_of_means = percentage_points(other.mean - first.mean)
    parts = [f"{other.label} against {first.label}: {gap_of_means} points on the mean"]
    sites = site_names((first, other))
    pairs = ((site, first.accuracy_at(site), other.accuracy_at(site)) for site in sites)
    gaps = {site: after.mean - before.mean for site, before, after in pairs if before and after}
    if gaps:
        low, high = min(gaps, key=gaps.__getitem__), max(gaps, key=gaps.__getitem__)
        higher = sum(percentage_points(gap).startswith("+") for gap in gaps.values())
        extremes = f"from {percentage_points(gaps[low])} at {low} to {percentage_points(gaps[high])} at {high}"
        parts.append(f"higher at {higher} of {plural(len(gaps), 'site')}, {extremes}")
    gap = difference(other, first)
    if gap is None:
        kind, noise = "unpaired", "no common seed"
    elif gap.interval is None:
        kind, noise = few_seeds(gap.seeds)
    else:
        kind = "outside" if gap.clear else "within"
        ends = " to ".join(map(percentage_points, gap.interval))
        noise = f"95 % interval over {gap.seeds} seeds from {ends}, {kind} the noise"
    return Sentence(kind, "; ".join((*parts, noise)) + ".")


def few_seeds(seeds: int) -> tuple[str, str]:
    """Why there is no interval, as a kind and in words."""
    if seeds == 1:
        return "one-seed", "one seed, so the noise is unknown"
    return "too-few-seeds", f"{seeds} seeds are too few for an interval, at least {MIN_SEEDS} are needed"


def caveats(groups: Sequence[Group]) -> tuple[Sentence, ...]:
    """One sentence for each reason why the numbers may not be comparable, the most serious first."""
    checks = (
        undeclared,
        one_class_notes,
        _unequal,
        _tuned,
        _incomplete,
        _mixed,
        _code,
        _seeds,
        _short,
        unequal_cost,
    )
    return tuple(sentence for check in checks for sentence in check(groups))


def _short(groups: Sequence[Group]) -> Iterator[Sentence]:
    """The classes with fewer virtual images, in any of the runs."""
    sites = [site for group in groups for run in group.runs for site in run.manifest.data.sites]
    found: dict[str, dict[str, int]] = {}
    for site in sites:
        found.setdefault(site.name, {}).update(site.short)
    if text := short_classes_text(found):
        yield Sentence("short-classes", text)


def short_classes_text(found: Mapping[str, Mapping[str, int]]) -> str:
    """The sites with fewer virtual images of some classes, with their real images; empty if there are none."""
    short = {site: few for site, few in found.items() if few}
    listed = []
    for site, few in list(short.items())[:MAX_SITES_IN_NOTE]:
        classes = [f"{name!r} ({count})" for name, count in few.items()][:MAX_CLASSES_IN_NOTE]
        more = [f"{len(few) - MAX_CLASSES_IN_NOTE} more"] if len(few) > MAX_CLASSES_IN_NOTE else []
        listed.append(f"{site} of {counted(len(few), 'class')} {', '.join(classes + more)}")
    if len(short) > MAX_SITES_IN_NOTE:
        listed.append(f"and {plural(len(short) - MAX_SITES_IN_NOTE, 'more site')}")
    return f"Few real images, so fewer virtual images than distil.per_class: {'; '.join(listed)}." if listed else ""


def unequal_cost(groups: Sequence[Group]) -> Iterator[Sentence]:
    """The cheapest and the dearest method that compete, if they are not close in time or in bytes."""
    groups = [group for group in groups if group.competes] or groups
    if not all(group.finished for group in groups):
        return
    time = clock(groups)
    parts = []
    for name, kind, show in ((time.name, time.kind, duration), ("bytes", "bytes", number_of_bytes)):
        costs = {group.label: total(group, kind) for group in groups}
        low, high = min(costs, key=costs.__getitem__), max(costs, key=costs.__getitem__)
        if costs[high] > MIN_COST_RATIO * costs[low]:
            parts.append(f"{name} from {show(costs[low])} ({low}) to {show(costs[high])} ({high})")
    if parts:
        yield Sentence("cost", f"The methods do not cost the same: {'; '.join(parts)}, including setup.")


def _unequal(groups: Sequence[Group]) -> Iterator[Sentence]:
    """Differences in what must be the same in all runs."""
    task: dict[str, tuple[str, Callable[[Run], str]]] = {
        "data": ("data", lambda run: run.manifest.data.digest),
        "network": ("network", lambda run: run.manifest.net.label),
        "rounds": ("number of rounds", lambda run: str(run.planned)),
        "ratio": ("share of sites per round", lambda run: str(run.settings.get("ratio"))),
    }
    for kind, (name, value) in task.items():
        if len({value(run) for group in groups for run in group.runs}) > 1:
            text = f"The runs do not all have the same {name}: the differences are not due to the method alone."
            yield Sentence(f"unequal-{kind}", text)


def _tuned(groups: Sequence[Group]) -> Iterator[Sentence]:
    """The tuned methods with their effort, and whether all methods were tuned alike."""
    found = {group.label: how for group in groups if (how := group.runs[0].tuned)}
    rest = [group.label for group in groups if group.label not in found]
    if found and rest:
        yield Sentence("not-tuned", f"Not tuned, unlike the others: {', '.join(rest)}.")
    if len({(how.candidates, how.rounds) for how in found.values()}) > 1:
        text = "The methods were not tuned with the same number of candidates and rounds."
        yield Sentence("unequal-tuning", text)
    for label, how in found.items():
        effort = f"{plural(how.candidates, 'candidate')}, {duration(how.cpu_seconds)} of CPU time"
        text = f"{label} was tuned on held-out training images ({effort}): {', '.join(how.settings)}."
        yield Sentence("tuned", text)


def _incomplete(groups: Sequence[Group]) -> Iterator[Sentence]:
    runs = [(group, run) for group in groups for run in group.runs]
    for group, run in runs:
        if not run.finished:
            use = "is not counted" if group.finished else "is shown up to its last round"
            kind = "not-counted" if group.finished else "unfinished"
            yield Sentence(kind, f"{group.label}, seed {run.seed}, is unfinished ({progress(run)}) and {use}.")
    for group, run in runs:
        for what in run.damage:
            yield Sentence("damage", f"{group.label}, seed {run.seed}: {what}; it is not shown.")


def progress(run: Run) -> str:
    return f"{run.done} of {plural(run.planned, 'round')}"


def _mixed(groups: Sequence[Group]) -> Iterator[Sentence]:
    """Runs with the same label that differ in more than their seed, in settings that all their versions have."""
    for group in groups:
        seeds = [run.seed for run in group.runs]
        if len(set(seeds)) < len(seeds):
            text = f"{group.label} has several runs with the same seed; each is counted as a separate seed."
            yield Sentence("same-seed", text)
        settings = [dict(flat(run.settings)) | {"seed": None} for run in group.runs]
        known = set[str].intersection(*map(set, settings))
        if any(each[path] != settings[0][path] for each in settings for path in known):
            text = f"The runs of {group.label} differ in more than their seed; see their settings below."
            yield Sentence("unequal-settings", text)


def _code(groups: Sequence[Group]) -> Iterator[Sentence]:
    """Runs that went on with other code, and runs of one method whose code is not the same."""
    for group in groups:
        for run in group.runs:
            changed = {each.file: each.after_round for each in run.manifest.code_changed}
            if changed:
                files = ", ".join(f"{file} after round {after}" for file, after in changed.items())
                text = f"{group.label}, seed {run.seed}, went on with changed code: {files}."
                yield Sentence("code-changed", text)
        if len({tuple(sorted(run.manifest.method.sources.items())) for run in group.runs}) > 1:
            yield Sentence("unequal-code", f"The runs of {group.label} are not all of the same code.")


def _seeds(groups: Sequence[Group]) -> Iterator[Sentence]:
    by_seeds: dict[tuple[int, ...], list[str]] = {}
    for group in groups:
        by_seeds.setdefault(tuple(run.seed for run in group.counted), []).append(group.label)
    if len(by_seeds) > 1:
        named = {}
        for own, labels in by_seeds.items():
            some = ", ".join(labels) if len(labels) <= MAX_METHODS_NAMED else f"{len(labels)} methods"
            named[some] = ", ".join(map(str, own))
        listed = "; ".join(f"{labels}: {own}" for labels, own in named.items())
        yield Sentence("unequal-seeds", f"The methods were not run with the same seeds ({listed}).")
    elif len(next(iter(by_seeds))) == 1:
        yield Sentence("one-seed", "There is only one seed: the variation over seeds is unknown.")
