"""A stored run that can be audited, and what cannot."""

from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from fedlgd.core.errors import DataError, PrivacyError, RunError, SettingError, did_you_mean
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import Params
from fedlgd.data.federation import Federation
from fedlgd.runs.config import Config
from fedlgd.runs.result import Result, reopen


@dataclass(frozen=True, eq=False)
class Subject:
    """A finished run that can be audited: its settings, its images, and what it stored."""

    folder: Path
    config: Config
    federation: Federation
    net: Net
    result: Result

    @property
    def rng(self) -> Stream:
        return Stream(self.config.plan.seed).at("audit")

    @property
    def untrained(self) -> Params:
        """The model before the first round, which has seen no image."""
        return self.net.init(Stream(self.config.plan.seed).at("init"))


def open_subject(folder: Path) -> Subject:
    """The run in this folder, if it can be audited. To finish it is no advice if it then cannot."""
    run = reopen(folder)
    _check_method(run.config, folder)
    result = run.result
    if result.rounds < result.planned:
        values = {"rounds": result.rounds, "planned": result.planned, "command": run.manifest.command}
        raise RunError("run-unfinished", path=str(folder), **values)
    plan = replace(run.config.plan, evaluate_every=run.config.plan.rounds, analysis=False, real_samples=0)
    return Subject(folder, replace(run.config, plan=plan), run.federation, run.net, result)


def _check_method(config: Config, folder: Path) -> None:
    method, budget = config.method, config.method.budget
    if method.personal or method.pooled:
        what = "a model of its own at each site" if method.personal else "the images of all sites in one place"
        raise SettingError("no-shared-model", label=method.label, what=what)
    if budget is not None and not budget.test_key:
        images = " --data PUBLIC" if config.data.name == "folders" else ""
        settings = f"--config {quote(str(folder / 'config.toml'))} --set {budget.section}.test_key=NAME"
        raise PrivacyError("audit-would-release", promise=budget.promise, options=f"{images} {settings}")


def chosen_site(federation: Federation, name: str) -> str:
    """The named site; by default the one with the fewest training images, which is the most exposed."""
    if not name:
        return min(federation.by_name.values(), key=lambda site: len(site.train)).name
    if name not in federation.by_name:
        hint = did_you_mean(name, federation.by_name) or ";"
        raise DataError("attacked-site-unknown", site=name, hint=hint, sites=list(federation.by_name))
    return name
