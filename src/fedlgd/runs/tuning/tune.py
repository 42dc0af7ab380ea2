"""`fedlgd.tune`: the best settings of methods, from Python; and how many candidates a budget of time pays for."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from fedlgd.core.errors import PrivacyError, SettingError, check
from fedlgd.core.meter import track
from fedlgd.data.federation import Federation, validation_of
from fedlgd.data.suites import DataChoice
from fedlgd.engines.loop import Loop
from fedlgd.engines.registry import Engine
from fedlgd.methods.cost import first_sets
from fedlgd.runs.cache import shared_cache
from fedlgd.runs.comparing.entries import Job, Outcome, parse_entry, plan, run_job
from fedlgd.runs.comparing.parallel import run_jobs
from fedlgd.runs.estimate import Estimate, estimate
from fedlgd.runs.folder import locked
from fedlgd.runs.parse import parse_duration
from fedlgd.runs.tuning.findings import Findings
from fedlgd.runs.tuning.search import Candidate, Halving, Ledger, Search, search
from fedlgd.runs.tuning.space import check_known, read_space

SAMPLED = 3  # candidates of each method whose time is estimated
MOST = 10_000  # candidates of a method


def tune(
    data: Federation | str = "builtin-digits",
    methods: Iterable[str] = ("fedavg", "fedlgd"),
    *,
    budget: str = "1h",
    candidates: int = 0,
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

    `budget` is a time, from which the number of candidates of each method is estimated; `candidates` gives the
    number itself. The best of them take `rounds` rounds. `space` is a file or a mapping of values by setting, by
    default that of the package. `settings` by path hold for all candidates. Calling it again continues.
    """
    how = planned_search(
        methods,
        Halving(rounds=rounds),
        Path(out),
        Path(space) if isinstance(space, str) else space,
        settings={**(settings or {}), **({"data.name": data} if isinstance(data, str) else {})},
        preset=preset,
        seed=seed,
        validation=validation,
        data=None if isinstance(data, str) else DataChoice(name=data.name),
    )
    whole = data if isinstance(data, Federation) else how.given.data.open()
    federation = validation_of(whole, validation, seed)
    with locked(how.out):
        ledger = open_ledger(how, federation, budget, candidates)
        if not ledger.candidates:
            ledger.begin(candidates or Costs(how, federation, Loop(), jobs).affordable(parse_duration(budget)))
        return search(how, ledger, lambda todo: run_all(todo, federation, jobs))


def planned_search(
    methods: Iterable[str], halving: Halving, out: Path, space: Path | Mapping[str, Any] | None, **more: Any
) -> Search:
    """A search over these methods; a space of one's own may only have settings that exist."""
    entries = tuple(parse_entry(spec) for spec in methods)
    how = Search(entries=entries, space=read_space(space), halving=halving, out=out, **more)
    for job in plan(entries, 1, out, how.settings, how.preset):
        if job.config.method.budget:
            raise PrivacyError(
                f"every candidate of {job.entry.spec} would spend its privacy budget again, and the choice of the "
                "best one is not covered; search on public data or without privacy, then give the settings"
            )
    if space is not None:
        check_known(how.space, [entry.method for entry in entries], how.given.net["name"])
    how.check_values()
    return how


def run_all(todo: Sequence[Job], federation: Federation, count: int) -> Iterator[Outcome]:
    """Run the jobs, `count` at a time."""
    if count == 1:
        yield from (run_job(job, federation, "fedlgd.tune(...)") for job in todo)
        return
    with closing(run_jobs(todo, count, lambda job, _: run_job(job, federation, "fedlgd.tune(...)"))) as running:
        yield from running


def open_ledger(how: Search, federation: Federation, budget: str, candidates: int = 0) -> Ledger:
    """The ledger of this search, new or stored; a new one has no candidates yet."""
    if candidates:
        check(1 < candidates <= MOST, "candidates", candidates, f"use 2 to {MOST}; the first is the given settings")
    else:
        parse_duration(budget)
    return Ledger(how.out, how.about(federation, f"{candidates} candidates" if candidates else budget))


class Costs:
    """The estimated time of a search with `jobs` trials at a time, from some candidates of each method."""

    def __init__(self, how: Search, federation: Federation, engine: Engine, jobs: int = 1) -> None:
        self._how, self._federation, self._engine, self._jobs = how, federation, engine, jobs
        sampled = list(how.candidates(SAMPLED))
        rungs = [rounds for _, rounds in how.halving.levels(MOST)]
        todo = [(what, rounds) for what in sampled for rounds in rungs]
        self._trials: dict[int, float] = dict.fromkeys(rungs, 0.0)
        self._setups: dict[str, float] = {}
        for (what, rounds), _ in zip(todo, track("estimate", len(todo)), strict=True):
            found, key = self._estimate(what, rounds)
            self._setups[key] = found.enrolment / engine.processes(federation)
            self._trials[rounds] += (found.total(engine.processes(federation)) - self._setups[key]) / SAMPLED

    def _estimate(self, what: Candidate, rounds: int) -> tuple[Estimate, str]:
        config, federation = self._how.trial(what, rounds).config, self._federation
        net, place = config.net_for(federation), self._engine.place
        found = estimate(config, federation, net, None, shared_cache(place), place)
        if found is None:
            raise SettingError(
                f"the time of {what.entry.spec} cannot be estimated, so no budget can be kept; give the number of "
                "candidates of each method instead: --candidates 9"
            )
        return found, repr(first_sets(config.method))

    def total(self, candidates: int) -> float:
        """Seconds of the search. Virtual sets are distilled once, or for each candidate if `distil` varies."""
        setups = sum(self._setups.values())
        if len(self._setups) > len(self._how.entries):
            setups *= candidates / SAMPLED
        trials = sum(n * self._trials[rounds] for n, rounds in self._how.halving.levels(candidates))
        return (setups + trials) / self._jobs

    def affordable(self, seconds: float) -> int:
        """The largest number of candidates of each method whose time is at most `seconds`."""
        if self.total(2) > seconds:
            raise SettingError(
                f"a budget of {seconds:.0f} s is too small: the given settings and one candidate of each method "
                f"take about {self.total(2):.0f} s; use a larger --budget, fewer --rounds, or more --jobs"
            )
        return next(n for n in range(2, MOST + 1) if n == MOST or self.total(n + 1) > seconds)
