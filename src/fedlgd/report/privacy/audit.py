"""What attacks found: the table of an audit with its controls, the verdict, and how to read the numbers."""

from collections.abc import Iterator, Sequence
from statistics import NormalDist

from fedlgd.core.text import counted, plural
from fedlgd.report.formats import NONE, Cell, Column, Row, Table, percent
from fedlgd.report.privacy.roc import TARGETS
from fedlgd.rundir.results import RATES, Audit, Finding

NO_LEAK = "no leak found by this attack"
CLEAR = 0.02  # distance of an area from 1/2 below which a blind control counts as at chance


def audit_table(audit: Audit) -> Table:
    """Attacks on the run, then controls below a line. A rate that no row can measure has a note, not a column."""
    rates = [rate for rate in RATES if any(each.tpr.get(f"{rate:g}") for each in audit.findings)]
    columns = (
        Column("method", number=False),
        Column("attack", number=False),
        Column("AUC"),
        *(Column(f"TPR at {100 * rate:g} % FPR") for rate in rates),
        Column("epsilon ≥"),
        Column("accuracy, %", percent=True),
    )
    own = [each for each in audit.findings if each.kind == "run"]
    controls = [each for each in audit.findings if each.kind != "run"]
    most = max(each.n_out for each in audit.findings)
    unknown = (f"TPR at {100 * rate:g} % FPR: not measurable (n = {most})." for rate in RATES if rate not in rates)
    rows = tuple(_row(each, rates) for each in (*own, *controls))
    return Table(columns, rows, (*unknown, *_promised(audit)), line=len(own))


def _row(found: Finding, rates: Sequence[float]) -> Row:
    low, middle, high = found.auc
    name = found.label + (" (must leak)" if found.kind == "positive" else "")
    epsilon = found.epsilon_lower
    return (
        Cell(name),
        Cell(f"{TARGETS[found.target]}: {found.statistic}"),
        Cell(f"{middle:.3f} [{low:.3f}, {high:.3f}]", middle),
        *(_rate(found, f"{rate:g}") for rate in rates),
        Cell(NONE) if epsilon is None else Cell(f"{epsilon:.2f}", epsilon),
        Cell(NONE) if found.accuracy is None else Cell(percent(found.accuracy), found.accuracy),
    )


def _rate(found: Finding, rate: str) -> Cell:
    interval = found.tpr.get(rate)
    if interval is None:
        return Cell(f"not measurable (n = {found.n_out})")
    low, middle, high = (percent(each) for each in interval)
    return Cell(f"{middle} % [{low}, {high}]", interval[1])


def _promised(audit: Audit) -> tuple[str, ...]:
    if audit.promised is None:
        return ()
    by = " in a simulation, which protects nothing" if audit.promised.simulation else ""
    return (f"Promised{by}: epsilon at most {audit.promised.epsilon:g} at delta {audit.promised.delta:g}.",)


def leaking(audit: Audit) -> list[Finding]:
    """The attacks on the run that are better than chance with 95 % confidence."""
    return [each for each in audit.findings if each.kind == "run" and each.auc[0] > 0.5]


def verdict(audit: Audit) -> str:
    """Whether a leak was found. The controls decide whether anything can be concluded at all."""
    blind = [each for each in audit.findings if each.kind == "blind"]
    if any(_off_chance(each, len(blind)) for each in blind):
        return "Nothing can be concluded: the blind control is not at chance, so both sides differ by their origin."
    positive = [each for each in audit.findings if each.kind == "positive"]
    if positive and not any(each.auc[0] > 0.5 for each in positive):
        return "Nothing can be concluded: the attack misses the control that must leak."
    if found := leaking(audit):
        worst = max(found, key=lambda each: each.auc[1])
        where = ", ".join(dict.fromkeys(TARGETS[each.target] for each in found))
        return f"Leak found: {where}; the largest area is {worst.auc[1]:.3f} ({worst.statistic})."
    return f"{NO_LEAK[:1].upper()}{NO_LEAK[1:]}. This is absence of evidence: another attack may find one."


def _off_chance(found: Finding, tests: int) -> bool:
    """Whether the area of one of several blind controls is clearly not 1/2, at a level of 5 % for all together."""
    low, middle, high = found.auc
    wider = NormalDist().inv_cdf(1 - 0.025 / tests) / NormalDist().inv_cdf(0.975)
    width = wider * (middle - low if middle > 0.5 else high - middle)
    return abs(middle - 0.5) > max(CLEAR, width)


def audit_caveats(audit: Audit) -> Iterator[str]:
    """How to read the numbers, from what was done."""
    if audit.attack == "paper":
        yield (
            "The protocol of the paper: one model, training images against test images. Both sides can differ by "
            "their origin; an audit with shadow federations does not have this problem."
        )
    else:
        yield (
            f"Attacked are {plural(audit.federations, 'federation')} with the settings of the run, in which site "
            f"{audit.site} trains on a random half of {plural(_images(audit), 'image')}{_rest(audit)}; the others "
            "serve as shadows of each. The same images are used for targets and shadows: this favours the attacker."
        )
    fewer = {each.federations for each in audit.findings if each.kind == "baseline"} - {audit.federations}
    if fewer and audit.attack != "paper":
        yield (
            f"Controls have {plural(min(fewer), 'federation')}, to save time: their attack has fewer shadows and "
            "is a little weaker: FedAvg can leak a little more than shown. With --thorough all have the same."
        )
    if audit.settings.get("in_sample"):
        yield "Biased: densities were tested on the points they were fitted on, which finds leaks in pure noise."
    if any("equal steps" in each.label for each in audit.findings):
        yield "FedAvg on real data takes as many SGD steps per round as the run; with --thorough all its epochs."
    yield (
        "Intervals are 95 %, by a bootstrap over images. Areas are means over images: single images can be exposed "
        "more. Accuracy is the mean over sites of the attacked models."
    )
    worst = [each.worst for each in audit.findings if each.kind == "run" and each.worst is not None]
    if worst:
        yield f"99th percentile of the area over single images: {max(worst):.3f}."


def _rest(audit: Audit) -> str:
    rest = audit.images - _images(audit)
    return f" and on its {rest:,} other {counted(rest, 'image')}" if rest > 0 else ""


def _images(audit: Audit) -> int:
    """Attacked images, canaries included."""
    first = audit.findings[0]
    parts = [each for each in audit.findings if (each.kind, each.target) == (first.kind, first.target)]
    return round(sum((each.n_in + each.n_out) / each.federations for each in parts))
