"""How alike the sites are: a matrix of distances, and a map of points."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedlgd.report.run import Cloud
from fedlgd.report.style import INK, SERIES, WIDTH, canvas, look, room, short, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_NAME = 12
_WRITTEN = 8  # larger matrices are coloured only
_MARKERS = {"real": ("o", 7, 0.45), "virtual": ("D", 20, 0.95), "anchors": ("x", 22, 0.9)}


def matrix_figure(rows: Sequence[Sequence[float]], names: Sequence[str], title: str, top: float) -> "Figure":
    """A square per pair, the darker the larger; `top` is the value of the darkest."""
    labels = [short(name, _NAME) for name in names]
    with styled():
        side = WIDTH * (1 - room(labels) - 0.05)
        figure, axes = canvas(min(side, 0.55 * len(rows)) + 0.75, left=labels, right=[""], bottom=0.1, top=0.65)
        for y, row in enumerate(rows):
            for x, value in enumerate(row):
                _square(axes, x, y, value, top, written=len(rows) <= _WRITTEN)
        _name_sides(axes, labels)
        axes.set_title(title, loc="left", fontsize="medium", pad=10)
        return figure


def map_figure(clouds: Sequence[Cloud], title: str) -> "Figure | None":
    """Real images are dots, virtual ones diamonds, anchors crosses; each site has a colour."""
    if not any(cloud.points for cloud in clouds):
        return None
    sites = list(dict.fromkeys(cloud.site for cloud in clouds if cloud.kind != "anchors"))
    with styled():
        figure, axes = canvas(4.0, left=[""], right=[short(site, _NAME) + "  " for site in sites], bottom=0.1)
        for cloud in clouds:
            marker, size, alpha = _MARKERS[cloud.kind]
            colour = INK if cloud.kind == "anchors" else look(sites.index(cloud.site))[0]
            x, y = zip(*cloud.points, strict=True)
            axes.scatter(x, y, s=size, marker=marker, color=colour, alpha=alpha, linewidth=_edge(cloud.kind))
        _name_sites(axes, sites)
        _bare(axes)
        axes.set_title(title, loc="left", fontsize="medium")
        return figure


def _square(axes: "Axes", x: int, y: int, value: float, top: float, *, written: bool) -> None:
    from matplotlib.patches import Rectangle

    strength = 0.6 * max(0.0, value) / top if top > 0 else 0.0
    axes.add_patch(Rectangle((x - 0.48, y - 0.48), 0.96, 0.96, color=SERIES[0], alpha=strength, linewidth=0))
    if written and x != y:
        axes.annotate(f"{value:.2f}".replace("-", "−"), (x, y), ha="center", va="center", fontsize="small")


def _name_sides(axes: "Axes", labels: Sequence[str]) -> None:
    places = range(len(labels))
    axes.set_xlim(-0.5, len(labels) - 0.5)
    axes.set_ylim(len(labels) - 0.5, -0.5)
    axes.xaxis.tick_top()
    crowded = max(map(len, labels)) * len(labels) > 48
    axes.set_xticks(places, ["" for _ in labels] if crowded else labels)
    axes.set_yticks(places, labels)
    axes.tick_params(length=0)
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _name_sites(axes: "Axes", sites: Sequence[str]) -> None:
    """The sites beside the map, each in its colour: their points may lie anywhere, so that no place is theirs."""
    step = min(0.07, 1 / max(1, len(sites)))
    for number, site in enumerate(sites):
        place = (1.02, 0.97 - number * step)
        colour = look(number)[0]
        axes.annotate(short(site, _NAME), place, xycoords="axes fraction", va="center", weight="bold", color=colour)


def _edge(kind: str) -> float:
    return 1.0 if kind == "anchors" else 0.0


def _bare(axes: "Axes") -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(True)
