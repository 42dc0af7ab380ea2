"""A figure with what a page says about it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedlgd.report.plots import svg

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True, eq=False)
class Drawing:
    """A figure with its file name, its alternative text, and a caption."""

    name: str
    about: str
    figure: "Figure"
    note: str = ""

    @property
    def svg(self) -> str:
        return svg(self.figure, self.name)
