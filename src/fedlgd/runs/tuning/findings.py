"""What a search found: the best settings of each method, and which settings mattered."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import StatisticsError, correlation, fmean, median
from typing import Any, NamedTuple

from scipy.stats import rankdata

from fedlgd import notebook
from fedlgd.core.text import plural
from fedlgd.methods.protocol import Method
from fedlgd.runs.config import Config

FEW = 5  # values of a setting; more are compared in halves, and fewer trials have no rank correlation
NONE = "–"  # the given settings were not among the best of the rung before


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One run of a candidate: its values of the searched settings, and its accuracy on the validation images.

    The accuracy is 0 if it diverged. `setup` and `cpu` are CPU seconds before and from round 1 on.
    """

    method: str
    candidate: int
    rounds: int
    settings: dict[str, Any]
    accuracy: float
    error: str = ""
    cpu: float = 0.0
    setup: float = 0.0


def spent(trials: Iterable[Trial]) -> float:
    """CPU seconds. Trials with the same settings of `distil` and of the network share their virtual sets."""
    cpu, setups = 0.0, dict[str, float]()
    for trial in trials:
        cpu += trial.cpu
        shared = [item for item in trial.settings.items() if item[0].startswith(("distil.", "net."))]
        setups[repr(shared)] = trial.setup
    return cpu + sum(setups.values())


@dataclass(frozen=True, slots=True)
class Best:
    """The best candidate of a method: its configuration and its last trial."""

    config: Config
    trial: Trial


class Effect(NamedTuple):
    """How accuracy depends on one setting: its mean for the best and the worst value, or half of the values.

    correlation: Spearman's rank correlation of a number with accuracy; None for words, equal ranks and few trials.
    """

    method: str
    setting: str
    trials: int
    best: str
    best_mean: float
    worst: str
    worst_mean: float
    correlation: float | None

    @property
    def difference(self) -> float:
        return self.best_mean - self.worst_mean


def effect_of(setting: str, trials: Sequence[Trial]) -> Effect | None:
    """The effect of a setting over trials of one method; None if they all have the same value."""
    pairs = [(trial.settings[setting], trial.accuracy) for trial in trials]
    numbers = all(isinstance(value, int | float) and not isinstance(value, bool) for value, _ in pairs)
    groups: dict[str, list[float]] = {}
    for value, accuracy in pairs:
        groups.setdefault(_shown(value), []).append(accuracy)
    if numbers and len(groups) > FEW:
        middle = median(value for value, _ in pairs)
        groups = {f"<= {middle:.3g}": [], f"> {middle:.3g}": []}
        for value, accuracy in pairs:
            groups[f"{'<=' if value <= middle else '>'} {middle:.3g}"].append(accuracy)
    if len(groups) < 2:
        return None
    means = {name: fmean(values) for name, values in groups.items()}
    best, *_, worst = sorted(means, key=lambda name: -means[name])
    ranked = _spearman(pairs) if numbers and len(pairs) >= FEW else None
    return Effect(trials[0].method, setting, len(pairs), best, means[best], worst, means[worst], ranked)


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    """The correlation of ranks; equal values have their mean rank."""
    values, accuracies = (rankdata(column).tolist() for column in zip(*pairs, strict=True))
    try:
        return correlation(values, accuracies)
    except StatisticsError:
        return None


def _shown(value: Any) -> str:
    """A value as text; a list as `rotate, zoom`, or `none` if it is empty."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_shown, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True, eq=False, repr=False)
class Findings:
    """The result of a search: the best candidate of each method, and all trials.

    candidates: of each method. rounds: of each rung. validation: the share of training images that scored them.
    """

    best: Mapping[str, Best]
    trials: tuple[Trial, ...]
    candidates: int
    rounds: tuple[int, ...]
    validation: float
    folder: Path

    @property
    def methods(self) -> dict[str, Method]:
        """The methods with their best settings, for `fedlgd.run`."""
        return {spec: best.config.method for spec, best in self.best.items()}

    @property
    def effects(self) -> list[Effect]:
        """Of every searched setting, from the trials of the first rung; the largest effect of a method first."""
        found: list[Effect] = []
        for spec, best in self.best.items():
            first = [trial for trial in self.trials if (trial.method, trial.rounds) == (spec, self.rounds[0])]
            own = (effect_of(path, first) for path in best.trial.settings)
            found += sorted((each for each in own if each), key=lambda each: -each.difference)
        return found

    def settings(self) -> list[tuple[str, ...]]:
        """Each searched setting with its best value for each method."""
        paths = dict.fromkeys(path for best in self.best.values() for path in best.trial.settings)
        values = (best.trial.settings for best in self.best.values())
        columns = [[_shown(own[path]) if path in own else "" for path in paths] for own in values]
        return list(zip(paths, *columns, strict=True))

    def scores(self) -> list[tuple[str, ...]]:
        """Validation accuracy (%) of the best candidate of each method and of its given settings, rung by rung."""
        found = {(trial.method, trial.candidate, trial.rounds): trial.accuracy for trial in self.trials}

        def shown(*key: Any) -> str:
            return f"{100 * found[key]:.1f}" if key in found else NONE

        return [
            (spec, str(rounds), shown(spec, best.trial.candidate, rounds), shown(spec, 0, rounds))
            for spec, best in self.best.items()
            for rounds in self.rounds
        ]

    def __repr__(self) -> str:
        head = f"Findings({self.candidates} candidates of each method; validation accuracy of the best:"
        lines = [
            f"  {spec}: {100 * best.trial.accuracy:.1f} % after {plural(best.trial.rounds, 'round')}"
            for spec, best in self.best.items()
        ]
        return "\n".join([head, *lines]) + ")"

    def _repr_html_(self) -> str:
        return notebook.table(("setting", *self.best), self.settings()) + notebook.table(SCORES, self.scores())


SCORES = ("method", "rounds", "best, %", "as given, %")
