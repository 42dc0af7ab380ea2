"""Verdicts on the claims of the paper, from stored runs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from fedlgd.paper.items import FOLDER, Claim, Item, Rule, Word, items
from fedlgd.paper.runs import Found, measured_cpu, stored
from fedlgd.report.formats import NONE, percent, percent_stat, percentage_points
from fedlgd.report.groups import Group
from fedlgd.report.summary import Difference, difference, paired_difference

MEASURED = "measured.json"  # beside the items


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A claim, what our runs say in numbers, the scale they were run at, the verdict, and one sentence why."""

    item: str
    claim: Claim
    ours: str = NONE
    scale: str = ""
    word: Word = "not decided"
    why: str = ""
    seeds: int = 0

    @property
    def key(self) -> str:
        return f"{self.item}: {self.claim.text}"

    @property
    def plain(self) -> dict[str, str]:
        return {"ours": self.ours, "scale": self.scale, "word": self.word, "why": self.why}


def verdicts(folder: Path, wanted: Mapping[str, Item] | None = None) -> Iterator[Verdict]:
    """A verdict on every claim: by the largest scale with an interval, and without one by the largest with runs."""
    for item in (wanted or items()).values():
        found = list(stored(folder, item))
        for claim in item.claims:
            if (rule := claim.rule) is None:
                yield Verdict(item=item.name, claim=claim, word=claim.verdict, why=claim.why)
                continue
            own = [each for each in found if each.part == claim.at.get(each.scale, rule).part]
            made = [_decided(item, claim, claim.at.get(each.scale, rule), each) for each in own]
            made = made or [_decided(item, claim, rule, None)]
            yield max(made, key=lambda each: min(each.seeds, 2))


class Shipped(NamedTuple):
    """What the measured runs of this package say: by item the labels of the stored parts and the CPU time at each
    scale, and verdicts by `key`."""

    stored: Mapping[str, Sequence[str]]
    cpu: Mapping[str, Mapping[str, str]]
    verdicts: Mapping[str, Mapping[str, Any]]


@cache
def shipped() -> Shipped:
    """Verdicts that come with the package; docs/results/paper has their numbers."""
    return Shipped(**json.loads((FOLDER / MEASURED).read_text()))


def to_ship(folder: Path) -> str:
    """The content of `measured.json` from the stored runs in a folder."""
    parts = {name: [found.label for found in stored(folder, item)] for name, item in items().items()}
    times = {name: measured_cpu(folder, item) for name, item in items().items()}
    content = {
        "stored": {name: labels for name, labels in parts.items() if labels},
        "cpu": {name: cpu for name, cpu in times.items() if cpu},
        "verdicts": {each.key: each.plain for each in verdicts(folder) if each.scale},
    }
    return json.dumps(content, indent=1) + "\n"


def known_verdicts(folder: Path, wanted: Mapping[str, Item] | None = None) -> Iterator[Verdict]:
    """The verdict of the runs in the folder, and without such runs that of the package."""
    measured = shipped().verdicts
    for each in verdicts(folder, wanted):
        yield each if each.scale or each.key not in measured else replace(each, **measured[each.key])


def _decided(item: Item, claim: Claim, rule: Rule, found: Found | None) -> Verdict:
    entries = (rule.left, *rule.right)
    missing = [entry for entry in entries if found is None or entry not in found.groups]
    if found is None or missing:
        what = "no runs are stored" if found is None else f"no runs of {', '.join(missing)} are stored"
        return Verdict(item=item.name, claim=claim, why=_sentence(what, claim.why))
    gaps = _gaps(rule, found.groups)
    if not gaps:
        return Verdict(item=item.name, claim=claim, why=_sentence("the runs have no common seed", claim.why))
    rival = min(gaps, key=lambda entry: gaps[entry].mean)
    word = _word([*gaps.values()], rule.margin)
    ours = _ours(rule, found.groups, rival, gaps[rival])
    why, seeds = _why(word, gaps[rival], claim), gaps[rival].seeds
    return Verdict(item=item.name, claim=claim, ours=ours, scale=found.scale, word=word, why=why, seeds=seeds)


def _gaps(rule: Rule, groups: Mapping[str, Group]) -> dict[str, Difference]:
    """The difference of `left` to each of `right`, paired over seeds, or what is decreased."""
    if rule.metric == "accuracy":
        pairs = {entry: difference(groups[rule.left], groups[entry]) for entry in rule.right}
    else:
        pairs = {
            entry: paired_difference(falls, dict.fromkeys(falls, 0.0))
            for entry, falls in _falls(rule, groups).items()
        }
    return {entry: gap for entry, gap in pairs.items() if gap}


def _falls(rule: Rule, groups: Mapping[str, Group]) -> dict[str, dict[int, float]]:
    """By entry and seed, the share of a distance that is gone: during a run, or against the runs of an entry."""
    if rule.metric == "distance":  # between virtual sets and anchors, the mean over sites
        runs = {run.seed: run.analysis.distances for run in groups[rule.left].counted if run.analysis}
        means = {seed: [fmean(at.sites.values()) for at in found if at.sites] for seed, found in runs.items()}
        return {rule.left: {seed: 1 - m[-1] / m[0] for seed, m in means.items() if len(m) > 1 and m[0]}}
    own, others = _shifts(groups[rule.left]), {entry: _shifts(groups[entry]) for entry in rule.right}
    return {
        entry: {seed: 1 - own[seed] / shift for seed, shift in other.items() if seed in own}
        for entry, other in others.items()
    }


def _shifts(group: Group) -> dict[int, float]:
    """The mean squared MMD between the real images of sites under the final model, by seed."""
    matrices = {run.seed: run.analysis.mmd["real"] for run in group.counted if run.analysis and run.analysis.mmd}
    means = {seed: fmean(v for i, row in enumerate(m) for v in row[:i]) for seed, m in matrices.items()}
    return {seed: mean for seed, mean in means.items() if mean > 0}


def _word(gaps: Sequence[Difference], margin: float) -> Word:
    """Confirmed if every interval is above the margin, not confirmed if one is not above it anywhere."""
    ends = [gap.interval for gap in gaps]
    if any(each and each[1] <= margin for each in ends):
        return "not confirmed"
    return "confirmed" if all(each and each[0] > margin for each in ends) else "not decided"


def _ours(rule: Rule, groups: Mapping[str, Group], rival: str, gap: Difference) -> str:
    if rule.metric == "distance":
        return f"the distance falls by {percent(gap.mean)} %{gap.range}"
    if rule.metric == "shift":
        return f"{percent(gap.mean)} %{gap.range} less between sites than under {rival}"
    shown = [f"{entry} {percent_stat(stat)}" for entry in (rule.left, rival) if (stat := groups[entry].accuracy)]
    return f"{', '.join(shown)}: {percentage_points(gap.mean)}{gap.range}"


def _why(word: Word, gap: Difference, claim: Claim) -> str:
    if gap.interval is None:
        reason = "there is one seed, so the noise is unknown"
    elif gap.interval == (0.0, 0.0):
        reason = "the accuracies are equal with every seed"
    else:
        where = {"confirmed": "is above", "not confirmed": "is not above", "not decided": "contains"}[word]
        reason = f"the 95 % interval over {gap.seeds} seeds {where} the margin"
    return _sentence(reason, claim.why)


def _sentence(reason: str, more: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}. {more}".strip()
