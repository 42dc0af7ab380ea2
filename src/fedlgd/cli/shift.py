"""`fedlgd data show --shift`: the domain shift between sites, measured and shown as tables."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.markup import escape
from rich.table import Table

from fedlgd.cli.options import ShowOptions
from fedlgd.core.rng import Stream
from fedlgd.data.federation import Federation
from fedlgd.nets.registry import build_net
from fedlgd.runs.shift import Draws, Shift, Space, measure, measure_class, pixels, random_features

NET_WIDTH = 64  # of the untrained ConvNets that compute random features
MAX_MATRIX = 12  # sites; more are summarised
MAX_PAIRS = 5  # nearest and farthest pairs in a summary
ALL = "all images"


@dataclass(frozen=True, slots=True)
class Measured:
    """The shift in one feature space, among all images or those of one class."""

    space: str
    among: str
    shift: Shift

    def plain(self) -> dict[str, Any]:
        extra = {"average": self.shift.average, "zero": self.shift.zero}
        return {"space": self.space, "among": self.among, **asdict(self.shift), **extra}


def measure_shift(federation: Federation, given: ShowOptions) -> list[Measured]:
    how = Draws(size=given.size, draws=given.draws, unbiased=not given.biased)
    net = build_net("convnet", federation.shape, len(federation.classes), {"width": NET_WIDTH})
    rng = Stream(given.seed).at("shift")
    sites = {site.name: site.train for site in federation.sites}
    spaces: dict[str, Space] = {"pixels": pixels, "random features": random_features(net, rng)}
    found = []
    for name, space in spaces.items():
        found.append(Measured(name, ALL, measure(sites, space, how, rng, name)))
        for k, title in enumerate(federation.classes if given.per_class else ()):
            shift = measure_class(sites, k, space, how, rng, f"{name}, class {title}")
            found += [Measured(name, title, shift)] if shift else []
    return found


def shift_tables(found: Sequence[Measured]) -> Iterator[Table]:
    for each in found:
        if each.among == ALL:
            yield _matrix(each) if len(each.shift.sites) <= MAX_MATRIX else _summary(each)
    if any(each.among != ALL for each in found):
        yield _by_class(found)


def _title(found: Measured) -> str:
    shift = found.shift
    estimator = f"squared RBF-MMD ({'unbiased' if shift.unbiased else 'biased'})"
    return f"shift in {found.space}: {estimator}, mean ± std of {shift.draws} draws of {shift.size} images per site"


def _matrix(found: Measured) -> Table:
    shift = found.shift
    caption = f"mean over pairs {shift.average:.3f}; diagonal: two draws from the same site, the noise level"
    table = Table("", *map(escape, shift.sites), title=_title(found), caption=caption)
    for i, name in enumerate(shift.sites):
        row = [f"{m:.3f} ± {s:.3f}" for m, s in zip(shift.mean[i], shift.std[i], strict=True)]
        row[i] = f"[dim]{row[i]}[/]"
        table.add_row(escape(name), *row)
    return table


def _summary(found: Measured) -> Table:
    shift = found.shift
    means = f"mean over pairs {shift.average:.3f}, two draws from the same site {shift.zero:.3f}"
    caption = f"{len(shift.sites)} sites; {means}; all pairs: --json"
    table = Table("", "site", "site", "MMD²", title=_title(found), caption=caption)
    ranked = sorted(shift.pairs, key=lambda pair: pair[2])
    for word, pairs in (("nearest", ranked[:MAX_PAIRS]), ("farthest", ranked[-MAX_PAIRS:])):
        for a, b, mean, std in pairs:
            table.add_row(word, escape(a), escape(b), f"{mean:.3f} ± {std:.3f}")
    return table


def _by_class(found: Sequence[Measured]) -> Table:
    table = Table("space", "among", "images", "mean over pairs", "same site", "nearest pair", "farthest pair")
    for each in found:
        shift = each.shift
        ranked = sorted(shift.pairs, key=lambda pair: pair[2])
        pairs = [escape(f"{a}, {b}: {mean:.3f}") for a, b, mean, _ in (ranked[0], ranked[-1])]
        numbers = (f"{shift.size} per site", f"{shift.average:.3f}", f"{shift.zero:.3f}")
        table.add_row(each.space, escape(each.among), *numbers, *pairs)
    return table
