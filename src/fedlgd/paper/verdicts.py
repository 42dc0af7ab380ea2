"""Verdicts on the claims of the paper, from stored runs; our numbers beside the printed ones, and one HTML page."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple, get_args

from jinja2 import ChoiceLoader, PackageLoader

from fedlgd.core.files import write_atomic
from fedlgd.core.text import enumeration, percentage_points, plural
from fedlgd.paper import items as paper
from fedlgd.paper.items import FOLDER, Claim, Found, Item, Rule, Word, entry_name, items, owner_of, printed, stored
from fedlgd.report import figures
from fedlgd.report.classes import positive_class, two_class_rates
from fedlgd.report.groups import Group, site_names
from fedlgd.report.page import TEMPLATES
from fedlgd.report.summary import Difference, caveats, difference, few_seeds, paired_difference
from fedlgd.report.tables import NONE, Cell, Column, Table, percent, percent_stat
from fedlgd.rundir.intervals import MIN_SEEDS

MEASURED = "measured.json"  # beside the items
RIVALS = ("fedavg", "fedavg:local.steps=2", "fedavg:local.steps=7", "fedavg:local.steps=19", "fedlgd")
PAGES = TEMPLATES.overlay(loader=ChoiceLoader([PackageLoader("fedlgd.paper"), PackageLoader("fedlgd.report")]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A claim, what our runs say in numbers, the scale they were run at, the verdict, and one sentence why.

    gap: the difference that decides, to the best of the rivals.
    """

    item: str
    claim: Claim
    ours: str = NONE
    scale: str = ""
    word: Word = "not decided"
    why: str = ""
    seeds: int = 0
    gap: Difference | None = None

    @property
    def key(self) -> str:
        return f"{self.item}: {self.claim.text}"

    @property
    def plain(self) -> dict[str, Any]:
        return {"ours": self.ours, "scale": self.scale, "seeds": self.seeds, "word": self.word, "why": self.why}


def verdicts(folder: Path, wanted: Mapping[str, Item] | None = None) -> Iterator[Verdict]:
    """A verdict on every claim: by the largest scale with an interval, and without one by the largest with runs."""
    for item in (wanted or items()).values():
        found = list(stored(folder, item))
        for claim in item.claims:
            own = [(rule, each) for each in found if (rule := claim.rule_at(each.scale))]
            made = [verdict_of(item, claim, rule, each) for rule, each in own if rule.part == each.part]
            if not made:
                waits = claim.rule and claim.verdict == "not decided"
                why = _sentence("no runs are stored", claim.why) if waits else claim.why
                made = [Verdict(item=item.name, claim=claim, ours=claim.ours, word=claim.verdict, why=why)]
            best = max(made, key=_weight)
            yield _checked(best, claim.needs, found) if claim.needs else best


def _weight(verdict: Verdict) -> tuple[bool, bool]:
    """Verdicts with an interval come before those without; of equals, that of the largest scale is the first."""
    return verdict.seeds >= MIN_SEEDS, verdict.seeds > 0


class Shipped(NamedTuple):
    """What the measured runs of this package say: by item the labels of the stored parts, the CPU time at each
    scale in words, and that of a run in seconds by scale and part; and verdicts by `key`."""

    stored: Mapping[str, Sequence[str]]
    cpu: Mapping[str, Mapping[str, str]]
    seconds: Mapping[str, Mapping[str, Mapping[str, float]]]
    verdicts: Mapping[str, Mapping[str, Any]]


@cache
def shipped() -> Shipped:
    """Verdicts that come with the package; docs/results/paper has their numbers."""
    return Shipped(**json.loads((FOLDER / MEASURED).read_text()))


def known_verdicts(folder: Path, wanted: Mapping[str, Item] | None = None) -> Iterator[Verdict]:
    """The verdict of the runs in the folder, and without such runs that of the package."""
    measured = shipped().verdicts
    for each in verdicts(folder, wanted):
        yield each if each.scale or each.key not in measured else replace(each, **measured[each.key])


def verdict_of(item: Item, claim: Claim, rule: Rule, found: Found) -> Verdict:
    """The verdict of a rule on the stored runs of a part."""
    missing = [entry for entry in (rule.left, *rule.right) if entry not in found.groups]
    if missing:
        what = f"no runs of {enumeration(map(entry_name, missing))} are stored"
        return Verdict(item=item.name, claim=claim, why=_sentence(what, claim.why))
    known = _gaps(rule, found.groups)
    gaps = {entry: gap.in_test(claim.tests(found.scale, gap.seeds)) for entry, gap in known.items()}
    if not gaps:
        return Verdict(item=item.name, claim=claim, why=_sentence("the runs have no common seed", claim.why))
    word = _word([*gaps.values()], rule.margin)
    deciding = [entry for entry, gap in gaps.items() if _word([gap], rule.margin) == word]
    rival = min(deciding, key=lambda entry: gaps[entry].mean)
    ours = _ours(rule, found.groups, rival, gaps[rival])
    decided = Verdict(item=item.name, claim=claim, ours=ours, word=word, why=_why(word, gaps[rival], claim))
    return replace(decided, scale=found.scale, seeds=gaps[rival].seeds, gap=gaps[rival])


def _checked(verdict: Verdict, needs: Rule, found: Sequence[Found]) -> Verdict:
    """The verdict with what its claim needs: that the area under the ROC curve is above the margin at every site.

    Where it is not, the claim cannot be decided; where nothing was measured, the verdict says so.
    """
    known = next((each for each in found if each.part == needs.part and needs.left in each.groups), None)
    if known is None:
        missing = f"Whether a model learns anything at these sites is not measured (part {needs.part})."
        return replace(verdict, why=f"{verdict.why} {missing}".strip())
    group = known.groups[needs.left]
    rates = {site: two_class_rates(group, site, positive_class([group]))["AUC"] for site in site_names([group])}
    shown = enumeration(f"{rate.cell.text} at {site}" for site, rate in rates.items() if rate)
    numbers = f"{entry_name(needs.left)} (part {needs.part}): area under the ROC curve in percent {shown}"
    if all(rate and rate.ends and rate.ends[0] > needs.margin for rate in rates.values()):
        return replace(verdict, why=f"{verdict.why} A model learns at these sites. {numbers}.".strip())
    refused = replace(verdict, word="cannot be decided", ours=numbers, why=verdict.claim.why, gap=None)
    return replace(refused, scale=known.scale, seeds=len(group.counted))


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
        return f"{percent(gap.mean)} %{gap.range} less between sites than under {entry_name(rival)}"
    both = [(entry_name(entry), groups[entry].accuracy) for entry in (rule.left, rival)]
    shown = [f"{name} {percent_stat(stat)}" for name, stat in both if stat]
    return f"{', '.join(shown)}: {percentage_points(gap.mean)}{gap.range}"


def _why(word: Word, gap: Difference, claim: Claim) -> str:
    if gap.interval is None:
        reason = few_seeds(gap.seeds)[1]
    elif gap.interval == (0.0, 0.0):
        reason = "the accuracies are equal with every seed"
    else:
        where = {"confirmed": "is above", "not confirmed": "is not above", "not decided": "contains"}[word]
        again = f", after {plural(gap.tests - 1, 'test')} with fewer seeds," if gap.tests > 1 else ""
        reason = f"the {gap.level} interval over {gap.seeds} seeds{again} {where} the margin"
    return _sentence(reason, claim.why)


def _sentence(reason: str, more: str) -> str:
    return f"{reason[:1].upper()}{reason[1:]}. {more}".strip()


def write_paper(folder: Path, out: Path) -> None:
    """Read the runs of the paper in `folder` and write the page to `out`. The same runs give the same bytes."""
    found = list(verdicts(folder))
    sections = [_section(folder, item, [v for v in found if v.item == item.name]) for item in items().values()]
    words = {"claims": len(found), "tally": tally(found), "folder": folder}
    text = PAGES.get_template("paper.html").render(sections=sections, **words)
    write_atomic(out, text.encode())


def _section(folder: Path, item: Item, own: list[Verdict]) -> dict[str, Any]:
    """An item with its verdicts, and the tables and figures of each stored part."""
    parts = []
    for found in stored(folder, item):
        groups = tuple(found.groups.values())
        part = {
            "name": found.label,
            "reduced": reduction(found),
            "table": printed_table(found),
            "sites": site_table(found),
            "sweeps": list(figures.sweep_tables(figures.find_sweeps(groups))),
            "caveats": caveats(groups),
            "figures": _figures(item, groups),
        }
        parts.append(part)
    table = verdict_table(own) if own else None
    return {"item": item, "command": paper.command_of(item), "tally": tally(own), "verdicts": table, "parts": parts}


def _figures(item: Item, groups: Sequence[Group]) -> Sequence[figures.Drawing]:
    match item.figure:
        case "table" | "curves":
            return figures.round_figures(groups)
        case "sweep":
            return tuple(figures.sweep_figures(figures.find_sweeps(groups)))
        case "cost":
            return figures.cost_figures(groups)
        case "similarity":
            return [drawing for section in figures.similarity_figures(groups) for drawing in section.drawings]
    return ()


def tally(found: Sequence[Verdict]) -> str:
    """`3 confirmed, 9 not decided`"""
    count: Counter[str] = Counter(each.word for each in found)
    return ", ".join(f"{count[word]} {word}" for word in get_args(Word) if count[word])


def verdict_table(found: Sequence[Verdict]) -> Table:
    """Claim, printed number, ours with interval, scale, verdict and why."""
    heads = ("claim", "the paper prints", "ours (difference, interval)", "scale", "verdict", "why")
    rows = (
        (each.claim.text, each.claim.printed, each.ours, each.scale or NONE, each.word, each.why) for each in found
    )
    return Table(tuple(Column(head, number=False) for head in heads), tuple(tuple(map(Cell, row)) for row in rows))


def printed_table(found: Found, against: Sequence[str] = ()) -> Table:
    """Accuracy of every entry beside the printed number, with the paired differences to some entries.

    By default these are FedAvg, FedAvg with as many steps as FedLGD, and FedLGD.
    """
    part = owner_of(found.item).parts[found.part]
    rivals = [entry for entry in found.groups if entry in (against or RIVALS)]
    heads = ("method", "seeds", "ours (%)", "the paper (%)", *(f"minus {entry_name(each)}" for each in rivals))
    rows = []
    for entry, group in found.groups.items():
        gaps = [difference(group, found.groups[rival]) if rival != entry else None for rival in rivals]
        shown = (f"{percentage_points(gap.mean)}{gap.range}" if gap else NONE for gap in gaps)
        numbers = percent_stat(group.accuracy), _number(printed(part, entry))
        rows.append(tuple(map(Cell, (entry_name(entry), str(len(group.counted)), *numbers, *shown))))
    return Table((Column("method", number=False), *map(Column, heads[1:])), tuple(rows))


def site_table(found: Found) -> Table | None:
    """Accuracy at every site of the paper, with the printed number in parentheses; None if none is printed."""
    item = owner_of(found.item)
    sites = [site for site in site_names(tuple(found.groups.values())) if site in item.sites]
    rows = []
    for entry, group in found.groups.items():
        numbers = {site: printed(item.parts[found.part], entry, item.sites[site]) for site in sites}
        if any(number is not None for number in numbers.values()):
            both = (
                f"{percent_stat(group.accuracy_at(site))} ({_number(number)})" for site, number in numbers.items()
            )
            rows.append(tuple(map(Cell, (entry_name(entry), *both))))
    return Table((Column("method", number=False), *map(Column, sites)), tuple(rows)) if rows else None


def _number(printed: float | None) -> str:
    return NONE if printed is None else f"{printed:.1f}"


def reduction(found: Found) -> str:
    """In words what is less than in the paper."""
    words = paper.reduced(owner_of(found.item), found.part, found.scale)
    return f"Scale {found.scale}, reduced: {words}." if words else f"Scale {found.scale}: full length."
