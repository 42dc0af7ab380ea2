"""ROC curves of membership attacks on logarithmic axes, where the few exposed images can be seen."""

from collections import Counter
from collections.abc import Iterator, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING

from fedlgd.report.plots import FAINT, INK, canvas, series_style, styled, wrapped
from fedlgd.rundir.results import Audit, Finding

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEAST = 1e-3  # of both axes
TARGETS = {
    "model": "model",
    "virtual": "virtual set",
    "anchors": "anchors",
    "updates": "updates",
    "releases": "noisy sums",
}
"""What is attacked, in words."""
TICKS = {0.001: "0.1 %", 0.01: "1 %", 0.1: "10 %", 1.0: "100 %"}


@styled()
def roc_plot(findings: Sequence[Finding], names: Sequence[str], title: str, mu: float | None) -> "Figure":
    """A curve with its band for each finding, the diagonal of a guess, and the ceiling of a promise, if any."""
    figure, axes = canvas(title, 4.6)
    axes.plot([LEAST, 1], [LEAST, 1], color=INK, linestyle=":", linewidth=1, label="guessing")
    for number, (found, name) in enumerate(zip(findings, names, strict=True)):
        colour, dashes = series_style(number)
        fpr, tpr, low, high = zip(*(point for point in found.roc if point[0] > 0), strict=True)
        axes.plot(fpr, tpr, color=colour, linestyle=dashes, linewidth=1.6, label=wrapped(name, 26))
        axes.fill_between(fpr, low, high, color=colour, alpha=0.12, linewidth=0)
    if mu is not None:
        rates = [LEAST ** (1 - i / 100) for i in range(101)]
        axes.plot(
            rates, [ceiling(mu, rate) for rate in rates], color=INK, linewidth=1.2, label="ceiling of the promise"
        )
    for axis in ("x", "y"):
        getattr(axes, f"set_{axis}scale")("log")
        getattr(axes, f"set_{axis}ticks")(list(TICKS), list(TICKS.values()))
        getattr(axes, f"{axis}axis").minorticks_off()
        getattr(axes, f"set_{axis}lim")(LEAST, 1)
    axes.set_xlabel("false positive rate")
    axes.grid(color=FAINT, linewidth=0.5, axis="both")
    axes.legend(loc="lower right", fontsize="small")
    return figure


def ceiling(mu: float, fpr: float) -> float:
    """TPR of the best attack on a mu-GDP release:  Phi(mu + Phi^-1(FPR))."""
    normal = NormalDist()
    return 1.0 if fpr >= 1 else normal.cdf(mu + normal.inv_cdf(fpr))


def roc_plots(audit: Audit) -> Iterator[tuple[str, "Figure"]]:
    """One plot for attacks on the model with its controls, and one for what else an attacker can have."""
    mu = audit.promised.mu if audit.promised else None
    on_model = [each for each in audit.findings if each.target == "model"]
    if on_model:
        title = "true positives, attacks on the model"
        uses = Counter(each.label for each in on_model)
        names = [f"{each.label}, {each.statistic}" if uses[each.label] > 1 else each.label for each in on_model]
        yield title, roc_plot(on_model, names, title, mu)
    others = [
        each for each in audit.findings if each.target != "model" and each.kind in ("run", "positive") and each.roc
    ]
    if others:
        title = "true positives, attacks on what else was made or sent"
        names = [
            f"{'must leak: ' if each.kind == 'positive' else ''}{TARGETS[each.target]}: {each.statistic}"
            for each in others
        ]
        yield title, roc_plot(others, names, title, mu)
