"""The generated parts of the page about what differential privacy costs."""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from fedlgd.core.text import plural
from fedlgd.report.groups import SeedCurve, summarise
from fedlgd.report.plots import line_plot
from fedlgd.report.summary import Difference, paired_difference
from fedlgd.report.tables import Cell, Column, Table, as_markdown, percent
from results import MEASURED
from results.pages.figures import narrow

FOLDER = MEASURED / "privacy"
BAR, GOAL = 0.02, 0.03  # to no noise, and to DP-SGD
PRESET = "FedLGD, preset private"
NOT_MEASURED = "This was not measured."
LAP = "FedLAP-DP has the best of five settings on held-out images at epsilon 4."
NO_LAP = "FedLAP-DP was run only [with less work](family.md#four-real-digit-sites), at epsilon 4."
MAIN, DP = "FedLGD", "DP-SGD on real images"
START = "start only"
LONG, TWICE = "FedLGD, converged", "FedLGD, twice the steps of converged"
NETWORKS = """Most of this loss is not due to noise: 300 fixed networks lose {lost:.1f} points without noise, and
1200 regain {back:.1f} of them. With noise, more releases gain little, because each of them gets more noise."""
CAUSE = """Without noise and with the same clipping, 30 releases cost {few} points and 300 releases {many}. The loss
came from having few networks, not from clipping ({clip} points without it) and not from refinement. More releases
cost no more privacy: sigma grows with the square root of their number, and the noise of their mean stays. So
`distil.private.releases` is now 300 (60 before), at most one for each step."""
Rows = Sequence[Mapping[str, Any]]


def epsilon(part: str) -> str:
    """A part of the page, from the stored file that it is about."""
    parts: Mapping[str, tuple[str, Callable[[Rows], str]]] = {
        "answer": ("epsilon", answer),
        "curve": ("epsilon", curve),
        "prices": ("epsilon", prices),
        "best": ("epsilon", best),
        "networks": ("trials", networks),
        "trials": ("trials", trials),
        "svhn": ("svhn", two_sites),
        "dp-sgd": ("dp-sgd", settings_of_dp_sgd),
        "held-out": ("validation", held_out),
        "private-answer": ("preset", private_answer),
        "beside": ("preset", beside),
    }
    file, written = parts[part]
    return written(stored(file))


def stored(name: str) -> Rows:
    rows: Rows = json.loads((FOLDER / f"{name}.json").read_text())
    return rows


def answer(rows: Rows) -> str:
    """What epsilon 4 costs, with short and with long distillation, at both groups of sites."""
    similar, differing = (
        [f"{100 * loss:.1f}" for method in (MAIN, LONG) if (loss := cost_of_four(each, method)) is not None]
        for each in (rows, stored("svhn"))
    )
    return (
        "Only differential privacy bounds all attacks. At epsilon 4 the accuracy of FedLGD falls by "
        f"{' or '.join(similar)} points at three similar sites, and by {' or '.join(differing)} at MNIST and SVHN. "
        "The first number is for short distillation, the second for distillation until convergence."
    )


def best(rows: Rows) -> str:
    """Which method is more accurate with the same promise."""
    found: dict[tuple[float, str], list[float]] = {}
    for row in rows:
        found.setdefault((row["epsilon"], row["method"]), []).append(_mean(row))
    gaps = {
        budget: 100 * (fmean(found[budget, DP]) - fmean(found[budget, LONG]))
        for budget in _order({budget for budget, _ in found})
        if (budget, DP) in found and (budget, LONG) in found
    }
    said = ", ".join(f"{gap:+.1f} points {_words(budget)}" for budget, gap in gaps.items())
    return f"{DP} against {LONG}: {said}." if gaps else ""


def _order(budgets: Iterable[float]) -> list[float]:
    """No noise first, then epsilon from large to small."""
    return sorted(budgets, key=lambda budget: budget or math.inf, reverse=True)


def _words(budget: float) -> str:
    return f"at epsilon {budget:g}" if budget else "without noise"


def two_sites(rows: Rows) -> str:
    """The curve, each site with and without noise, and what longer distillation gains."""
    found: dict[float, dict[str, list[float]]] = {}
    for row in rows:
        if row["method"] == LONG:
            for site, accuracy in row["accuracy"].items():
                found.setdefault(row["epsilon"], {}).setdefault(site, []).append(100 * accuracy)
    each = (
        f"{_words(budget)} " + ", ".join(f"{site} {fmean(values):.1f}" for site, values in found[budget].items())
        for budget in _order(found)
    )
    by_site = f"By site, mean over seeds: {'; '.join(each)}."
    return "\n\n".join((curve(rows), by_site, prices(rows)))


def prices(rows: Rows) -> str:
    """What epsilon 4 costs, and what longer distillation gains."""
    return "\n\n".join((_price(rows), *_converged(rows)))


def _converged(rows: Rows) -> Iterator[str]:
    """What longer distillation gains at each epsilon, whether it has converged, and what epsilon 4 then costs."""
    found = {(row["method"], row["epsilon"], row["seed"]): _mean(row) for row in rows}
    gains: dict[float, list[float]] = {}
    for method, budget, seed in found:
        if method == LONG and (MAIN, budget, seed) in found:
            gains.setdefault(budget, []).append(found[LONG, budget, seed] - found[MAIN, budget, seed])
    if not gains:
        return
    each = ", ".join(f"{100 * fmean(gains[budget]):+.1f} {_words(budget)}" for budget in _order(gains))
    yield f"**Longer distillation** gains, in points, the mean over seeds: {each}."
    twice = [
        f"{100 * (accuracy - found[LONG, budget, seed]):+.1f} points"
        for (method, budget, seed), accuracy in found.items()
        if method == TWICE and (LONG, budget, seed) in found
    ]
    if twice:
        yield f"Twice as many steps again change the accuracy without noise by {', '.join(twice)} (one seed)."
    yield _price(rows, LONG)


def networks(tried: Rows) -> str:
    """The trials of converged distillation between the runs without privacy and with epsilon 4."""
    known = {row["epsilon"]: _mean(row) for row in stored("epsilon") if (row["method"], row["seed"]) == (LONG, 0)}
    named = {row["method"]: _mean(row) for row in tried if row["method"].startswith("converged")}
    text = _against({"converged, no privacy": known[0.0], **named, "converged, epsilon 4": known[4.0]})
    few, many = (named.get(f"converged, {count} releases, no noise") for count in (300, 1200))
    if few and many:
        text += "\n" + NETWORKS.format(lost=100 * (known[0.0] - few), back=100 * (many - few))
    return text


def trials(tried: Rows) -> str:
    """The trials of short distillation, and why few releases lose accuracy."""
    named = {row["method"]: _mean(row) for row in tried if not row["method"].startswith("converged")}
    plain = named["no privacy"]
    few, many, clip = (
        f"{100 * (plain - named[name]):.1f}"
        for name in ("30 releases, no noise", "300 releases, no noise", "30 releases, no noise, no clipping")
    )
    return f"{_against(named)}\n{CAUSE.format(few=few, many=many, clip=clip)}"


def held_out(rows: Rows) -> str:
    """Accuracy on held-out training images, of each site."""
    sites = list(rows[0]["accuracy"])
    table = [
        (
            *(Cell(percent(value)) for value in (*(row["accuracy"][site] for site in sites), _mean(row))),
            Cell(f"{row['cpu']:.0f}"),
        )
        for row in rows
    ]
    heads = (*map(Column, (*sites, "mean", "CPU seconds")),)
    named = [(Cell(row["method"]), *cells) for row, cells in zip(rows, table, strict=True)]
    return as_markdown(Table((Column("epsilon 4", number=False), *heads), tuple(named))).rstrip()


def private_answer(rows: Rows) -> str:
    """How far the preset is from DP-SGD on test images at epsilon 4, and at which site most; of the same seeds."""
    of_dp = [row for row in stored("epsilon") if row["method"] == DP]
    if not (gap := behind(rows, of_dp, 4.0)):
        return NOT_MEASURED
    ours, dp = ({row["seed"]: row["accuracy"] for row in of if row["epsilon"] == 4.0} for of in (rows, of_dp))
    sites = {
        site: fmean(dp[seed][site] - ours[seed][site] for seed in ours.keys() & dp.keys())
        for site in rows[0]["accuracy"]
    }
    worst = max(sites, key=sites.__getitem__)
    others = " and ".join(f"{100 * value:+.1f} at {site}" for site, value in sites.items() if site != worst)
    return (
        f"At epsilon 4, FedLGD with preset `private` is {in_points(gap, '')} points less accurate than DP-SGD "
        f"({plural(gap.seeds, 'seed')}), which {_verdict(gap)} the goal of {100 * GOAL:g} points. "
        f"The largest difference is at {worst}: {100 * sites[worst]:.1f} points, against {others}."
    )


def _verdict(gap: Difference) -> str:
    """Whether the goal is reached, also if the interval has both sides of it."""
    low, high = gap.interval or (-math.inf, math.inf)
    if low <= GOAL < high:
        return f"is on average {'within' if gap.mean <= GOAL else 'beyond'}, but not clearly,"
    return "reaches" if gap.mean <= GOAL else "misses"


def beside(rows: Rows) -> str:
    """The preset on test images, DP-SGD and FedLAP-DP, and the paired differences between the first two."""
    dp, lap = [row for row in stored("epsilon") if row["method"] == DP], stored("fedlap")
    gaps = [
        f"{in_points(gap)} {_words(budget)}"
        for budget in _order({row["epsilon"] for row in rows})
        if (gap := behind(rows, dp, budget))
    ]
    if not gaps:
        return NOT_MEASURED
    paired = f"{DP} minus {PRESET}, in points, of the same seeds:\n\n" + "\n".join(f"- {gap}" for gap in gaps)
    return "\n\n".join((curve([*dp, *rows, *lap]), paired, LAP if lap else NO_LAP))


def behind(rows: Rows, dp: Rows, budget: float) -> Difference | None:
    """DP-SGD minus the preset with a budget, paired by seed."""
    ours, other = ({r["seed"]: _mean(r) for r in of if r["epsilon"] == budget} for of in (rows, dp))
    return paired_difference(other, ours)


def in_points(gap: Difference, sign: str = "+") -> str:
    """A difference in percentage points, with its interval."""
    ends = " to ".join(f"{100 * end:{sign}.1f}" for end in gap.interval or ())
    return f"{100 * gap.mean:{sign}.1f}" + (f" ({ends})" if ends else "")


def settings_of_dp_sgd(rows: Rows) -> str:
    table = tuple((Cell(row["method"]), Cell(percent(_mean(row)))) for row in rows)
    return as_markdown(Table((Column("DP-SGD, epsilon 4", number=False), Column("accuracy, %")), table)).rstrip()


def figures() -> dict[str, str]:
    """SVG texts by file name."""
    rows = stored("epsilon")
    budgets = _order({row["epsilon"] for row in rows})
    curves = []
    for style, method in enumerate((MAIN, LONG, DP, START)):
        stats = [
            summarise([100 * _mean(row) for row in rows if (row["method"], row["epsilon"]) == (method, budget)])
            for budget in budgets
        ]
        places = {float(place): stat for place, stat in enumerate(stats) if stat}
        curves.append(SeedCurve(method, tuple(places), tuple(places.values()), style))
    names = ["none" if not budget else f"{budget:g}" for budget in budgets]
    figure = line_plot(curves, "accuracy, %", "epsilon", names)
    return {"privacy-epsilon.svg": narrow(figure, "privacy-epsilon")} if figure else {}


def curve(rows: Rows) -> str:
    """Accuracy of each method with each budget."""
    found: dict[tuple[str, float], list[float]] = {}
    for row in rows:
        found.setdefault((row["method"], row["epsilon"]), []).append(_mean(row))
    budgets = _order({budget for _, budget in found})
    heads = ("method", *(f"epsilon {budget:g}" if budget else "no noise" for budget in budgets))
    table = [
        (Cell(method), *(_over_seeds(found.get((method, budget), [])) for budget in budgets))
        for method in dict.fromkeys(method for method, _ in found)
    ]
    return as_markdown(Table((Column(heads[0], number=False), *map(Column, heads[1:])), tuple(table))).rstrip()


def _over_seeds(values: list[float]) -> Cell:
    if not values:
        return Cell("–")
    spread = f" ± {percent(stdev(values))}" if len(values) > 1 else ""
    return Cell(percent(fmean(values)) + spread, fmean(values))


def _mean(row: Mapping[str, Any]) -> float:
    """Over sites."""
    return fmean(row["accuracy"].values())


def losses_at_four(rows: Rows, method: str) -> list[float]:
    """Accuracy without noise minus that at epsilon 4, for each seed that has both."""
    by_seed = {
        budget: {row["seed"]: _mean(row) for row in rows if (row["method"], row["epsilon"]) == (method, budget)}
        for budget in (0.0, 4.0)
    }
    return [by_seed[0.0][seed] - by_seed[4.0][seed] for seed in sorted(by_seed[0.0].keys() & by_seed[4.0].keys())]


def cost_of_four(rows: Rows, method: str) -> float | None:
    losses = losses_at_four(rows, method)
    return fmean(losses) if losses else None


def _price(rows: Rows, method: str = MAIN) -> str:
    """Whether a method loses at most two points at epsilon 4, over the seeds that have both."""
    losses = losses_at_four(rows, method)
    if not losses:
        return f"What epsilon 4 costs {method} was not measured."
    within = "within" if fmean(losses) <= BAR else "more than"
    each = ", ".join(f"{100 * loss:.1f}" for loss in losses)
    return (
        f"At epsilon 4 {method} loses {100 * fmean(losses):.1f} points against no privacy "
        f"({plural(len(losses), 'seed')}: {each}), {within} the target of {100 * BAR:g} points."
    )


def _against(named: Mapping[str, float]) -> str:
    """Accuracies, and their differences to the first."""
    plain = next(iter(named.values()))
    rows = ((name, percent(value), f"{100 * (value - plain):+.1f}") for name, value in named.items())
    columns = (Column("trial", number=False), Column("accuracy, %"), Column("against no privacy"))
    return as_markdown(Table(columns, tuple(tuple(map(Cell, row)) for row in rows)))
