"""The generated tables of docs/results/parts.md: what each part of FedLGD is worth.

A run is recognised by its method and by what its settings switch off, not by the name of its folder.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedlgd.core.text import enumeration
from fedlgd.report.summary import Difference, paired_difference
from fedlgd.rundir.read import Run
from results import RECORDS
from results.pages.accuracy import runs_of, shown, spread, table

NOT_MEASURED = "not measured"
FEDLGD, FEDAVG, PICKS = "FedLGD", "FedAvg, same first sets", "FedAvg, real picks"
REDRAW, REDRAWN = "FedAvg + redraw", "FedLGD + redraw"
PARTS = {
    "matching": "FedLGD without matching",
    "refinement": "FedLGD without refinement",
    "anchors": "FedLGD without anchors and pull",
    "pull": "FedLGD without pull",
}
"""What a table calls FedLGD without one of its parts."""
SWITCHES = {
    "matching": ("distil", "steps"),
    "refinement": ("refine", "steps"),
    "anchors": ("anchors", "per_class"),
    "pull": ("pull", "weight"),
}
"""The setting that is 0 if a part is off."""
ALL = (FEDLGD, *PARTS.values(), FEDAVG, REDRAW, REDRAWN)
WHOLE = (FEDLGD, FEDAVG, REDRAW)


class Trial(NamedTuple):
    """What is compared on one federation, measured or not."""

    where: str
    entries: Sequence[str]


TRIALS: Mapping[str, Trial] = {
    "strong-digits": Trial("real digits", ALL),
    "parts-builtin": Trial("built-in digits", ALL),
    "parts-cifar10c": Trial("CIFAR10C", ALL),
    "parts-retina": Trial("two clinics", WHOLE),
    "parts-split": Trial("CIFAR-10, label shift", WHOLE),
}
"""Stored runs of preset `strong`. The settings were chosen on the first three; no search saw the others."""
OTHERS = {
    "strong-fifty": Trial("real digits, 50 per class", (FEDLGD, FEDAVG, PICKS)),
    "strong-longer": Trial("real digits, 60 x 30", (FEDLGD, FEDAVG)),
    "strong-five": Trial("five digit sites, 60 x 30", (FEDLGD, FEDAVG)),
    "strong-cifar10c": Trial("CIFAR10C, 57 sites", (FEDLGD, FEDAVG)),
}
Scores = Mapping[str, Mapping[int, float]]
"""Final accuracy (%) by entry and seed."""


def worth(name: str) -> str:
    """The table of one federation, `all` of them side by side, or what they say together."""
    if name == "answer":
        return answer({trial.where: scores_of(key) for key, trial in TRIALS.items()})
    return beside() if name == "all" else one(scores_of(name), {**TRIALS, **OTHERS}[name].entries)


def scores_of(name: str) -> Scores:
    found: dict[str, dict[int, float]] = {}
    for run in runs_of(name) if (RECORDS / name).is_dir() else ():
        if run.finished and run.final and (entry := entry_of(run)):
            found.setdefault(entry, {})[run.seed] = 100 * run.final.accuracy
    return found


def entry_of(run: Run) -> str:
    """What the tables call a run; nothing for one that they do not show."""
    off = {part for part, (section, key) in SWITCHES.items() if not run.settings.get(section, {}).get(key, 1)}
    match run.manifest.method.name:
        case "fedavg+redraw":
            return REDRAW
        case "fedlgd+redraw":  # redrawing replaces what is matched at the enrolment
            return REDRAWN if off <= {"matching"} else ""
        case "fedavg" if run.settings["train_on"] == "virtual":
            own = FEDAVG if "matching" not in off else ""
            return PICKS if run.settings["distil"]["start"] == "real" else own
        case "fedlgd":
            off -= {"pull"} if "anchors" in off else set()  # without anchors nothing pulls
            return FEDLGD if not off else PARTS[off.pop()] if len(off) == 1 else ""
    return ""


def gaps_of(scores: Scores) -> Mapping[str, Difference]:
    """Each entry minus FedLGD, paired by seed."""
    ours = scores.get(FEDLGD, {})
    return {
        entry: gap
        for entry, values in scores.items()
        if entry != FEDLGD and (gap := paired_difference(values, ours))
    }


def one(scores: Scores, entries: Sequence[str]) -> str:
    gaps, rows = gaps_of(scores), []
    for entry in entries:
        values = list(scores.get(entry, {}).values())
        mean = spread(values) if values else NOT_MEASURED
        rows.append([entry, str(len(values) or ""), mean, shown(gaps.get(entry))])
    return table(["", "seeds", "mean", "minus FedLGD, 95 % interval"], rows)


def beside() -> str:
    """The differences on all federations, a column each."""
    gaps = [(gaps_of(scores_of(name)), trial.entries) for name, trial in TRIALS.items()]
    rows = [
        [entry, *(shown(own.get(entry)) or (NOT_MEASURED if entry in planned else "") for own, planned in gaps)]
        for entry in ALL[1:]
    ]
    return table(["minus FedLGD", *(trial.where for trial in TRIALS.values())], rows)


def answer(found: Mapping[str, Scores]) -> str:
    """On which federations FedLGD is above FedAvg, and a part is worth something, by more than the noise."""
    gaps = {where: gaps_of(scores) for where, scores in found.items()}
    subjects = {"FedLGD instead of FedAvg on the same first sets": FEDAVG, **PARTS}
    told = {what: effect(entry, gaps) for what, entry in subjects.items()}
    missing = enumeration(what for what, text in told.items() if not text)
    last = [f"{NOT_MEASURED.capitalize()} yet: {missing}."] if missing else []
    return " ".join([*(f"{what[0].upper()}{what[1:]} {text}." for what, text in told.items() if text), *last])


def effect(entry: str, gaps: Mapping[str, Mapping[str, Difference]]) -> str:
    """What is gained by what this entry lacks: the interval lies above 0, below 0, contains it, or is not known."""
    clauses: dict[str, list[str]] = {"gains": [], "loses": [], "is within the noise": [], "has too few seeds": []}
    for where, own in gaps.items():
        if gap := own.get(entry):
            if gap.interval is None:
                verb = "has too few seeds"
            else:
                verb = "gains" if gap.interval[1] < 0 else "loses" if gap.interval[0] > 0 else "is within the noise"
            size = f"{abs(gap.mean):.1f} points " if verb in ("gains", "loses") else ""
            clauses[verb].append(f"{size}on {where}")
    return "; ".join(f"{verb} {enumeration(places)}" for verb, places in clauses.items() if places)
