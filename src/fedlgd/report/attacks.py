"""Results of attacks on a run: membership audits, and gradient inversions with copies of training images.

Sentences have a kind (`leak`, `no-leak`, ...), so that programs need not read their English.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

from fedlgd.core.files import safe_name
from fedlgd.core.settings import flat
from fedlgd.core.text import counted, plural
from fedlgd.report.figures import Drawing
from fedlgd.report.grids import PageImage, picture_of
from fedlgd.report.groups import short
from fedlgd.report.plots import FAINT, INK, canvas, series_style, styled, wrapped
from fedlgd.report.tables import NONE, Cell, Column, Row, Sentence, Table, percent
from fedlgd.rundir.manifest import with_note
from fedlgd.rundir.read import Run
from fedlgd.rundir.results import AUDIT, RATES, Attacked, Audit, Finding, Memorised

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NO_LEAK = "no leak found by this attack"
TARGETS = {
    "model": "model",
    "virtual": "virtual set",
    "anchors": "anchors",
    "updates": "updates",
    "releases": "noisy sums",
    "uploads": "uploaded images",
    "features": "feature means",
}
"""What is attacked, in words."""
BLIND_TOLERANCE = 0.02  # distance of an area from 1/2 below which a blind control counts as at chance
MIN_RATE = 1e-3  # of both axes of a ROC
RATE_TICKS = {0.001: "0.1 %", 0.01: "1 %", 0.1: "10 %", 1.0: "100 %"}
READING_ROC = (
    "Both axes are logarithmic. Bands: 95 % over images. A curve far above the dotted line at small false positive "
    "rates means that some images can be recognised almost with certainty."
)


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


def audit_part(run: Run, name: str) -> dict[str, Any]:
    """An audit of a run, with its ROC curves."""
    audit, about = run.audits[name], f"{run.label}, seed {run.seed}"
    heading = label_results({key: (f"site {each.site}", each.settings) for key, each in run.audits.items()})[name]
    stem = f"{safe_name(run.manifest.method.name)}-seed{run.seed}{name.removeprefix(AUDIT)}"
    drawings = []
    for number, (title, figure) in enumerate(roc_plots(audit)):
        words = f"ROC on log-log axes, {title}, {about}, {heading}"
        drawings.append(Drawing(f"roc{number}-{stem}", words, figure, "" if number else READING_ROC))
    numbers = {"table": audit_table(audit), "caveats": [*audit_caveats(audit)]}
    return {"heading": heading, "verdict": verdict(audit), "drawings": drawings, **numbers}


def verdict(audit: Audit) -> Sentence:
    """Whether a leak was found. The controls decide whether anything can be concluded at all.

    A blind control fails if its area is clearly not 1/2. If there is a leak, it fails as soon as its interval
    excludes 1/2, because a control that saw neither side must not look like the leak.
    """
    blind, found = [each for each in audit.findings if each.kind == "blind"], leaking(audit)
    tests = 1 if found else len(blind)
    if off := [each for each in blind if _off_chance(each, tests)]:
        low, middle, high = max(off, key=lambda each: abs(each.auc[1] - 0.5)).auc
        return Sentence(
            "blind-off-chance",
            f"Not decided: a control that saw neither side has an area of {middle:.3f} [{low:.3f}, {high:.3f}], "
            "not 0.5. Both sides differ by their origin, or by chance.",
        )
    positive = [each for each in audit.findings if each.kind == "positive"]
    if positive and not any(each.auc[0] > 0.5 for each in positive):
        return Sentence("control-missed", "Nothing can be concluded: the attack misses the control that must leak.")
    if found:
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
    """Attacks on the run, then controls below a line.

    A rate that no row can measure has a note, not a column. So has a lower bound of epsilon that is 0 in all rows;
    if nothing is decided it has no meaning, and neither.
    """
    rates = [rate for rate in RATES if any(each.tpr.get(f"{rate:g}") for each in audit.findings)]
    undecided = verdict(audit).kind == "blind-off-chance"
    bounded = not undecided and any(each.epsilon_lower for each in audit.findings)
    measured = ["AUC", *(f"TPR at {100 * rate:g} % FPR" for rate in rates), *(["epsilon ≥"] if bounded else [])]
    columns = (
        *(Column(name, number=False) for name in ("method", "attack")),
        *map(Column, measured),
        Column("accuracy, %", percent=True),
    )
    own = [each for each in audit.findings if each.kind == "run"]
    controls = [each for each in audit.findings if each.kind != "run"]
    most = max(each.n_out for each in audit.findings)
    notes = [f"TPR at {100 * rate:g} % FPR: not measurable (n = {most})." for rate in RATES if rate not in rates]
    if not (bounded or undecided):
        notes.append("epsilon ≥: no lower bound above 0 was found.")
    if promised := audit.promised:
        by = " in a simulation, which protects nothing" if promised.simulation else ""
        notes.append(f"Promised{by}: epsilon at most {promised.epsilon:g} at delta {promised.delta:g}.")
    return Table(
        columns,
        tuple(_finding_row(each, rates, bounded) for each in (*own, *controls)),
        tuple(notes),
        line=len(own),
    )


def _finding_row(found: Finding, rates: Sequence[float], bounded: bool) -> Row:
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
        *([Cell(f"{epsilon:.2f}", epsilon) if epsilon else Cell(NONE)] if bounded else []),
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
    if any("default settings" in each.label for each in audit.findings if each.kind == "baseline"):
        text = "FedAvg on real data trains by its default settings: the method of the run has no settings `local`."
        yield Sentence("default-training", text)
    if audit.unattacked:
        words = ", ".join(f"{kind} ({path})" for path, kind in audit.unattacked.items())
        yield Sentence("not-attacked", f"Sent, not attacked: {words}. This audit says nothing about them.")
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
        f"{audit.site} trains on a random half of {plural(images, 'image')}{rest}. The others "
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


SAFER = "↑ higher = safer"
LESS_SAFE = "↓ lower = safer"
PICTURE_ROWS = ("original", "reconstruction", "nearest training image", "nearest held-out image")
MAX_CLOSEST_PICTURES = 2
READING_NOTES = (
    "Identified: the true image is the nearest of up to 100 images of its class at the site, in percent, with a "
    "95 % interval. For updates on virtual images the true image is a virtual one: to identify it is harmless "
    "unless it copies a training image.",
    "Nearer to training: how often a reconstruction is nearer to a training image than to every held-out image, "
    "how often it would be by chance, and p.",
    "An attack that fails is no proof: a longer one, or one that knows more, may succeed.",
)
DISTANCE_NOTE = (
    "Distances to the nearest image ignore contrast and brightness, which networks with instance norm do not see."
)
MEMORY_NOTE = (
    "Virtual images of a class resemble one another, so p is smaller than for independent images. Training and "
    "held-out images of published sets can differ by origin."
)


def inversion_part(run: Run, name: str) -> dict[str, Any]:
    """An inversion of updates of a run. `hidden`: where the pictures are, if they are not shown."""
    found = run.inversions[name]
    known = {key: each.settings for key, each in run.inversions.items() if each.cells}
    labels = label_results({key: (f"site {each.site}", asdict(each)) for key, each in known.items()})
    cells, memory = tuple(found.cells.values()), sorted(found.memorisation, key=lambda each: each.p_value)
    attacked = [(f"{cell.title}, after round {cell.round}, batch {cell.batch}", cell.picture) for cell in cells]
    nearest = [(f"{each.what}, {each.site}", each.picture) for each in memory[:MAX_CLOSEST_PICTURES]]
    show = found.settings.show
    hidden = f"Pictures of private images are in {run.path}/{name} and not in this page; --show puts them here."
    return {
        "heading": f"{run.label}, seed {run.seed}, {labels[name]}",
        "headline": f"{identified(cells)} {found.promise}".rstrip(),
        "table": identification_table(cells),
        "distances": distance_table(cells),
        "pictures": [*_pictures(run, name, attacked, PICTURE_ROWS)] if show else [],
        "hidden": "" if show else hidden,
        "memory": memory_table(memory) if memory else None,
        "closest": [*_pictures(run, name, nearest, ("virtual image", *PICTURE_ROWS[2:]))] if show else [],
    }


def _pictures(
    run: Run, folder: str, named: Sequence[tuple[str, str]], rows: tuple[str, ...]
) -> Iterator[PageImage]:
    """The pictures of these names in this folder of the run; a path in a file cannot point elsewhere."""
    for caption, path in named:
        file = run.path / folder / path.rpartition("/")[2]
        shown = picture_of(file.read_bytes(), caption, run.manifest.data) if file.is_file() else None
        if shown:
            yield replace(shown, rows=rows)


def identified(cells: Sequence[Attacked]) -> str:
    """The identification rate of each kind of update, over all its cells, and the rate of guessing."""
    rates = []
    for title in dict.fromkeys(cell.title for cell in cells):
        own = [cell for cell in cells if cell.title == title]
        images = sum(cell.images for cell in own)
        rate = sum(cell.images * cell.identified for cell in own) / images
        chance = sum(cell.images * cell.chance for cell in own) / images
        rates.append(f"{title}: {percent(rate)} % of {plural(images, 'image')}, by chance {percent(chance)} %")
    return f"Identified: {'; '.join(rates)}."


UPDATE_COLUMNS = (Column("update", number=False), Column("after round"), Column("batch"))


def identification_table(cells: Sequence[Attacked]) -> Table:
    """How often images were found, for each kind of update, round and size of batch."""
    names = ("identified, %", "by chance, %", "mean rank", "nearer to training, %", "by chance, %", "p")

    def row(cell: Attacked) -> Row:
        low, high = map(percent, cell.interval)
        found = Cell(f"{percent(cell.identified)} [{low}, {high}]", cell.identified)
        rank = Cell(f"{cell.rank:.1f} of {cell.candidates}", cell.rank)
        return (*_update_cells(cell), found, Cell(percent(cell.chance), cell.chance), rank, *_nearness(cell))

    return Table((*UPDATE_COLUMNS, *map(Column, names)), tuple(map(row, cells)), READING_NOTES)


def distance_table(cells: Sequence[Attacked]) -> Table:
    """How well images were found; arrows say which direction is safer."""
    columns = (
        *UPDATE_COLUMNS,
        *(Column(f"{name} {LESS_SAFE}") for name in ("PSNR, dB", "aligned PSNR, dB", "SSIM")),
        *(Column(f"{name} {SAFER}") for name in ("feature distance", "to nearest training image")),
        Column("to nearest held-out image"),
    )

    def row(cell: Attacked) -> Row:
        signal = (_number(value, 1) for value in (cell.psnr, cell.psnr_aligned))
        distances = (cell.ssim, cell.feature_distance, cell.distance_training, cell.distance_held_out)
        return (*_update_cells(cell), *signal, *(_number(value, 3) for value in distances))

    return Table(columns, tuple(map(row, cells)), (DISTANCE_NOTE,))


def _update_cells(cell: Attacked) -> Row:
    return Cell(cell.title), Cell(str(cell.round), cell.round), Cell(str(cell.batch), cell.batch)


def memory_table(found: Sequence[Memorised]) -> Table:
    """How near virtual images and anchors are to training images."""
    columns = (
        *(Column(name, number=False) for name in ("images", "site")),
        *(Column(name) for name in ("after round", "number", f"closest distance {SAFER}")),
        *(Column(name) for name in ("nearer to training, %", "by chance, %", "p")),
    )

    def row(each: Memorised) -> Row:
        numbers = (Cell(str(each.round + 1), each.round), Cell(str(each.images), each.images))
        closest = _number(min(each.closest, default=None), 3)
        return (Cell(each.what), Cell(each.site), *numbers, closest, *_nearness(each))

    return Table(columns, tuple(map(row, found)), (MEMORY_NOTE,))


def _number(value: float | None, places: int) -> Cell:
    return Cell(NONE) if value is None else Cell(f"{value:.{places}f}", value)


def _nearness(found: Attacked | Memorised) -> tuple[Cell, ...]:
    if found.nearer_training is None or found.expected is None or found.p_value is None:
        return (Cell(NONE),) * 3
    shares = (found.nearer_training, found.expected)
    return (*(Cell(percent(share), share) for share in shares), Cell(f"{found.p_value:.2g}", found.p_value))
