"""An audit of a stored run: the plan of its federations, the attacks, and the findings in the run folder.

Whether a random half of the site is enough for every federation is found out before the first is run.
"""

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import Any

from fedlgd.attacks import findings, shadow
from fedlgd.attacks.pool import Canaries, CandidatePool, draw_pool, halved, members_in
from fedlgd.attacks.shadow import Observations, Shadow, has_distil
from fedlgd.attacks.target import AuditTarget, chosen_site, guarded_by, refuse_model, sent_words
from fedlgd.attacks.watch import Study
from fedlgd.core.errors import DataError, FedlgdError, PrivacyError, RunError, SettingError
from fedlgd.core.files import digest, read_json, write_json
from fedlgd.core.train import Local
from fedlgd.core.types import Site
from fedlgd.data.federation import Federation
from fedlgd.distill.settings import Distil
from fedlgd.dp.release import Told
from fedlgd.dp.training import SiteDp
from fedlgd.methods.protocol import Net, Stream
from fedlgd.rundir.disclosure import declared_kind
from fedlgd.rundir.results import AUDIT, AUDIT_FORMAT, Audit, Finding, Kind, results_of, unused_file
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.estimate import estimate
from fedlgd.runs.folder import shared_cache
from fedlgd.runs.resume import promise_of, sources_of

MIN_POOL_SIZE = 60
SHADOW_COUNTS: Mapping[str, int] = {"rmia": 4, "lira": 16}
CONTROL_FEDERATIONS = 3  # for RMIA, which is almost at its best with two shadows
MAX_POOL_SIZE = 2000
CANARY_SHARE = 0.05
EQUAL_STEPS = ", equal steps"
DEFAULT_TRAINING = ", default settings"


@dataclass(frozen=True, kw_only=True)
class AuditRequest:
    """What to audit. thorough: 17 federations, and baselines with all their epochs."""

    attack: findings.AttackName = "rmia"
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


def plan_audit(target: AuditTarget, request: AuditRequest) -> "AuditPlan":
    """The audit of the named site; by default of the smallest one that has enough images to be audited.

    If none has, the error is that of the largest site.
    """
    if request.site or request.attack == "paper":
        return AuditPlan(target, request, chosen_site(target.federation, request.site))
    sizes = {name: len(site.train) for name, site in target.federation.by_name.items()}
    refused = dict[str, FedlgdError]()
    for name in sorted(sizes, key=sizes.__getitem__):
        plan = AuditPlan(target, request, name)
        try:
            if len(plan.pool):
                return plan
        except (DataError, PrivacyError) as error:
            refused[name] = error
    raise refused[max(sizes, key=sizes.__getitem__)]


def arms_of(target: AuditTarget, site: str, request: AuditRequest) -> Iterator[Arm]:
    """The run, FedAvg on real and on virtual data, and a start from real images, which must leak.

    A method without our settings of distillation has no control on virtual data: the federations of the run itself
    have the one that must leak.
    """
    config, method = target.config, target.config.method
    yield Arm(method.label, "run", config)
    if method.train_on != "real" or not has_local(method):
        steps = {} if request.thorough else _equal_steps(config, target, site)
        real = _fedavg(config, "real", steps)
        how = EQUAL_STEPS if steps else "" if has_local(method) else DEFAULT_TRAINING
        yield Arm(_other(real.method.label + how, method.label), "baseline", real)
    if not has_distil(method):
        return
    baseline = _fedavg(config, "virtual")
    if baseline.method != method:
        yield Arm(_other(baseline.method.label, method.label), "baseline", baseline)
    start = _fedavg(config, "virtual", {"distil.start": "real", "distil.private.epsilon": 0})
    yield Arm("virtual set that starts from real images", "positive", start, only_set=request.attack != "paper")


def _other(label: str, of_run: str) -> str:
    """The label of a control: a user's method can have the name of one of ours."""
    return f"{label}, control" if label == of_run else label


def has_local(method: object) -> bool:
    """Whether a method has our settings of local training; a user's own need not."""
    return isinstance(getattr(method, "local", None), Local)


def _fedavg(config: Config, train_on: str, more: Mapping[str, Any] | None = None) -> Config:
    """FedAvg with the settings of the run, as far as its method has them, and they are of matched means."""
    plain = config.plain()
    if isinstance(by_means := getattr(config.method, "by_means", None), Distil):
        plain["distil"] = {name: value for name, value in asdict(by_means).items() if value is not None}
    kept = ["rounds", "ratio", "seed", "evaluate_every", "real_samples", "analysis", "data", "net"]
    kept += ["local"] if has_local(config.method) else []
    kept += ["distil"] if train_on == "virtual" else []
    settings = {name: plain[name] for name in kept if name in plain}
    return resolve(settings | {"method": "fedavg", "train_on": train_on}, more)


def _equal_steps(config: Config, target: AuditTarget, site: str) -> dict[str, int]:
    """As many SGD steps in a round as the run has: training on more images would compare effort, not data."""
    method: Any = config.method
    cost = method.cost(config.plan.rounds - 1, target.federation.by_name[site], target.net.classes)
    return {"local.steps": method.local.count(cost.images)} if cost and has_local(method) else {}


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
        elif method.train_on == "virtual" and has_distil(method) and method.distil.short == "refuse":
            _check_classes(method.distil, site, pool, net.classes)


def _check_classes(distil: Distil, site: Site, pool: CandidatePool, classes: int) -> None:
    fewest = int(site.train.counts(classes)[pool.data.counts(classes) > 0].min())
    parts = distil.real_per_image
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
            method = config.method
            method.enrol(guarded_by(method, replace(site, on_release=stop)), method.adapt(net), rng)
    except PrivacyError as error:
        raise PrivacyError("half-refused", site=site.name, error=error) from error


@dataclass(frozen=True, eq=False)
class AuditPlan:
    """All federations of an audit of one run."""

    target: AuditTarget
    request: AuditRequest
    site: str

    def __post_init__(self) -> None:
        method = self.target.config.method
        if self.request.attack == "paper" and method.personal:
            refuse_model(method, self.target.sent)

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
        study = Study.of(self.target.federation, self.pool, self.target.net, self.target.rng)
        return replace(study, all_layers=self.request.all_layers, shifted=self.request.attack == "lira")

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
        watched = shadow.distil_watched if arm.only_set else shadow.run_watched
        run = partial(watched, arm.config, federation, target.net, self.study, members)
        return Shadow(self._file(arm, i), run, 0 if arm.only_set else arm.config.plan.rounds + 1, arm.label)

    @cached_property
    def _sample(self) -> findings.Sample:
        return findings.draw_sample(self.target.federation.by_name[self.site], self.target.rng)

    def _paper_control(self, arm: Arm) -> Shadow:
        """The federation of a control of the paper's attack, on all images."""
        target = self.target
        run = partial(findings.run_and_observe, arm.config, target.federation, target.net, self._sample)
        return Shadow(self._file(arm, 0), run, arm.config.plan.rounds + 1, arm.label)

    def _file(self, arm: Arm, i: int) -> Path:
        made_from = {
            "format": AUDIT_FORMAT,
            "config": arm.config.toml(),
            "data": self.target.federation.digest,
            "site": self.site,
            "kind": (self.request.attack == "paper", arm.only_set, self.request.canaries),
            "observed": "messages",
        }
        if code := sources_of(arm.config.method, self.target.net):
            made_from["code"] = code
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
            left = sum(not each.file.exists() for each in self.shadows.get(arm.label, ()))
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
        shadow.run_shadows([each for shadows in self.shadows.values() for each in shadows], jobs, self.command)
        found = [*(self._paper_findings() if self.request.attack == "paper" else self._findings())]
        if not any(each.kind == "run" for each in found):
            method = self.target.config.method
            raise RunError("nothing-attacked", label=method.label, sent=sent_words(method, self.target.sent))
        audit = Audit(
            format=AUDIT_FORMAT,
            attack=self.request.attack,
            site=self.site,
            images=len(self.target.federation.by_name[self.site].train),
            federations=1 if self.request.attack == "paper" else self.request.federations,
            findings=tuple(found),
            settings=self.settings,
            promised=promise_of(self.target.config.method),
            unattacked=self._unattacked,
        )
        write_json(self.file, asdict(audit))
        return audit

    @property
    def _unattacked(self) -> dict[str, str]:
        """The kinds of what the site sent and no attack on the run looked at; the paper attacks the model alone."""
        if self.request.attack == "paper":
            return self.target.sent
        seen = [each.read() for each in self.shadows[self.arms[0].label]]
        paths = sorted({path for each in seen for path in each.unattacked})
        return {path: declared_kind(path, self.target.sends) for path in paths}

    @property
    def command(self) -> str:
        """The command of this audit with one federation at a time, in its own process."""
        request = self.request
        words = ["fedlgd", "audit", str(self.target.folder), "--site", self.site, "--jobs", "1"]
        words += ["--attack", request.attack] if request.attack != "rmia" else []
        words += ["--canaries", request.canaries] if request.canaries != "none" else []
        flags = {
            "--thorough": request.thorough,
            "--in-sample": request.in_sample,
            "--all-layers": request.all_layers,
        }
        return shlex.join([*words, *(name for name, on in flags.items() if on)])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that distinguish an audit from those stored beside it."""
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
        delta = promise.delta if promise else findings.DEFAULT_DELTA
        for arm in self.arms:
            seen = [each.read() for each in self.shadows[arm.label]]
            yield from findings.findings_of(seen, self.request.attack, parts, rng, arm.kind, arm.label, delta)
            if arm.kind == "run":
                yield from findings.copy_findings(seen, self.request.attack, rng)
                yield from findings.blind_findings(self.study, self.target.net, self.target.untrained, seen, rng)

    def _paper_findings(self) -> Iterator[Finding]:
        target, result = self.target, self.target.result
        accuracy = fmean(result.accuracy.values()) if result.accuracy else None
        own = findings.observe_model(result.net, result.params, self._sample, accuracy)
        blind = findings.observe_model(target.net, target.untrained, self._sample, None)
        seen: list[tuple[Kind, str, Observations]] = [("run", target.config.method.label, own)]
        seen.append(("blind", findings.BLIND_LABEL, blind))
        seen += [(arm.kind, arm.label, self.shadows[arm.label][0].read()) for arm in self.arms if arm.kind != "run"]
        for kind, label, each in seen:
            yield from findings.paper_findings(each, self.request.in_sample, target.rng, kind, label)
