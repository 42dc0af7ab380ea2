"""An audit of a stored run: the plan of its federations, the attacks, and the findings in the run folder.

Whether a random half of the site is enough for every federation is found out before the first is run.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor

from fedlgd.attacks import paper_attack
from fedlgd.attacks.scores import BLIND_LABEL, DEFAULT_DELTA, AttackName, blind_findings, findings_of
from fedlgd.attacks.shadow import (
    Canaries,
    CandidatePool,
    Observations,
    Shadow,
    Study,
    distil_watched,
    draw_pool,
    halved,
    members_in,
    run_shadows,
    run_watched,
)
from fedlgd.attacks.target import AuditTarget
from fedlgd.core.errors import DataError, PrivacyError, RunError, SettingError
from fedlgd.core.files import digest, read_json, write_json
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import LabelledSet, Site
from fedlgd.data.federation import Federation
from fedlgd.distill.init import PICKS
from fedlgd.distill.settings import Distil
from fedlgd.dp.release import Told
from fedlgd.dp.training import SiteDp
from fedlgd.rundir.results import AUDIT, AUDIT_FORMAT, Audit, Finding, Kind, results_of, unused_file
from fedlgd.runs.cache import shared_cache
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.estimate import estimate
from fedlgd.runs.folder import promise_of

MIN_POOL_SIZE = 60
SHADOW_COUNTS: Mapping[str, int] = {"rmia": 4, "lira": 16}
CONTROL_FEDERATIONS = 3  # for RMIA, which is almost at its best with two shadows
MAX_POOL_SIZE = 2000
CANARY_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """What to audit. thorough: 17 federations, and baselines with all their epochs."""

    attack: AttackName = "rmia"
    site: str = ""
    thorough: bool = False
    in_sample: bool = False
    canaries: Canaries = "none"
    all_layers: bool = False

    def __post_init__(self) -> None:
        if self.in_sample and self.attack != "paper":
            raise SettingError("in-sample-attack", attack=self.attack)
        if self.attack == "paper" and (self.canaries != "none" or self.thorough):
            raise SettingError("paper-attack-options")

    @property
    def federations(self) -> int:
        return 1 + (SHADOW_COUNTS["lira"] if self.thorough else SHADOW_COUNTS[self.attack])

    def federations_of(self, kind: Kind) -> int:
        return self.federations if kind == "run" or self.attack != "rmia" else CONTROL_FEDERATIONS


@dataclass(frozen=True, eq=False)
class Arm:
    """Federations with the same settings. only_set: attack the first virtual set; no federation is run."""

    label: str
    kind: Kind
    config: Config
    only_set: bool = False


def arms_of(target: AuditTarget, site: str, request: AuditRequest) -> Iterator[Arm]:
    """The run, FedAvg on real and on virtual data, and a start from real images, which must leak."""
    config = target.config
    yield Arm(config.method.label, "run", config)
    virtual, method = getattr(config.method, "train_on", "real") == "virtual", config.method
    plain = config.plain()
    if virtual:
        real = _fedavg(plain, "real", {} if request.thorough else _equal_steps(config, target, site))
        yield Arm(real.method.label + ("" if request.thorough else ", equal steps"), "baseline", real)
    baseline = _fedavg(plain, "virtual")
    if baseline.method != method:
        yield Arm(baseline.method.label, "baseline", baseline)
    start = _fedavg(plain, "virtual", {"distil.start": "real", "distil.private.epsilon": 0})
    yield Arm("virtual set that starts from real images", "positive", start, only_set=request.attack != "paper")


def _fedavg(plain: Mapping[str, Any], train_on: str, more: Mapping[str, Any] | None = None) -> Config:
    kept = ("rounds", "ratio", "seed", "evaluate_every", "real_samples", "analysis", "data", "net", "local")
    names = kept if train_on == "real" else (*kept, "distil")
    settings = {name: plain[name] for name in names if name in plain}
    return resolve(settings | {"method": "fedavg", "train_on": train_on}, more)


def _equal_steps(config: Config, target: AuditTarget, site: str) -> dict[str, int]:
    """As many SGD steps in a round as the run has: training on more images would compare effort, not data."""
    method: Any = config.method
    cost = method.cost(config.plan.rounds - 1, target.federation.by_name[site], target.net.classes)
    return {"local.steps": method.local.count(cost.images)} if cost else {}


def check_pool(pool: CandidatePool) -> None:
    """Refuse a site with too few images to measure anything."""
    if len(pool) < MIN_POOL_SIZE:
        raise DataError("pool-too-small", site=pool.site, images=len(pool), wanted=MIN_POOL_SIZE)


def check_halves(
    config: Config, pool: CandidatePool, federation: Federation, net: Net, count: int, rng: Stream
) -> None:
    """Refuse a site of which one of the `count` halves is too small for the method of these federations."""
    method: Any = config.method
    hides_images = not isinstance(method.budget, SiteDp | None)
    for i in range(count):
        site = halved(federation, pool, members_in(pool, i, rng)).by_name[pool.site]
        if hides_images:
            _check_promise(config, site, net)
        elif getattr(method, "train_on", "real") == "virtual":
            _check_classes(method.distil, site, pool, net.classes)


def _check_classes(distil: Distil, site: Site, pool: CandidatePool, classes: int) -> None:
    fewest = int(site.train.counts(classes)[pool.data.counts(classes) > 0].min())
    parts = distil.tiles**2 if distil.start in PICKS else 1
    if fewest < distil.per_class * parts:
        tiles = f" of {parts} tiles each" if parts > 1 else ""
        values = {"images": fewest, "per_class": distil.per_class, "tiles": tiles}
        raise DataError("half-too-small", site=site.name, **values)


class _Released(Exception):  # noqa: N818
    """The site made its first release: this is no error."""


def _check_promise(config: Config, site: Site, net: Net) -> None:
    """Enrol the site up to its first release: what refuses too few images comes before. Nothing is stored."""

    def stop(_: Told) -> None:
        raise _Released

    try:
        with suppress(_Released):
            rng = Stream(config.plan.seed).at("enrol", site.name)
            config.method.enrol(replace(site, on_release=stop), config.method.adapt(net), rng)
    except PrivacyError as error:
        raise PrivacyError("half-refused", site=site.name, error=error) from error


@dataclass(frozen=True, eq=False)
class AuditPlan:
    """All federations of an audit of one run."""

    target: AuditTarget
    request: AuditRequest
    site: str

    @cached_property
    def arms(self) -> list[Arm]:
        return list(arms_of(self.target, self.site, self.request))

    @cached_property
    def pool(self) -> CandidatePool:
        flip = 0.0 if self.request.canaries == "none" else CANARY_SHARE
        target, federation, rng = self.target, self.target.federation, self.target.rng
        pool = draw_pool(federation, self.site, MAX_POOL_SIZE, flip, rng, self.request.canaries)
        check_pool(pool)
        for arm in self.arms:
            check_halves(arm.config, pool, federation, target.net, self.request.federations_of(arm.kind), rng)
        return pool

    @cached_property
    def study(self) -> Study:
        target, request = self.target, self.request
        lira = request.attack == "lira"
        return Study.of(target.federation, self.pool, target.net, target.rng, request.all_layers, shifted=lira)

    @cached_property
    def shadows(self) -> dict[str, list[Shadow]]:
        """The federations of each arm by its label."""
        if self.request.attack == "paper":
            return {arm.label: [self._paper_control(arm)] for arm in self.arms if arm.kind != "run"}
        counts = {arm.label: self.request.federations_of(arm.kind) for arm in self.arms}
        return {arm.label: [self._shadow(arm, i) for i in range(counts[arm.label])] for arm in self.arms}

    def _shadow(self, arm: Arm, i: int) -> Shadow:
        target, members = self.target, members_in(self.pool, i, self.target.rng)
        federation = target.federation.with_cache(shared_cache())
        if arm.only_set:
            run = lambda _: distil_watched(arm.config, federation, target.net, self.study, members)  # noqa: E731
            return Shadow(self._file(arm, i), run, 0)
        start = partial(run_watched, arm.config, federation, target.net, self.study, members)
        return Shadow(self._file(arm, i), start, arm.config.plan.rounds + 1)

    @cached_property
    def _sample(self) -> tuple[LabelledSet, Tensor]:
        return paper_attack.draw_sample(self.target.federation.by_name[self.site], self.target.rng)

    def _paper_control(self, arm: Arm) -> Shadow:
        """The federation of a control of the paper's attack, on all images."""
        target = self.target
        start = partial(paper_attack.run_and_observe, arm.config, target.federation, target.net, self._sample)
        return Shadow(self._file(arm, 0), start, arm.config.plan.rounds + 1)

    def _file(self, arm: Arm, i: int) -> Path:
        made_from = {
            "format": AUDIT_FORMAT,
            "config": arm.config.toml(),
            "data": self.target.federation.digest,
            "site": self.site,
            "kind": (self.request.attack == "paper", arm.only_set, self.request.canaries),
        }
        if self.request.all_layers:
            made_from["all layers"] = True
        if self.request.attack == "lira":
            made_from["shifted"] = True
        if self.request.attack != "paper" and len(self.pool.rest):
            made_from["rest"] = len(self.pool.rest)
        key = digest(json.dumps(made_from, sort_keys=True).encode())[:12]
        return self.target.folder / "audit" / key / f"{i:02d}.safetensors"

    def seconds(self, jobs: int) -> float:
        """Estimated seconds for the federations that are not stored yet."""
        total = 0.0
        for arm in self.arms:
            left = sum(not shadow.file.exists() for shadow in self.shadows.get(arm.label, ()))
            if left:
                total += left * self._seconds_of(arm)
        return total / jobs

    def _seconds_of(self, arm: Arm) -> float:
        """As long as the run itself, in which every site distilled; without its records, by a trial."""
        federation, known = self.target.federation, self.target.result.records
        if arm.kind == "run" and all(record.cpu for record in known):
            spent = {record.round: sum(record.cpu.values()) - record.cpu.get("evaluate", 0.0) for record in known}
            return sum(spent.values()) - spent.get(-1, 0.0) * (1 - 1 / len(federation.sites))
        if self.request.attack != "paper":
            federation = halved(federation, self.pool, members_in(self.pool, 0, self.target.rng))
        if arm.only_set:
            federation = replace(federation, sites=(federation.by_name[self.site],))
        found = estimate(arm.config, federation, self.target.net, cache=shared_cache())
        if found is None:
            return 0.0
        return found.enrolment if arm.only_set else found.total()

    def run(self, jobs: int) -> Audit:
        """Run all federations, attack them, and write the findings to `file`."""
        run_shadows([shadow for shadows in self.shadows.values() for shadow in shadows], jobs)
        findings = self._paper_findings() if self.request.attack == "paper" else self._findings()
        audit = Audit(
            format=AUDIT_FORMAT,
            attack=self.request.attack,
            site=self.site,
            images=len(self.target.federation.by_name[self.site].train),
            federations=1 if self.request.attack == "paper" else self.request.federations,
            findings=tuple(findings),
            settings=self.settings,
            promised=promise_of(self.target.config.method),
        )
        write_json(self.file, asdict(audit))
        return audit

    @property
    def settings(self) -> dict[str, Any]:
        """What makes an audit another one than those stored beside it."""
        plan = self.target.config.plan
        return {"seed": plan.seed, "rounds": plan.rounds, **asdict(self.request), "site": self.site}

    @cached_property
    def file(self) -> Path:
        """The file of an earlier audit with the same settings, or a new one; one that cannot be read stays."""
        folder = self.target.folder
        for file in results_of(folder, AUDIT):
            with suppress(RunError):
                known = read_json(file)
                before = {**known.get("settings", {}), "site": known.get("site")}
                if all(before.get(name, value) == value for name, value in self.settings.items()):
                    return file
        return unused_file(folder, AUDIT)

    def _findings(self) -> Iterator[Finding]:
        rng, parts = self.target.rng, self.pool.parts
        promise = promise_of(self.target.config.method)
        delta = promise.delta if promise else DEFAULT_DELTA
        for arm in self.arms:
            seen = [shadow.read() for shadow in self.shadows[arm.label]]
            yield from findings_of(seen, self.request.attack, parts, rng, arm.kind, arm.label, delta)
            if arm.kind == "run":
                yield from blind_findings(self.study, self.target.net, self.target.untrained, seen, rng)

    def _paper_findings(self) -> Iterator[Finding]:
        target, result = self.target, self.target.result
        accuracy = fmean(result.accuracy.values()) if result.accuracy else None
        blind = paper_attack.observe_model(target.net, target.untrained, self._sample, None)
        arms = {arm.label: (arm.kind, self.shadows[arm.label][0].read()) for arm in self.arms if arm.kind != "run"}
        own = paper_attack.observe_model(result.net, result.params, self._sample, accuracy)
        runs: dict[str, tuple[Kind, Observations]] = {
            target.config.method.label: ("run", own),
            BLIND_LABEL: ("blind", blind),
        }
        for label, (kind, seen) in (runs | arms).items():
            yield from paper_attack.paper_findings(seen, self.request.in_sample, target.rng, kind, label)
