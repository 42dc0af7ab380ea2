"""What leaves a site: accuracy, bytes and kinds of messages of all methods, from a stored comparison."""

from collections.abc import Sequence
from math import inf, log10
from statistics import fmean

from fedlgd.core.text import number_of_bytes
from fedlgd.report.claims import declared_reads
from fedlgd.report.groups import Group
from fedlgd.report.plots import FAINT, INK, SERIES, canvas, styled, svg
from fedlgd.report.tables import Cell, Column, Table, percent_stat
from fedlgd.rundir.read import Run
from results import RECORDS
from results.pages.comparisons import groups_of, markdown

TELLING = ("images", "weights", "logits", "feature means", "prototypes")  # kinds, the most telling first
WIDTH, HEIGHT = 8.4, 5.2  # inches
LINE = 1.4  # points of accuracy between two names


def uploaded(run: Run) -> float:
    """Bytes that a site sent in the whole run, mean over sites."""
    return sum(record.bytes_up for record in run.records) / len(run.manifest.data.sites)


def work(run: Run) -> float:
    """TFLOP of all sites and of the server in the whole run."""
    return sum(sum(record.flops.values()) for record in run.records) / 1e12


def kinds(group: Group) -> list[str]:
    """The kinds of what the sites declare to send."""
    return list(dict.fromkeys(group.runs[0].manifest.method.sends.values()))


def most_telling(group: Group) -> str:
    return next((kind for kind in TELLING if kind in kinds(group)), "other")


def leaves(name: str) -> str:
    """All methods of a stored comparison, the best first: accuracy, bytes, work, what leaves, what is read."""
    if not (RECORDS / name).exists():
        return "No stored runs."
    groups = sorted(groups_of(RECORDS / name), key=lambda group: -group.accuracy.mean if group.accuracy else 0.0)
    heads = ("method", "seeds", "accuracy (%)", "sent by a site", "TFLOP", "what leaves", "private images are read")
    rows = [
        (
            *(group.label, str(len(group.counted)), percent_stat(group.accuracy)),
            *(number_of_bytes(fmean(map(uploaded, group.counted))), f"{fmean(map(work, group.counted)):.2f}"),
            *(", ".join(kinds(group)), declared_reads(group.runs[0].manifest.method)),
        )
        for group in groups
    ]
    columns = tuple(Column(head, number=1 <= i <= 4) for i, head in enumerate(heads))
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
    colours = {kind: SERIES[i] for i, kind in enumerate(TELLING)} | {"other": FAINT}
    points = [
        (fmean(map(uploaded, group.counted)), 100 * group.accuracy.mean, group)
        for group in sorted(groups, key=lambda group: -group.accuracy.mean if group.accuracy else 0.0)
        if group.accuracy
    ]
    for kind in (kind for kind in colours if kind in map(most_telling, groups)):
        own = [(x, y) for x, y, group in points if most_telling(group) == kind]
        across, up = zip(*own, strict=True)
        axes.scatter(across, up, color=colours[kind], s=28, label=kind, zorder=3)
    lowest: dict[int, float] = {}  # height of the last name, by the decade of its point
    for x, y, group in points:
        decade = round(log10(x))
        lowest[decade] = min(y, lowest.get(decade, inf) - LINE)
        name = group.label.partition(" (")[0]
        axes.annotate(name, (x, y), (1.12 * x, lowest[decade]), fontsize=7.5, color=INK, va="center")
    axes.set_xscale("log")
    axes.set_xlim(right=6 * max(x for x, _, _ in points))
    axes.xaxis.set_major_formatter(lambda x, _: number_of_bytes(x))
    axes.set_xlabel("sent by a site in the whole run")
    axes.legend(title="most telling part", loc="lower left", fontsize=8)
    return svg(figure, salt)
