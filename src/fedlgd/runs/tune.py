"""Search for the best settings of methods by successive halving, on held-out training images.

The folder of a search has `tune.json` (what is searched, and every finished trial), one run folder per trial in
`<method>/rounds<r>/<candidate>`, and at the end `best-<method>.toml`. The same search in the same folder continues.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from fedlgd import notebook
from fedlgd.core import files
from fedlgd.core.errors import PrivacyError, RunError, check
from fedlgd.core.settings import flat
from fedlgd.core.text import plural
from fedlgd.data.federation import Federation, validation_of
from fedlgd.methods.protocol import Method
from fedlgd.rundir.read import Tuned
from fedlgd.rundir.records import committed_records
from fedlgd.runs.compare import run_job
from fedlgd.runs.config import Config, on_federation
from fedlgd.runs.entries import Entry, Job, job_of, own_settings, parse_entry, plan_jobs
from fedlgd.runs.folder import locked_folder
from fedlgd.runs.jobs import Ended, RoundListener, run_jobs
from fedlgd.runs.resume import differing_keys, sources_of
from fedlgd.runs.space import Range, SearchSpace, check_known, draw_settings, read_space, show_value, space_of

FORMAT = 1
LOG_NAME = "tune.json"
MAX_CANDIDATES = 10_000  # of a method
UNREPORTED = {"real_samples": 0, "analysis": False}  # trials write nothing that only a report reads
DASH = "–"  # the given settings were not among the best of the rung before
TrialRunner = Callable[[Sequence[Job]], Generator[Ended[Job], None, None]]
SCORES_HEAD = ("method", "rounds", "best, %", "as given, %")


@dataclass(frozen=True, kw_only=True)
class Halving:
    """Successive halving (Jamieson and Talwalkar, AISTATS 2016): the best 1/eta go on with eta times the rounds."""

    rounds: int
    rungs: int = 3
    eta: int = 3

    def levels(self, candidates: int) -> list[tuple[int, int]]:
        """(candidates, rounds) of each rung:  n_k = max(1, floor(n / eta^k)),  r_k = ceil(R / eta^(K-1-k)).

        A rung with as many rounds as the one before it is left out, and so is one that drops no candidate.
        """
        found: dict[int, int] = {}
        for k in range(self.rungs):
            rounds = math.ceil(self.rounds / self.eta ** (self.rungs - 1 - k))
            if rounds not in found or k + 1 == self.rungs:
                found[rounds] = max(1, candidates // self.eta**k)
        rungs = [(count, rounds) for rounds, count in found.items()]
        return [rung for rung, after in zip(rungs, [*rungs[1:], (0, 0)], strict=True) if rung[0] > after[0]]


@dataclass(frozen=True, slots=True)
class Candidate:
    """Settings of a method that are tried; number 0 is the method as given."""

    entry: Entry
    number: int
    settings: Mapping[str, Any]


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


def cpu_seconds(trials: Iterable[Trial]) -> float:
    """CPU seconds. Trials with the same settings of `distil` and of the network share their virtual sets."""
    cpu, setups = 0.0, dict[str, float]()
    for trial in trials:
        cpu += trial.cpu
        shared = [item for item in trial.settings.items() if item[0].startswith(("distil.", "net."))]
        setups[repr(shared)] = trial.setup
    return cpu + sum(setups.values())


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched. `settings` apply to all candidates; `federation`: if it is given as a Python object."""

    entries: tuple[Entry, ...]
    space: SearchSpace
    halving: Halving
    candidates: int
    out: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str = ""
    seed: int = 0
    validation: float = 0.2
    federation: Federation | None = None

    @property
    def levels(self) -> list[tuple[int, int]]:
        return self.halving.levels(self.candidates)

    @property
    def rungs(self) -> tuple[int, ...]:
        """The rounds of each rung."""
        return tuple(rounds for _, rounds in self.levels)

    def space_of(self, entry: Entry) -> SearchSpace:
        """The part of the space that a method has and that is not given. Epochs do not count if steps are given."""
        config = self.given(entry)
        fixed = {*own_settings(entry, self.entries, self.settings), *entry.settings}
        if dict(flat(config.plain())).get("local.steps"):
            fixed.add("local.epochs")
        return space_of(self.space, entry.name, config.net["name"], fixed)

    def given(self, entry: Entry) -> Config:
        """A method as given."""
        return self.job(Candidate(entry, 0, {}), self.halving.rounds).config

    def job(self, what: Candidate, rounds: int, more: Mapping[str, Any] | None = None) -> Job:
        given = {**self.settings, "seed": self.seed, "rounds": rounds, **(more or {})}
        settings = {**what.entry.settings, **what.settings}
        entry = replace(what.entry, settings=settings, note=f"candidate {what.number}")
        folder = self.out / entry.folder / f"rounds{rounds}" / str(what.number)
        job = job_of(entry, own_settings(entry, self.entries, given), folder, self.preset)
        config = on_federation(job.config, self.federation, given.get("real_samples")) if self.federation else None
        return replace(job, config=config or job.config)

    def trial(self, what: Candidate, rounds: int) -> Job:
        """A run that is evaluated once."""
        return self.job(what, rounds, {"evaluate_every": rounds, **UNREPORTED})

    def drawn(self, count: int) -> Iterator[Candidate]:
        """The first `count` candidates of every method, in turn."""
        spaces = {entry.spec: self.space_of(entry) for entry in self.entries}
        for number in range(count):
            for entry in self.entries:
                yield Candidate(entry, number, draw_settings(spaces[entry.spec], number, self.seed))

    def best_file(self, entry: Entry) -> Path:
        return self.out / f"best-{entry.folder}.toml"

    def about(self, federation: Federation) -> dict[str, Any]:
        """The settings that must be the same for a search to continue."""
        given = [self.given(entry) for entry in self.entries]
        return {
            "format": FORMAT,
            "methods": [entry.spec for entry in self.entries],
            "configurations": [config.digest for config in given],
            "spaces": {entry.spec: msgspec.to_builtins(self.space_of(entry)) for entry in self.entries},
            "seed": self.seed,
            "validation": self.validation,
            "halving": asdict(self.halving),
            "budget": f"{self.candidates} candidates",
            "data": federation.digest,
            "code": {k: v for each in given for k, v in sources_of(each.method, each.net_for(federation)).items()},
        }


def plan_search(
    methods: Iterable[str],
    halving: Halving,
    candidates: int,
    out: Path,
    space: Path | Mapping[str, Any] | None,
    **more: Any,
) -> Search:
    """A search over these methods; a space of one's own may only have settings and values that exist."""
    way_out = f"use 2 to {MAX_CANDIDATES}; the first is the given settings"
    check(1 < candidates <= MAX_CANDIDATES, "candidates", candidates, way_out)
    entries = tuple(parse_entry(spec) for spec in methods)
    how = Search(entries=entries, space=read_space(space), halving=halving, candidates=candidates, out=out, **more)
    for job in plan_jobs(entries, 1, out, how.settings, how.preset):
        if job.config.method.budget:
            raise PrivacyError("private-search", entry=job.entry.spec)
    if space is not None:
        check_known(how.space, [entry.name for entry in entries], how.given(entries[0]).net["name"])
    for entry in entries:
        for path, values in how.space_of(entry).items():
            for value in (values.low, values.high) if isinstance(values, Range) else values:
                how.job(Candidate(entry, 0, {path: value}), halving.rounds)
    return how


class TrialLog:
    """`tune.json`: the finished trials of a search. Every write is atomic."""

    def __init__(self, how: Search, federation: Federation) -> None:
        self._file, self._about, self._candidates = how.out / LOG_NAME, how.about(federation), how.candidates
        self.trials: list[Trial] = []
        if not self._file.exists():
            return
        stored = files.read_json(self._file)
        with files.reading(self._file):
            before = stored["about"]
            self.trials = msgspec.convert(stored["trials"], list[Trial])
        before.setdefault("code", self._about["code"])  # a search of an older version did not store it
        if other := differing_keys(before, self._about):
            if other == ["code"]:
                changed = differing_keys(before["code"], self._about["code"])
                raise RunError("search-code-changed", folder=str(how.out), files=changed)
            raise RunError("other-search", folder=str(how.out), differing=other)

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        trials = [asdict(trial) for trial in self.trials]
        files.write_json(self._file, {"about": self._about, "candidates": self._candidates, "trials": trials})

    def of(self, what: Candidate) -> list[Trial]:
        """The trials of a candidate, the shortest first."""
        found = [t for t in self.trials if (t.method, t.candidate) == (what.entry.spec, what.number)]
        return sorted(found, key=lambda trial: trial.rounds)

    def best(self, candidates: Sequence[Candidate], count: int, rounds: int) -> list[Candidate]:
        """The `count` best candidates of each method by their accuracy after `rounds`; the first win ties."""

        def rank(what: Candidate) -> tuple[bool, float, int]:
            trial = next(trial for trial in self.of(what) if trial.rounds == rounds)
            return bool(trial.error), -trial.accuracy, what.number

        kept: dict[str, list[Candidate]] = {}
        for each in sorted(candidates, key=rank):
            kept.setdefault(each.entry.spec, []).append(each)
        return [each for each in candidates if each in kept[each.entry.spec][:count]]


@dataclass(frozen=True, slots=True)
class Best:
    """The best candidate of a method: its configuration and its last trial."""

    config: Config
    trial: Trial


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

    def settings(self) -> list[tuple[str, ...]]:
        """Each searched setting with its best value for each method."""
        searched = dict.fromkeys(path for best in self.best.values() for path in best.trial.settings)
        values = (best.trial.settings for best in self.best.values())
        columns = [[show_value(own[path]) if path in own else "" for path in searched] for own in values]
        return list(zip(searched, *columns, strict=True))

    def scores(self) -> list[tuple[str, ...]]:
        """Validation accuracy (%) of the best candidate of each method and of its given settings, rung by rung."""
        found = {(trial.method, trial.candidate, trial.rounds): trial.accuracy for trial in self.trials}

        def shown(*key: Any) -> str:
            return f"{100 * found[key]:.1f}" if key in found else DASH

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
        return notebook.table(("setting", *self.best), self.settings()) + notebook.table(SCORES_HEAD, self.scores())


def tune(
    data: Federation | str = "builtin-digits",
    methods: Iterable[str] = ("fedavg", "fedlgd"),
    *,
    candidates: int = 27,
    rounds: int = 100,
    space: Mapping[str, Any] | str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    preset: str = "",
    seed: int = 0,
    validation: float = 0.2,
    out: str | Path = "runs/tune",
    jobs: int = 1,
) -> Findings:
    """Search the settings of each method on a validation part of the training images, by successive halving.

    Every method has as many `candidates`, of which the best take `rounds` rounds. `space` is a file or a mapping of
    values by setting, by default that of the package. `settings` by path apply to all candidates. Calling it again
    continues.
    """
    how = plan_search(
        methods,
        Halving(rounds=rounds),
        candidates,
        Path(out),
        Path(space) if isinstance(space, str) else space,
        settings={**(settings or {}), **({"data.name": data} if isinstance(data, str) else {})},
        preset=preset,
        seed=seed,
        validation=validation,
        federation=None if isinstance(data, str) else data,
    )
    whole = data if isinstance(data, Federation) else how.given(how.entries[0]).data.open()
    federation = validation_of(whole, validation, seed)

    def work(job: Job, listen: RoundListener) -> float:
        return run_job(job, federation, "fedlgd.tune(...)", listen).records[-1].accuracy

    with locked_folder(how.out):
        return search(how, TrialLog(how, federation), lambda todo: run_jobs(todo, jobs, work))


def search(how: Search, log: TrialLog, run: TrialRunner) -> Findings:
    """Run what is missing, rung by rung, and write the best settings of each method."""
    alive = list(how.drawn(how.candidates))
    for at, (count, rounds) in enumerate(how.levels):
        alive = log.best(alive, count, how.rungs[at - 1]) if at else alive
        missing = [c for c in alive if all(trial.rounds != rounds for trial in log.of(c))]
        todo = {how.trial(candidate, rounds): candidate for candidate in missing}
        with closing(run(list(todo))) as running:
            for ended in running:
                what = todo[ended.job]
                log.add(_trial(ended, what, how.space_of(what.entry)))
    best = {winner.entry.spec: _best(how, log, winner) for winner in log.best(alive, 1, how.rungs[-1])}
    with files.writing(how.out):
        for entry in how.entries:
            files.write_atomic(how.best_file(entry), best[entry.spec].config.toml().encode())
    return Findings(best, tuple(log.trials), how.candidates, how.rungs, how.validation, how.out)


def has_diverged(ended: Ended[Job]) -> bool:
    """Whether a trial failed because its numbers are not finite: at the server, or at so many sites that a round
    has too few updates, whose reasons are told in words."""
    return ended.code.endswith("-diverged") or (ended.code == "too-few-updates" and "diverged" in ended.error)


def _trial(ended: Ended[Job], what: Candidate, searched: Iterable[str]) -> Trial:
    """A candidate that diverges is the worst one; any other failure stops the search, which can be continued."""
    job, values = ended.job, dict(flat(ended.job.config.plain()))
    if ended.error and not has_diverged(ended):
        raise RunError("trial-failed", trial=job.label, error=ended.error)
    assert job.folder
    cpu = {record.round: sum(record.cpu.values()) for record in committed_records(job.folder)}
    setup = cpu.pop(-1, 0.0)
    return Trial(
        method=what.entry.spec,
        candidate=what.number,
        rounds=job.config.plan.rounds,
        settings={path: values.get(path) for path in searched},
        accuracy=0.0 if ended.error else ended.result,
        error=ended.error,
        cpu=sum(cpu.values()),
        setup=setup,
    )


def _best(how: Search, log: TrialLog, winner: Candidate) -> Best:
    last = log.of(winner)[-1]
    if last.error:
        raise RunError("all-diverged", method=last.method)
    tuned = Tuned(
        settings=tuple(how.space_of(winner.entry)),
        candidates=how.candidates,
        rounds=how.rungs,
        cpu_seconds=round(cpu_seconds(trial for trial in log.trials if trial.method == last.method), 1),
        validation=how.validation,
        accuracy=last.accuracy,
    )
    return Best(replace(how.job(winner, how.halving.rounds).config, tuned=tuned), last)
