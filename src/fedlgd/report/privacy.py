"""The section on privacy: what left each site, what is promised, and what membership attacks found.

Sentences have a kind (`leak`, `simulation`, ...), so that programs need not read their English.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from fedlgd.core.files import safe_name
from fedlgd.core.settings import flat
from fedlgd.core.text import counted, number_of_bytes, plural
from fedlgd.dp import accounting
from fedlgd.report.figures import Drawing
from fedlgd.report.formats import NONE, Cell, Column, Row, Sentence, Table, percent
from fedlgd.report.groups import Group, short
from fedlgd.report.plots import FAINT, INK, canvas, series_style, styled, wrapped
from fedlgd.rundir.manifest import Promise
from fedlgd.rundir.read import Run
from fedlgd.rundir.results import AUDIT, RATES, Audit, Finding
from fedlgd.rundir.sweep import with_note

if TYPE_CHECKING:
    from matplotlib.figure import Figure

VIRTUAL_ONLY = "Real images of the site enter through its virtual set only."
SHARE_NAMES = {"start": "initial images", "refine": "refinement", "distil": "first virtual set"}
NO_LEAK = "no leak found by this attack"
TARGETS = {
    "model": "model",
    "virtual": "virtual set",
    "anchors": "anchors",
    "updates": "updates",
    "releases": "noisy sums",
}
"""What is attacked, in words."""
BLIND_TOLERANCE = 0.02  # distance of an area from 1/2 below which a blind control counts as at chance
MIN_RATE = 1e-3  # of both axes of a ROC
RATE_TICKS = {0.001: "0.1 %", 0.01: "1 %", 0.1: "10 %", 1.0: "100 %"}
READING_ROC = (
    "Both axes are logarithmic. Bands: 95 % over images. A curve far above the dotted line at small false positive "
    "rates means that some images can be recognised almost with certainty."
)


@dataclass(frozen=True, slots=True, eq=False)
class AuditPart:
    """One audit of a run; the heading has the settings in which it differs from others of the same run."""

    heading: str
    verdict: Sentence
    drawings: tuple[Drawing, ...]
    table: Table
    caveats: tuple[Sentence, ...]


def privacy_section(groups: Sequence[Group]) -> dict[str, Any]:
    """Every audited run, and one run of each group without an audit. `shares`: parts of the budget in percent."""
    runs = [run for group in groups for run in [run for run in group.runs if run.audits] or group.counted[:1]]

    def part(run: Run) -> dict[str, Any]:
        heading, promised = f"{run.label}, seed {run.seed}", run.manifest.promise
        promise = {"promise": promise_sentence(promised), "shares": budget_parts(promised)}
        return {"heading": heading, "left": left_table(run), "audits": [*audit_parts(run)], **promise}

    return {"spent": spent_together(groups), "runs": [part(run) for run in runs]}


def spent_together(groups: Sequence[Group]) -> str:
    """What the sites have spent on all these runs; empty unless several runs make a promise with their secret.

    Runs of private distillation on all images are Gaussian: mu^2 adds up, at the smallest delta. Otherwise both
    epsilon and delta add up, which is always true. Promises to images and to sites have no common sum.
    """
    promised = {
        (run.manifest.data.digest, run.seed, str(run.settings)): run.manifest.promise
        for group in groups
        for run in group.runs
        if run.manifest.promise and not run.manifest.promise.simulation
    }
    budgets = list(promised.values())
    if len(budgets) < 2 or len({data for data, *_ in promised}) > 1 or len({each.protects for each in budgets}) > 1:
        return ""
    if all(each.gaussian for each in budgets):
        delta = min(each.delta for each in budgets)
        mu = math.sqrt(sum(accounting.mu_for(each.epsilon, each.delta) ** 2 for each in budgets))
        epsilon = accounting.epsilon(mu, delta)
    else:
        epsilon, delta = sum(each.epsilon for each in budgets), sum(each.delta for each in budgets)
    ledger = " Its ledger knows of other runs." if budgets[0].protects == "image" else ""
    return (
        f"These {len(budgets)} runs have the same images: on them together each site has spent at most (epsilon, "
        f"delta) = ({epsilon:.3g}, {delta:.2g}).{ledger}"
    )


def left_table(run: Run) -> Table:
    """What every site has sent, with bytes per site: the mean over sites, because records have only sums.

    Where whole sites are hidden, the server adds the noise, and what a site sends has none.
    """
    method, promised = run.manifest.method, run.manifest.promise
    hides_images = promised is not None and promised.protects == "image"
    counts = "noisy" if hides_images else "exact"
    statistics = ", and pixel statistics" if "statistics" in method.hello else ""
    update = " and ".join("training loss" if each == "loss" else each for each in method.update)
    basis = VIRTUAL_ONLY if method.train_on == "virtual" else "Trained on real images."
    noise = "yes" if hides_images else "at the server" if promised else "no"
    rows: tuple[tuple[str, bool | None, str, str], ...] = (
        ("hello, once", True, f"{counts} counts of images per class{statistics}", "yes" if hides_images else "no"),
        ("updates", False, f"{update}. {basis}", noise),
        (
            f"scores, {plural(len(run.evaluated), 'time')}",
            None,
            "accuracy, loss and correct images per class of test images",
            "yes" if promised and promised.scores else "no",
        ),
        ("seconds and FLOPs", None, "tell about how many images the site has", "no"),
    )

    def size(before_rounds: bool | None) -> Cell:
        if before_rounds is None:
            return Cell(NONE)
        total = sum(record.bytes_up for record in run.records if (record.round < 0) is before_rounds)
        mean = total / max(1, len(run.manifest.data.sites))
        return Cell(number_of_bytes(mean), mean)

    words = [Column(name, number=False) for name in ("what left each site", "from", "noise")]
    columns = (words[0], Column("bytes per site"), *words[1:])
    return Table(columns, tuple((Cell(what), size(when), Cell(of), Cell(noisy)) for what, when, of, noisy in rows))


def promise_sentence(promised: Promise | None) -> Sentence | None:
    """What is promised to each training image, or to each site, and what is not covered; None without a promise."""
    if promised is None:
        return None
    if promised.simulation:
        return Sentence("simulation", "Simulation, no privacy: the noise comes from a public key (test_key).")
    relation = "replace" if promised.adjacency == "replace" else "add or remove"
    budget = f"(epsilon, delta) = ({promised.epsilon:g}, {promised.delta:g}), {relation} one {promised.protects}"
    if promised.protects == "site":
        covers = "the models that the server sends; not what the server receives, nor scores on test images"
        return Sentence("site", f"Each site: {budget}. It covers {covers}.")
    first, later = promised.releases, promised.refinements
    over = f", over {f'{first} + ' if later else ''}{plural(later or first, 'release')}" if first else ""
    covers = "It covers models, anchors, prototypes and virtual sets; not"
    text = f"Each training image of each site: {budget}{over}. {covers}"
    if promised.scores:
        scores = f"Each test image: epsilon {promised.scores:g}."
        return Sentence("image", f"{text} the time that training takes. {scores}")
    return Sentence("image", f"{text} scores on test images.")


def budget_parts(promised: Promise | None) -> dict[str, float]:
    """The parts of the budget (of mu^2) in percent, by their purpose in words."""
    shares = promised.shares if promised else {}
    return {SHARE_NAMES.get(name, name): 100 * share for name, share in shares.items() if share}


def audit_parts(run: Run) -> Iterator[AuditPart]:
    """The audits of a run with their ROC curves."""
    labels = label_results({name: ("site " + each.site, each.settings) for name, each in run.audits.items()})
    for name, audit in run.audits.items():
        stem = f"{safe_name(run.manifest.method.name)}-seed{run.seed}{name.removeprefix(AUDIT)}"
        drawings = []
        for number, (title, figure) in enumerate(roc_plots(audit)):
            about = f"ROC on log-log axes, {title}, {run.label}, seed {run.seed}, {labels[name]}"
            drawings.append(Drawing(f"roc{number}-{stem}", about, figure, "" if number else READING_ROC))
        caveats = tuple(audit_caveats(audit))
        yield AuditPart(labels[name], verdict(audit), tuple(drawings), audit_table(audit), caveats)


def label_results(results: Mapping[str, tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """The label of each result of a run, with the settings in which they differ: `site scans (attack=lira)`.

    The site is in the label, and what is shown of a result does not change it.
    """
    found = {name: dict(flat(settings)) for name, (_, settings) in results.items()}
    paths = dict.fromkeys(path for each in found.values() for path in each if path not in ("site", "show"))
    values = {path: {str(each[path]) for each in found.values() if path in each} for path in paths}
    differ = [path for path in paths if len(values[path]) > 1]
    return {
        name: with_note(label, {path: short(path, found[name][path]) for path in differ if path in found[name]})
        for name, (label, _) in results.items()
    }


def verdict(audit: Audit) -> Sentence:
    """Whether a leak was found. The controls decide whether anything can be concluded at all."""
    blind = [each for each in audit.findings if each.kind == "blind"]
    if any(_off_chance(each, len(blind)) for each in blind):
        return Sentence(
            "blind-off-chance",
            "Nothing can be concluded: the blind control is not at chance, so both sides differ by their origin.",
        )
    positive = [each for each in audit.findings if each.kind == "positive"]
    if positive and not any(each.auc[0] > 0.5 for each in positive):
        return Sentence("control-missed", "Nothing can be concluded: the attack misses the control that must leak.")
    if found := leaking(audit):
        worst = max(found, key=lambda each: each.auc[1])
        where = ", ".join(dict.fromkeys(TARGETS[each.target] for each in found))
        return Sentence("leak", f"Leak found: {where}; the largest area is {worst.auc[1]:.3f} ({worst.statistic}).")
    said = NO_LEAK[0].upper() + NO_LEAK[1:]
    return Sentence("no-leak", f"{said}. This is absence of evidence: another attack may find one.")


def leaking(audit: Audit) -> list[Finding]:
    """The attacks on the run that are better than chance with 95 % confidence."""
    return [each for each in audit.findings if each.kind == "run" and each.auc[0] > 0.5]


def _off_chance(found: Finding, tests: int) -> bool:
    """Whether the area of one of several blind controls is clearly not 1/2, at a level of 5 % for all together."""
    low, middle, high = found.auc
    wider = NormalDist().inv_cdf(1 - 0.025 / tests) / NormalDist().inv_cdf(0.975)
    width = wider * (middle - low if middle > 0.5 else high - middle)
    return abs(middle - 0.5) > max(BLIND_TOLERANCE, width)


def audit_table(audit: Audit) -> Table:
    """Attacks on the run, then controls below a line. A rate that no row can measure has a note, not a column."""
    rates = [rate for rate in RATES if any(each.tpr.get(f"{rate:g}") for each in audit.findings)]
    columns = (
        *(Column(name, number=False) for name in ("method", "attack")),
        *map(Column, ("AUC", *(f"TPR at {100 * rate:g} % FPR" for rate in rates), "epsilon ≥")),
        Column("accuracy, %", percent=True),
    )
    own = [each for each in audit.findings if each.kind == "run"]
    controls = [each for each in audit.findings if each.kind != "run"]
    most = max(each.n_out for each in audit.findings)
    notes = [f"TPR at {100 * rate:g} % FPR: not measurable (n = {most})." for rate in RATES if rate not in rates]
    if promised := audit.promised:
        by = " in a simulation, which protects nothing" if promised.simulation else ""
        notes.append(f"Promised{by}: epsilon at most {promised.epsilon:g} at delta {promised.delta:g}.")
    return Table(columns, tuple(_row(each, rates) for each in (*own, *controls)), tuple(notes), line=len(own))


def _row(found: Finding, rates: Sequence[float]) -> Row:
    def rate_cell(interval: tuple[float, float, float] | None) -> Cell:
        if interval is None:
            return Cell(f"not measurable (n = {found.n_out})")
        low, middle, high = map(percent, interval)
        return Cell(f"{middle} % [{low}, {high}]", interval[1])

    low, middle, high = found.auc
    epsilon, accuracy = found.epsilon_lower, found.accuracy
    return (
        Cell(found.label + (" (must leak)" if found.kind == "positive" else "")),
        Cell(f"{TARGETS[found.target]}: {found.statistic}"),
        Cell(f"{middle:.3f} [{low:.3f}, {high:.3f}]", middle),
        *(rate_cell(found.tpr.get(f"{rate:g}")) for rate in rates),
        Cell(NONE) if epsilon is None else Cell(f"{epsilon:.2f}", epsilon),
        Cell(NONE) if accuracy is None else Cell(percent(accuracy), accuracy),
    )


def audit_caveats(audit: Audit) -> Iterator[Sentence]:
    """How to read the numbers, from what was done."""
    if audit.attack == "paper":
        yield Sentence(
            "paper-protocol",
            "The protocol of the paper: one model, training images against test images. Both sides can differ by "
            "their origin; an audit with shadow federations does not have this problem.",
        )
    else:
        yield Sentence("shadows", _shadow_text(audit))
    fewer = {each.federations for each in audit.findings if each.kind == "baseline"} - {audit.federations}
    if fewer and audit.attack != "paper":
        yield Sentence(
            "fewer-controls",
            f"Controls have {plural(min(fewer), 'federation')}, to save time: their attack has fewer shadows and "
            "is a little weaker: FedAvg can leak a little more than shown. With --thorough all have the same.",
        )
    if audit.settings.get("in_sample"):
        text = "Biased: densities were tested on the points they were fitted on, which finds leaks in pure noise."
        yield Sentence("in-sample", text)
    if any("equal steps" in each.label for each in audit.findings):
        text = "FedAvg on real data takes as many SGD steps per round as the run; with --thorough all its epochs."
        yield Sentence("equal-steps", text)
    yield Sentence(
        "intervals",
        "Intervals are 95 %, by a bootstrap over images. Areas are means over images: single images can be exposed "
        "more. Accuracy is the mean over sites of the attacked models.",
    )
    if worst := [each.worst for each in audit.findings if each.kind == "run" and each.worst is not None]:
        text = f"99th percentile of the area over single images: {max(worst):.3f}."
        yield Sentence("worst-image", text)


def _shadow_text(audit: Audit) -> str:
    """How many federations were attacked, and on what the attacked site trained in each; canaries are images."""
    first = audit.findings[0]
    parts = [each for each in audit.findings if (each.kind, each.target) == (first.kind, first.target)]
    images = round(sum((each.n_in + each.n_out) / each.federations for each in parts))
    others = audit.images - images
    rest = f" and on its {others:,} other {counted(others, 'image')}" if others > 0 else ""
    return (
        f"Attacked are {plural(audit.federations, 'federation')} with the settings of the run, in which site "
        f"{audit.site} trains on a random half of {plural(images, 'image')}{rest}; the others "
        "serve as shadows of each. The same images are used for targets and shadows: this favours the attacker."
    )


def roc_plots(audit: Audit) -> Iterator[tuple[str, "Figure"]]:
    """One plot for attacks on the model with its controls, and one for what else an attacker can have."""
    mu = audit.promised.mu if audit.promised else None
    if on_model := [each for each in audit.findings if each.target == "model"]:
        title = "true positives, attacks on the model"
        uses = Counter(each.label for each in on_model)
        names = [f"{each.label}, {each.statistic}" if uses[each.label] > 1 else each.label for each in on_model]
        yield title, roc_plot(on_model, names, title, mu)
    drawn = [each for each in audit.findings if each.kind in ("run", "positive") and each.roc]
    if others := [each for each in drawn if each.target != "model"]:
        title = "true positives, attacks on what else was made or sent"
        marks = {"run": "", "positive": "must leak: "}
        names = [f"{marks[each.kind]}{TARGETS[each.target]}: {each.statistic}" for each in others]
        yield title, roc_plot(others, names, title, mu)


@styled()
def roc_plot(findings: Sequence[Finding], names: Sequence[str], title: str, mu: float | None) -> "Figure":
    """A curve with its band for each finding, the diagonal of a guess, and the ceiling of a promise, if any.

    The axes are logarithmic: there the few exposed images can be seen."""
    figure, axes = canvas(title, 4.6)
    axes.plot([MIN_RATE, 1], [MIN_RATE, 1], color=INK, linestyle=":", linewidth=1, label="guessing")
    for number, (found, name) in enumerate(zip(findings, names, strict=True)):
        colour, dashes = series_style(number)
        fpr, tpr, low, high = zip(*(point for point in found.roc if point[0] > 0), strict=True)
        axes.plot(fpr, tpr, color=colour, linestyle=dashes, linewidth=1.6, label=wrapped(name, 26))
        axes.fill_between(fpr, low, high, color=colour, alpha=0.12, linewidth=0)
    if mu is not None:
        rates = [MIN_RATE ** (1 - i / 100) for i in range(101)]
        best = [ceiling(mu, rate) for rate in rates]
        axes.plot(rates, best, color=INK, linewidth=1.2, label="ceiling of the promise")
    axes.set(xscale="log", yscale="log", xlim=(MIN_RATE, 1), ylim=(MIN_RATE, 1), xlabel="false positive rate")
    axes.set_xticks(list(RATE_TICKS), list(RATE_TICKS.values()))
    axes.set_yticks(list(RATE_TICKS), list(RATE_TICKS.values()))
    axes.minorticks_off()
    axes.grid(color=FAINT, linewidth=0.5, axis="both")
    axes.legend(loc="lower right", fontsize="small")
    return figure


def ceiling(mu: float, fpr: float) -> float:
    """TPR of the best attack on a mu-GDP release:  Phi(mu + Phi^-1(FPR))."""
    normal = NormalDist()
    return 1.0 if fpr >= 1 else normal.cdf(mu + normal.inv_cdf(fpr))
