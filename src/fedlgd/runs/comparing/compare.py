"""`fedlgd.compare`: methods and seeds under equal conditions, from Python."""

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from fedlgd import notebook
from fedlgd.core.errors import SettingError, did_you_mean
from fedlgd.core.files import safe_name
from fedlgd.core.text import plural
from fedlgd.data.federation import Federation
from fedlgd.data.suites import load
from fedlgd.methods.protocol import Method
from fedlgd.rundir.sweep import check_axes, points, with_note
from fedlgd.runs.config import configure
from fedlgd.runs.result import Result
from fedlgd.runs.run import run


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Mapping[str, list[Result]]):
    """The results of each method by its label, one per seed. `folder` is where they are stored, if they are."""

    results: dict[str, list[Result]]
    folder: Path | None = None

    def __getitem__(self, label: str) -> list[Result]:
        return self.results[label]

    def __iter__(self) -> Iterator[str]:
        return iter(self.results)

    def __len__(self) -> int:
        return len(self.results)

    @property
    def accuracy(self) -> dict[str, dict[str, float]]:
        """Accuracy of each method at each site, the mean over seeds."""
        return {
            label: {site: statistics.fmean(each.accuracy[site] for each in results) for site in results[0].accuracy}
            for label, results in self.items()
        }

    def rows(self) -> list[tuple[str, ...]]:
        """Method, seeds, mean over sites with its standard deviation over seeds, and the sites, in percent."""
        rows = []
        for label, results in self.items():
            means = [100 * statistics.fmean(each.accuracy.values()) for each in results]
            spread = f" ± {statistics.stdev(means):.1f}" if len(means) > 1 else ""
            cells = (f"{100 * value:.1f}" for value in self.accuracy[label].values())
            rows.append((label, str(len(results)), f"{statistics.fmean(means):.1f}{spread}", *cells))
        return rows

    @property
    def head(self) -> tuple[str, ...]:
        return ("method", "seeds", "mean", *next(iter(self.values()))[0].accuracy)

    def __repr__(self) -> str:
        lines = [self.head, *self.rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    def _repr_html_(self) -> str:
        return notebook.table(self.head, self.rows())


def compare(
    data: Federation | str = "builtin-digits",
    methods: Iterable[Method | str] = ("fedavg", "fedlgd"),
    *,
    seeds: int = 3,
    preset: str = "",
    sweep: Mapping[str, Sequence[Any]] | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> Comparison:
    """Run each method with the seeds 0, 1, ... All other settings are those of `fedlgd.run`.

    `preset` applies to the methods that are given by name. `sweep` runs every method with each value of one or two
    settings of methods: {"pull.weight": [0, 1, 10]}. With the same seed, methods start from the same model
    and sampled sites, and share virtual sets if their settings agree. With `out`, calling it again resumes.
    """
    federation = load(data) if isinstance(data, str) else data
    chosen = [configure(each, preset) if isinstance(each, str) else each for each in methods]
    if not chosen or seeds < 1:
        raise SettingError(
            f"compare has {plural(len(chosen), 'method')} and {plural(seeds, 'seed')}; give at least one of each"
        )
    check_axes(sweep or {})
    named = _named(chosen, sweep or {})
    results: dict[str, list[Result]] = {label: [] for label in named}
    for seed in range(seeds):
        for label, method in named.items():
            folder = Path(out, safe_name(label), f"seed{seed}") if out else None
            results[label].append(run(federation, method, seed=seed, out=folder, label=label, **settings))
    return Comparison(results, Path(out) if out else None)


def _named(methods: Iterable[Method], sweep: Mapping[str, Sequence[Any]]) -> dict[str, Method]:
    """Every method with the settings of each point of the sweep, by its label."""
    named: dict[str, Method] = {}
    for method in methods:
        for point in points(sweep):
            label = with_note(method.label, point)
            if label in named:
                raise SettingError(f"two methods are called {label!r}; compare them with two calls")
            named[label] = method
            for path, value in point.items():
                named[label] = _set(named[label], path, value, path)
    return named


def _set(settings: Any, path: str, value: Any, whole: str) -> Any:
    first, _, rest = path.partition(".")
    if not hasattr(settings, first):
        if hasattr(settings, "method"):  # a part on a method
            return replace(settings, method=_set(settings.method, path, value, whole))
        known = [f.name for f in fields(settings)]
        near = did_you_mean(first, known)
        raise SettingError(f"unknown setting {whole!r} in the sweep{near}; sweep settings of every compared method")
    inner = _set(getattr(settings, first), rest, value, whole) if rest else value
    return replace(settings, **{first: inner})
