"""Search for settings by successive halving, with a ledger of the finished trials.

The folder of a search has `tune.json` (what is searched, and every finished trial), one run folder per trial in
`<method>/rounds<r>/<candidate>`, and at the end `best-<method>.toml`. The same search in the same folder continues.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from fedlgd.core import files
from fedlgd.core.errors import RunError
from fedlgd.core.settings import Tuned, flat
from fedlgd.data.federation import Federation
from fedlgd.data.suites import DataChoice
from fedlgd.rundir.records import committed_records
from fedlgd.runs.comparing.entries import Entry, Job, Outcome, for_method, job_of
from fedlgd.runs.config import Config
from fedlgd.runs.tuning.findings import Best, Findings, Trial, spent
from fedlgd.runs.tuning.space import Range, Space, draw, space_of

FORMAT = 1
LEDGER = "tune.json"
UNREPORTED = {"real_samples": 0, "analysis": False}  # trials write nothing that only a report reads

Runner = Callable[[Sequence[Job]], Iterable[Outcome]]


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
    """Settings of a method that are tried; number 0 is the method as it is given."""

    entry: Entry
    number: int
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched. `settings` hold for all candidates; `data`, if given, is named in their configurations."""

    entries: tuple[Entry, ...]
    space: Space
    halving: Halving
    out: Path
    settings: Mapping[str, Any] = field(default_factory=dict)
    preset: str = ""
    seed: int = 0
    validation: float = 0.2
    data: DataChoice | None = None

    @property
    def given(self) -> Config:
        """The first method as it is given."""
        return self.job(Candidate(self.entries[0], 0, {}), self.halving.rounds).config

    def space_of(self, entry: Entry) -> Space:
        """The part of the space that a method has and that is not given. Epochs do not count if steps are given."""
        config = self.job(Candidate(entry, 0, {}), self.halving.rounds).config
        given = {*for_method(entry.method, self.settings), *entry.settings}
        if dict(flat(config.plain())).get("local.steps"):
            given.add("local.epochs")
        return space_of(self.space, entry.method, config.net["name"], given)

    def candidates(self, count: int) -> Iterator[Candidate]:
        """`count` candidates of every method, in turn."""
        spaces = {entry.spec: self.space_of(entry) for entry in self.entries}
        for number in range(count):
            for entry in self.entries:
                yield Candidate(entry, number, draw(spaces[entry.spec], number, self.seed))

    def job(self, what: Candidate, rounds: int, more: Mapping[str, Any] | None = None) -> Job:
        given = {**self.settings, "seed": self.seed, "rounds": rounds, **(more or {})}
        entry = replace(
            what.entry, settings={**what.entry.settings, **what.settings}, note=f"candidate {what.number}"
        )
        folder = self.out / entry.folder / f"rounds{rounds}" / str(what.number)
        job = job_of(entry, given, folder, self.preset)
        return replace(job, config=replace(job.config, data=self.data)) if self.data else job

    def check_values(self) -> None:
        """Every value of the space, and both ends of a range, must be allowed."""
        for entry in self.entries:
            for path, values in self.space_of(entry).items():
                for value in (values.low, values.high) if isinstance(values, Range) else values:
                    self.job(Candidate(entry, 0, {path: value}), self.halving.rounds)

    def trial(self, what: Candidate, rounds: int) -> Job:
        """A run that is evaluated once."""
        return self.job(what, rounds, {"evaluate_every": rounds, **UNREPORTED})

    def best_file(self, entry: Entry) -> Path:
        return self.out / f"best-{entry.folder}.toml"

    def about(self, federation: Federation, budget: str) -> dict[str, Any]:
        """What must be the same for a search to continue."""
        return {
            "format": FORMAT,
            "methods": [entry.spec for entry in self.entries],
            "configurations": [self.job(each, self.halving.rounds).config.digest for each in self.candidates(1)],
            "spaces": {entry.spec: msgspec.to_builtins(self.space_of(entry)) for entry in self.entries},
            "seed": self.seed,
            "validation": self.validation,
            "halving": asdict(self.halving),
            "budget": budget,
            "data": federation.digest,
        }


class Ledger:
    """`tune.json`: the number of candidates of each method, and the finished trials. Every write is atomic."""

    def __init__(self, folder: Path, about: Mapping[str, Any]) -> None:
        self._file, self._about = folder / LEDGER, dict(about)
        self.candidates, self.trials = 0, list[Trial]()
        if self._file.exists():
            self._read()

    def _read(self) -> None:
        stored = files.read_json(self._file)
        with files.reading(self._file):
            before, self.candidates = stored["about"], int(stored["candidates"])
            self.trials = msgspec.convert(stored["trials"], list[Trial])
        if other := sorted(name for name in {**before, **self._about} if before.get(name) != self._about.get(name)):
            raise RunError(
                f"{str(self._file.parent)!r} has another search (other {', '.join(other)}); repeat its command to "
                "continue it, or choose another folder with --out"
            )

    def begin(self, candidates: int) -> None:
        self.candidates = candidates
        self._write()

    def add(self, trial: Trial) -> None:
        self.trials.append(trial)
        self._write()

    def _write(self) -> None:
        trials = [asdict(trial) for trial in self.trials]
        files.write_json(self._file, {"about": self._about, "candidates": self.candidates, "trials": trials})

    def of(self, what: Candidate) -> list[Trial]:
        """The trials of a candidate, the shortest first."""
        found = [t for t in self.trials if (t.method, t.candidate) == (what.entry.spec, what.number)]
        return sorted(found, key=lambda trial: trial.rounds)

    def has(self, what: Candidate, rounds: int) -> bool:
        return any(trial.rounds == rounds for trial in self.of(what))

    def best(self, candidates: Sequence[Candidate], count: int) -> list[Candidate]:
        """The `count` best candidates of each method by the accuracy of their last trial; the first win ties."""
        ranked = sorted(candidates, key=lambda c: (-self.of(c)[-1].accuracy, c.number))
        kept: dict[str, list[Candidate]] = {}
        for each in ranked:
            kept.setdefault(each.entry.spec, []).append(each)
        return [each for each in candidates if each in kept[each.entry.spec][:count]]


def search(how: Search, ledger: Ledger, run: Runner) -> Findings:
    """Run what is missing, rung by rung, and write the best settings of each method."""
    alive, levels = list(how.candidates(ledger.candidates)), how.halving.levels(ledger.candidates)
    for at, (count, rounds) in enumerate(levels):
        alive = ledger.best(alive, count) if at else alive
        missing = {how.trial(c, rounds).folder: c for c in alive if not ledger.has(c, rounds)}
        for outcome in run([how.trial(c, rounds) for c in missing.values()]):
            what = missing[outcome.job.folder]
            ledger.add(_trial(outcome, what, how.space_of(what.entry)))
    best = {winner.entry.spec: _best(how, ledger, winner) for winner in ledger.best(alive, 1)}
    for entry in how.entries:
        with files.writing(how.out):
            files.write_atomic(how.best_file(entry), best[entry.spec].config.toml().encode())
    rounds_of = tuple(rounds for _, rounds in levels)
    return Findings(best, tuple(ledger.trials), ledger.candidates, rounds_of, how.validation, how.out)


def _trial(outcome: Outcome, what: Candidate, paths: Iterable[str]) -> Trial:
    """A candidate that diverges is the worst one; any other failure stops the search, which can be continued."""
    job = outcome.job
    if outcome.error and "diverged" not in outcome.error:
        raise RunError(f"{job.label} failed: {outcome.error}; correct the cause and re-run the command to continue")
    values = dict(flat(job.config.plain()))
    cpu = [(record.round < 0, sum(record.cpu.values())) for record in committed_records(job.folder)]
    return Trial(
        method=what.entry.spec,
        candidate=what.number,
        rounds=job.config.plan.rounds,
        settings={path: values.get(path) for path in paths},
        accuracy=0.0 if outcome.error else outcome.accuracy,
        error=outcome.error,
        cpu=sum(seconds for setup, seconds in cpu if not setup),
        setup=sum(seconds for setup, seconds in cpu if setup),
    )


def _best(how: Search, ledger: Ledger, winner: Candidate) -> Best:
    last = ledger.of(winner)[-1]
    if last.error:
        raise RunError(f"every candidate of {last.method} diverged; search lower learning rates with --space")
    tuned = Tuned(
        settings=tuple(how.space_of(winner.entry)),
        candidates=ledger.candidates,
        rounds=tuple(rounds for _, rounds in how.halving.levels(ledger.candidates)),
        cpu_seconds=round(spent([trial for trial in ledger.trials if trial.method == last.method]), 1),
        validation=how.validation,
        accuracy=last.accuracy,
    )
    return Best(replace(how.job(winner, how.halving.rounds).config, tuned=tuned), last)
