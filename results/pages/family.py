"""What leaves a site: accuracy, bytes, work, kinds of messages and audits of all methods, from stored runs."""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import product
from statistics import fmean
from typing import Any

from matplotlib.transforms import Bbox

from fedlgd.core.text import number_of_bytes
from fedlgd.report.attacks import TARGETS
from fedlgd.report.groups import Group, summarise
from fedlgd.report.plots import INK, SERIES, canvas, styled, svg
from fedlgd.report.tables import Cell, Column, Table, percent_stat
from fedlgd.rundir.read import Run
from fedlgd.rundir.results import Audit, Finding
from results import RECORDS
from results.pages.comparisons import groups_of, markdown

COMPARED = ("family-digits", "family-cifar10c")
AUDITS = "family-audits"  # stored runs of the same methods, each with its audit
TELLING = ("images", "weights", "logits", "feature means", "prototypes")  # kinds, the most telling first
NOTHING = "counts and losses only"
SEEN = ("model", "updates", "uploads", "features", "anchors")  # targets that the server sees
WIDTH, HEIGHT = 8.4, 5.6  # inches
PAPER, GREY = "#ffffff", "#777777"
PLACES = tuple(
    product((14, 26, 42, 60, 84, 110, 140), ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (1, -1), (-1, 1), (-1, -1)))
)
"""Where a name can stand beside its point: distance in pixels, and direction."""
NEAR = 30  # pixels from a point, at which a name is read as the name of that point
NO_COMPARISON = "FedAvg on real images was not run."
WORST = 100  # a name that hides something, beside a line that crosses something


def uploaded(run: Run) -> float:
    """Bytes that a site sent in the whole run, mean over sites."""
    return sum(record.bytes_up for record in run.records) / len(run.manifest.data.sites)


def work(run: Run, *, server: bool = False) -> float:
    """TFLOP of a site in the whole run, mean over sites; or those of the server."""
    spent = (
        value for record in run.records for phase, value in record.flops.items() if (phase == "server") == server
    )
    total = sum(spent) - sum(record.flops.get("evaluate", 0) for record in run.records if not server)
    return total / 1e12 / (1 if server else len(run.manifest.data.sites))


def kinds(group: Group) -> list[str]:
    """The kinds of what the sites declare to send."""
    return list(dict.fromkeys(group.runs[0].manifest.method.sends.values()))


def most_telling(group: Group) -> str:
    return next((kind for kind in TELLING if kind in kinds(group)), NOTHING)


def promised(group: Group) -> bool:
    return group.runs[0].manifest.promise is not None


def key(run: Run) -> tuple[str, ...]:
    """The method of a run, the images that its sites train on, and from what virtual images start."""
    return run.manifest.method.name, run.manifest.method.train_on, run.settings.get("distil", {}).get("start", "")


@cache
def audits() -> Mapping[tuple[str, ...], tuple[str, Audit]]:
    """The stored audit of each method, with its name in the comparisons, or its own if it is in none."""
    compared = (group for name in COMPARED if (RECORDS / name).exists() for group in groups_of(RECORDS / name))
    names = {key(each.runs[0]): each.label for each in compared if not promised(each)}
    groups = groups_of(RECORDS / AUDITS) if (RECORDS / AUDITS).exists() else ()
    runs = [run for group in groups for run in group.runs]
    return {key(run): (names.get(key(run), run.label), audit) for run in runs for audit in run.audits.values()}


def against(audit: Audit) -> dict[str, Finding]:
    """The best attack on each target of the run."""
    own = sorted((each for each in audit.findings if each.kind == "run"), key=lambda each: each.auc[1])
    return {each.target: each for each in own}


def area(found: Finding) -> str:
    low, middle, high = found.auc
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def attacked(group: Group) -> str:
    """The best attack on what the server sees."""
    if promised(group) or key(group.runs[0]) not in audits():
        return "–"
    found = against(audits()[key(group.runs[0])][1])
    best = max((found[name] for name in SEEN if name in found), key=lambda each: each.auc[1], default=None)
    return f"{TARGETS[best.target]} {area(best)}" if best else "–"


def best_first(groups: Sequence[Group]) -> list[Group]:
    return sorted((group for group in groups if group.accuracy), key=lambda group: -group.mean)


def leaves(name: str) -> str:
    """All methods of a stored comparison, the best first: accuracy, bytes, work, what leaves, what attacks find."""
    if not (RECORDS / name).exists():
        return "No stored runs."
    heads = ["method", "seeds", "accuracy (%)", "sent by a site", "TFLOP of a site", "of the server"]
    heads += ["what leaves", "best attack"]
    groups = groups_of(RECORDS / name)
    rows = [
        (
            *(group.label, str(len(group.counted)), percent_stat(group.accuracy)),
            number_of_bytes(fmean(map(uploaded, group.counted))),
            *(f"{fmean(work(run, server=at) for run in group.counted):.3f}" for at in (False, True)),
            *(", ".join(kinds(group)), attacked(group)),
        )
        for group in best_first(groups)
    ]
    columns = tuple(Column(head, number=1 <= i <= 5) for i, head in enumerate(heads))
    return markdown(Table(columns, tuple(tuple(map(Cell, row)) for row in rows)))


def answer(name: str) -> str:
    """FedAvg on real images, and of the methods with one model for all sites the best whose sites send virtual
    images, and the best whose sites only train on them."""
    if not (RECORDS / name).exists():
        return "No stored runs."
    groups = [group for group in best_first(groups_of(RECORDS / name)) if group.competes]
    without = [group for group in groups if not promised(group)]
    real = next((group for group in without if key(group.runs[0])[:2] == ("fedavg", "real")), None)
    sending = next((group for group in without if "images" in kinds(group)), None)
    training = next((g for g in without if key(g.runs[0])[1] == "virtual" and "weights" in kinds(g)), None)
    if real is None:
        return NO_COMPARISON

    def said(group: Group) -> str:
        times = fmean(map(uploaded, group.counted)) / fmean(map(uploaded, real.counted))
        return f"{group.label} is best, with {100 * group.mean:.1f} % and {times:.1f} times the bytes"

    text = [f"FedAvg on real images has {100 * real.mean:.1f} %."]
    text += [f"Where sites send virtual images for one model, {said(sending)}."] if sending else []
    text += [f"Where they train on virtual images and send weights, {said(training)}."] if training else []
    return textwrap.fill(" ".join(text), 120)


def gains(name: str) -> str:
    """What more work gains each method of a stored comparison, against the first of `COMPARED`."""
    before = {key(group.runs[0]): group for group in groups_of(RECORDS / COMPARED[0]) if not promised(group)}
    longer = best_first(groups_of(RECORDS / name))
    gained = {key(group.runs[0]): 100 * (group.mean - before[key(group.runs[0])].mean) for group in longer}
    real = next(group for group in longer if key(group.runs[0])[:2] == ("fedavg", "real"))
    times, rounds = (
        fmean(amount(run) for run in real.counted) / fmean(amount(run) for run in before[key(real.runs[0])].counted)
        for amount in (work, lambda run: run.settings["rounds"])
    )
    own = gained.pop(key(real.runs[0]))
    text = (
        f"With {times:.1f} times the work of a site in {rounds:g} times as many rounds, methods with virtual images"
    )
    text += f" gain {min(gained.values()):.0f} to {max(gained.values()):.0f} points, and {real.label} {own:.0f}."
    return textwrap.fill(f"{text} {longer[0].label} is the most accurate.", 120)


def audited(name: str) -> str:
    """Every stored audit: the best attack on each target."""
    if not audits():
        return "No stored audits."
    targets = [*SEEN, "virtual"]
    heads = ("method", *(TARGETS[target] for target in targets), "accuracy (%)")
    rows = []
    for label, audit in audits().values():
        found = against(audit)
        cells = (area(found[target]) if target in found else "–" for target in targets)
        accuracy = next((each.accuracy for each in found.values() if each.accuracy is not None), None)
        rows.append((label, *cells, f"{100 * accuracy:.1f}" if accuracy is not None else "–"))
    columns = tuple(Column(head, number=i > 0) for i, head in enumerate(heads))
    return markdown(Table(columns, tuple(tuple(map(Cell, row)) for row in rows)))


def by_round(name: str) -> str:
    """Accuracy (%) after each round of a stored comparison: mean over seeds, and standard deviation."""
    if not (RECORDS / name).exists():
        return "No stored runs."
    groups = groups_of(RECORDS / name)
    last = max(len(run.evaluated) for group in groups for run in group.counted)
    rows = []
    for group in groups:
        each = [[run.evaluated[t].accuracy for run in group.counted if t < len(run.evaluated)] for t in range(last)]
        rows.append((group.label, *(percent_stat(summarise(values)) for values in each)))
    heads = ("accuracy (%) after round", *(str(t + 1) for t in range(last)))
    columns = tuple(Column(head, number=i > 0) for i, head in enumerate(heads))
    return markdown(Table(columns, tuple(tuple(map(Cell, row)) for row in rows)))


def figures(*names: str) -> dict[str, str]:
    """SVG texts by file name, one for each stored comparison."""
    stored = [name for name in names if (RECORDS / name).exists()]
    return {f"{name}.svg": drawn(groups_of(RECORDS / name), name) for name in stored}


@styled()
def drawn(groups: Sequence[Group], salt: str) -> str:
    """Accuracy against the bytes that a site sends; the colour says what is the most telling part of them."""
    figure, axes = canvas("accuracy, %", HEIGHT)
    figure.set_size_inches(WIDTH, HEIGHT)
    colours = {kind: SERIES[i] for i, kind in enumerate(TELLING)} | {NOTHING: GREY}
    found = best_first(groups)
    points = {group.label: (fmean(map(uploaded, group.counted)), 100 * group.mean) for group in found}
    for kind, colour in colours.items():
        if own := [group for group in found if most_telling(group) == kind]:
            across, up = zip(*(points[group.label] for group in own), strict=True)
            fill = [PAPER if promised(group) else colour for group in own]
            axes.scatter(across, up, c=fill, edgecolors=colour, linewidths=1.6, s=44, zorder=3)
            axes.scatter([], [], c=colour, s=44, label=kind)
    axes.set_xscale("log")
    axes.margins(0.14, 0.08)
    axes.xaxis.set_major_formatter(lambda x, _: number_of_bytes(x))
    axes.set_xlabel("sent by a site in the whole run")
    title = "most telling part of it (hollow: with epsilon)"
    figure.legend(title=title, loc="outside lower center", ncols=3, fontsize=9, title_fontsize=9)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    for label, text in named(axes, points):
        axes.annotate(label, **text)
    return svg(figure, salt).replace("<defs>", f'<rect width="100%" height="100%" fill="{PAPER}"/><defs>', 1)


def named(axes: Any, points: Mapping[str, tuple[float, float]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each name, and where it stands so that it hides nothing and is not read as the name of another point."""
    where = {label: axes.transData.transform(point) for label, point in points.items()}
    taken = [Bbox.from_bounds(x - 5, y - 5, 10, 10) for x, y in where.values()]
    frame = axes.get_window_extent()
    for label, point in points.items():
        own, tried = where[label], []
        others = [each for name, each in where.items() if name != label]
        for rank, (distance, (right, up)) in enumerate(PLACES):
            text = axes.annotate(label, point, **at(distance, right, up))
            box = text.get_window_extent().padded(1.5)
            text.remove()
            outside = box.x0 < frame.x0 or box.x1 > frame.x1 or box.y0 < frame.y0 or box.y1 > frame.y1 + 8
            line = line_to(box, own)
            hidden = sum(box.overlaps(other) for other in taken) + 9 * outside
            crossed = sum(part.overlaps(other) for part in line for other in taken)
            confused = sum(gap(box, each) < min(gap(box, own), NEAR) for each in others)
            tried.append((WORST * hidden + crossed + confused, rank, [box, *line]))
        _, rank, covered = min(tried, key=lambda each: each[:2])
        taken += covered
        arrow = {"arrowprops": {"arrowstyle": "-", "color": GREY, "linewidth": 0.6}}
        yield label, {"xy": point, **at(PLACES[rank][0], *PLACES[rank][1]), **(arrow if len(covered) > 1 else {})}


def line_to(box: Bbox, point: Sequence[float]) -> list[Bbox]:
    """The line between a point and the box of its name, in small boxes; none where the name is beside the point."""
    (x, y), (across, up) = point, ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2)
    length, reach = math.hypot(across - x, up - y), gap(box, point)
    steps = [8 + 4 * i for i in range(int(max(reach - 8, 0) // 4))] if reach > NEAR / 2 else []
    return [Bbox.from_bounds(x + (across - x) * s / length, y + (up - y) * s / length, 1, 1) for s in steps]


def gap(box: Bbox, point: Sequence[float]) -> float:
    """Pixels between a box and a point."""
    x, y = point
    return math.hypot(max(box.x0 - x, 0, x - box.x1), max(box.y0 - y, 0, y - box.y1))


def at(distance: int, right: int, up: int) -> dict[str, Any]:
    """The place of a name in this direction from its point."""
    across, along = {1: "left", -1: "right", 0: "center"}[right], {1: "bottom", -1: "top", 0: "center"}[up]
    reach = distance * 72 / 100 * (0.7 if right and up else 1)
    offset = {"xytext": (reach * right, reach * up), "textcoords": "offset points"}
    return {**offset, "ha": across, "va": along, "fontsize": 9, "color": INK}
