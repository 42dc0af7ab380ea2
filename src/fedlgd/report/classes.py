"""What the counts per class say about an accuracy: what always the largest class would reach, models that predict
one class only, sites without test images of a class, and sensitivity, specificity and AUC for two classes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from fedlgd.core.score import Score
from fedlgd.core.text import counted, enumeration, plural
from fedlgd.report.groups import Group, Stat, site_names, summarise
from fedlgd.report.tables import METHOD, NONE, Cell, Column, Row, Sentence, Table, percent
from fedlgd.rundir.intervals import Ends, auc_interval, mean_interval, wilson
from fedlgd.rundir.read import Run

LARGEST = "always the largest class"
LARGEST_NOTE = (
    "Always the largest class: the accuracy of predicting, for every test image of a site, the class that has the "
    "most test images there."
)
FEW_CLASSES = 4  # up to which the accuracy of always the largest class is shown
UNEQUAL = 2.0  # as is if the largest class has this many times the images that it would have if all were equal
MISSING_CLASS_MARK = "†"
ONE_CLASS_MARK = "‡"
TWO_CLASS_NOTE = "The balanced accuracy there is the accuracy on the other class alone, and there is no AUC."
MANY_CLASS_NOTE = "The accuracy there says nothing about these classes."
MEAN_NOTE = "The mean over sites counts such a site like any other"
NOISY_NOTE = "Scores have noise for differential privacy: there is no AUC, and no interval is given."
MAX_SITES_IN_NOTE = 5  # sites that a note lists
MAX_MEANS_IN_NOTE = 4  # methods of which a note gives the mean without one-class sites

Missing = Mapping[str, tuple[str, ...]]
"""Names of classes by site."""


def _finals(groups: Iterable[Group]) -> Iterator[tuple[Run, str, Score]]:
    """The last scores of all counted runs, by site, if they have counts of the classes."""
    for run in (run for group in groups for run in group.counted):
        for site, score in run.final.scores.items() if run.final else ():
            if len(score.total) == len(run.manifest.data.classes) and any(score.total):
                yield run, site, score


def largest_class(groups: Sequence[Group]) -> dict[str, float]:
    r"""By site:  max_k n_k / sum_k n_k,  n_k its test images of class k; the accuracy of always the largest class.

    Empty if the runs do not have the same data: then no number holds for all of them.
    """
    if len({run.manifest.data.digest for group in groups for run in group.runs}) > 1:
        return {}
    found: dict[str, float] = {}
    for _, site, score in _finals(groups):
        found.setdefault(site, max(score.total) / sum(score.total))
    return {site: found[site] for site in site_names(groups) if site in found}


def shows_largest(groups: Sequence[Group]) -> bool:
    """Whether the task has few or unequal classes: only then a high accuracy can be that of one class."""
    shares, classes = largest_class(groups), len(groups[0].runs[0].manifest.data.classes) if groups else 0
    return bool(shares) and (classes <= FEW_CLASSES or fmean(shares.values()) >= UNEQUAL / classes)


def only_class(score: Score) -> int | None:
    """The class of which every test image is right, if no image of another class is: with two classes the model
    predicts it for every image. None if only one class has test images: then a good model does the same."""
    if sum(map(bool, score.total)) < 2:
        return None
    full = [k for k, count in enumerate(score.total) if count and score.correct[k] == count]
    return full[0] if len(full) == 1 and sum(score.correct) == score.total[full[0]] else None


def one_class_models(group: Group) -> dict[str, dict[str, int]]:
    """Sites where the model predicts one class only: that class, and with how many seeds. None by noisy counts."""
    found: dict[str, dict[str, int]] = {}
    for run, site, score in () if noisy_scores([group]) else _finals([group]):
        if (k := only_class(score)) is not None:
            classes, name = found.setdefault(site, {}), run.manifest.data.classes[k]
            classes[name] = classes.get(name, 0) + 1
    return {site: found[site] for site in site_names([group]) if site in found}


def one_class_everywhere(group: Group) -> bool:
    """Whether the model predicts one class only wherever there are test images of more."""
    able = {site for _, site, score in _finals([group]) if sum(map(bool, score.total)) > 1}
    return bool(able) and able == one_class_models(group).keys()


def one_class_notes(groups: Sequence[Group]) -> Iterator[Sentence]:
    """The models that predict one class only, and the sites: the most serious limit of an accuracy."""
    for group in groups:
        found = one_class_models(group)
        if not found:
            continue
        by_class: dict[str, list[str]] = {}
        for site, classes in found.items():
            by_class.setdefault(enumeration(map(repr, classes)), []).append(site)
        whole = one_class_everywhere(group) and len(by_class) == 1 and len(found) > 1
        where = {name: "every site" if whole else _some(sites) for name, sites in by_class.items()}
        listed = "; ".join(f"{name} at {sites}" for name, sites in where.items())
        most, seeds = max(sum(classes.values()) for classes in found.values()), len(group.counted)
        share = "" if most == seeds else f" (with {most} of {plural(seeds, 'seed')})"
        two = len(group.runs[0].manifest.data.classes) == 2
        verb = "predicts one class for every test image" if two else "is right on one class and no other"
        text = f"{ONE_CLASS_MARK} {group.label} {verb}{share}: {listed}."
        yield Sentence("one-class-model", f"{text} Its accuracy there is the share of that class.")


def _some(sites: Sequence[str]) -> str:
    """Sites by name; of many, the first and the number of the others."""
    more = len(sites) - MAX_SITES_IN_NOTE
    return ", ".join(sites[:MAX_SITES_IN_NOTE]) + (f" and {plural(more, 'more site')}" if more > 0 else "")


def missing_classes(groups: Sequence[Group]) -> Missing:
    """The classes of which a site has no test image, by the counts of its last evaluation."""
    return {
        site: tuple(name for name, count in zip(run.manifest.data.classes, score.total, strict=True) if not count)
        for run, site, score in _finals(groups)
        if not all(score.total)
    }


def marked(site: str, missing: Missing) -> str:
    """The site's name, with a mark if a note below the table is about it."""
    return site + MISSING_CLASS_MARK if site in missing else site


def missing_notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """The classes that sites lack, and the effect on their numbers and on the mean; empty if none is missing."""
    missing = missing_classes(groups)
    if not missing:
        return ()
    some = list(missing.items())[:MAX_SITES_IN_NOTE]
    listed = [f"{site} of {counted(len(gone), 'class')} {', '.join(map(repr, gone))}" for site, gone in some]
    if len(missing) > MAX_SITES_IN_NOTE:
        listed.append(f"and {plural(len(missing) - MAX_SITES_IN_NOTE, 'more site')}")
    effect = TWO_CLASS_NOTE if len(groups[0].runs[0].manifest.data.classes) == 2 else MANY_CLASS_NOTE
    head = f"{MISSING_CLASS_MARK} No test images: {'; '.join(listed)}."
    return (f"{head} {effect} {MEAN_NOTE}{_mean_without(groups, one_class_sites(groups))}.",)


def one_class_sites(groups: Sequence[Group]) -> list[str]:
    """Sites with test images of one class only: always predicting it is right on all of them."""
    single = {site for _, site, score in _finals(groups) if sum(map(bool, score.total)) == 1}
    return [site for site in site_names(groups) if site in single]


def _mean_without(groups: Sequence[Group], single: Sequence[str]) -> str:
    """The mean of each method without the sites of one class, because these raise or lower it."""
    means = {
        group.label: fmean(stat.mean for stat in rest)
        for group in groups
        if (
            rest := [
                stat for site in site_names(groups) if site not in single and (stat := group.accuracy_at(site))
            ]
        )
    }
    if not single or not means:
        return ""
    shown = [f"{label} {percent(mean)} %" for label, mean in list(means.items())[:MAX_MEANS_IN_NOTE]]
    more = ", ..." if len(means) > MAX_MEANS_IN_NOTE else ""
    return f"; without {_some(single)}, whose test images are of one class, it is {', '.join(shown)}{more}"


def unscored_notes(groups: Sequence[Group]) -> tuple[str, ...]:
    """Runs whose last evaluation lacks sites: their mean is over fewer sites."""
    finals = [(run, run.final) for group in groups for run in group.counted]
    lost = {
        (run.label, run.seed, final.round): (gone, len(run.manifest.data.sites))
        for run, final in finals
        if final and (gone := [site.name for site in run.manifest.data.sites if site.name not in final.scores])
    }
    return tuple(
        f"{label}, seed {seed}: the mean is over {sites - len(gone)} of {plural(sites, 'site')}; no score from "
        f"{_some(gone)} in round {t + 1}."
        for (label, seed, t), (gone, sites) in lost.items()
    )


def noisy_scores(groups: Sequence[Group]) -> bool:
    """Whether scores of a run have noise, so that intervals from counts are too narrow."""
    return any(run.manifest.promise and run.manifest.promise.scores for group in groups for run in group.runs)


def size_at(group: Group, site: str) -> int:
    """The number of test images of a site; 0 if it is not known."""
    return min((sum(score.total) for score in group.scores_at(site)), default=0)


def positive_class(groups: Sequence[Group]) -> int:
    """The number of the class that sensitivity is about: the last one, or the one that a run names."""
    named = next((run.manifest.positive for group in groups for run in group.runs if run.manifest.positive), "")
    classes = groups[0].runs[0].manifest.data.classes
    return classes.index(named) if named in classes else len(classes) - 1


@dataclass(frozen=True, slots=True)
class Rate:
    """A share: its mean over seeds, its standard deviation over seeds, and its 95 % interval over test images.

    Seeds share their test images, so more seeds do not narrow the interval.
    """

    stat: Stat
    ends: Ends | None = None

    @property
    def cell(self) -> Cell:
        ends = f" ({percent(self.ends[0])}–{percent(self.ends[1])})" if self.ends else ""
        return Cell(f"{percent(self.stat.mean)}{ends}", self.stat.mean, std=self.stat.std, ends=self.ends)


def two_class_rates(group: Group, site: str, positive: int) -> dict[str, Rate | None]:
    """What two classes need beyond accuracy, at one site; None for what is not known or not defined.

    sensitivity = hits+ / n+,  specificity = hits- / n-,  balanced accuracy = their mean, or that of one class alone
    where the other has no test images. Intervals: Wilson's, of the mean of two shares, and Newcombe's of an AUC.
    """
    scores, exact = group.scores_at(site), not noisy_scores([group])
    known = all(any(score.total) for score in scores)
    sizes = tuple(min(score.total[k] for score in scores) for k in (1 - positive, positive)) if known else (0, 0)
    accuracy, auc = group.accuracy_at(site), [score.auc for score in scores if score.auc is not None]
    rates: dict[str, Rate | None] = {
        "accuracy": Rate(accuracy, wilson(accuracy.mean, sum(sizes)) if any(sizes) and exact else None)
        if accuracy
        else None
    }
    shares = []
    for name, k, size in zip(("specificity", "sensitivity"), (1 - positive, positive), sizes, strict=True):
        stat = summarise(score.correct[k] / score.total[k] for score in scores) if size else None
        rates[name] = Rate(stat, wilson(stat.mean, size) if exact else None) if stat else None
        shares += [(stat.mean, size)] if stat else []
    balanced = summarise(score.balanced for score in scores) if shares else None
    both = mean_interval(*zip(*shares, strict=True)) if shares and exact else None
    rates["balanced accuracy"] = Rate(balanced, both) if balanced else None
    area = summarise(auc) if len(auc) == len(scores) else None
    rates["AUC"] = Rate(area, auc_interval(area.mean, *sizes) if all(sizes) and exact else None) if area else None
    return rates


RATES_SHOWN = ("accuracy", "balanced accuracy", "sensitivity", "specificity", "AUC")


def binary_table(groups: Sequence[Group]) -> Table | None:
    """A row for each method at each site if all data has two classes: few test images need more than accuracy."""
    if any(len(run.manifest.data.classes) != 2 for group in groups for run in group.runs):
        return None
    positive, missing, rows = positive_class(groups), missing_classes(groups), list[Row]()
    for group, site in ((group, site) for group in groups for site in site_names(groups) if group.scores_at(site)):
        total = group.scores_at(site)[0].total
        images = Cell(f"{total[1 - positive]} + {total[positive]}" if any(total) else NONE)
        mark = ONE_CLASS_MARK if site in one_class_models(group) else ""
        rates = two_class_rates(group, site, positive)
        cells = (rate.cell if (rate := rates[name]) else Cell(NONE) for name in RATES_SHOWN)
        rows.append((Cell(group.label), Cell(marked(site, missing) + mark), images, *cells))
    words = (METHOD, Column("site", number=False), Column("images", number=False))
    classes = groups[0].runs[0].manifest.data.classes
    yes, no = classes[positive], classes[1 - positive]
    note = (
        f"Positive class: {yes!r}; --set positive=NAME chooses another. Sensitivity: the share of its images that "
        f"are found; specificity: that of {no!r}. Images: {no} + {yes}. In parentheses: 95 % interval over images."
    )
    columns = (*words, *(Column(name, percent=True) for name in RATES_SHOWN))
    return Table(columns, tuple(rows), (note, NOISY_NOTE) if noisy_scores(groups) else (note,)) if rows else None


def class_facts(groups: Sequence[Group], group: Group) -> dict[str, Any]:
    """What tables and notes say about one of the methods, for JSON."""
    finals = [(run, run.final) for run in group.counted if run.final]
    sites = [site.name for site in groups[0].runs[0].manifest.data.sites]
    facts: dict[str, Any] = {
        "largest_class": largest_class(groups),
        "one_class_model": one_class_models(group),
        "one_class_sites": one_class_sites(groups),
        "unscored_sites": [site for site in sites if any(site not in final.scores for _, final in finals)],
    }
    table = binary_table([group])
    if table:
        positive = positive_class(groups)
        facts["positive_class"] = groups[0].runs[0].manifest.data.classes[positive]
        facts["two_classes"] = {
            site: {
                name.lower().replace(" ", "_"): {**asdict(rate.stat), "interval": rate.ends} if rate else None
                for name, rate in two_class_rates(group, site, positive).items()
            }
            for site in sites
            if group.scores_at(site)
        }
    return facts
