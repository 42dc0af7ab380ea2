"""A stored run that can be audited, and what cannot."""

from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from fedlgd.core.errors import DataError, PrivacyError, RunError, SettingError, did_you_mean
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.text import plural
from fedlgd.core.types import Params
from fedlgd.data.federation import Federation
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.parse import read_toml
from fedlgd.runs.result import Result, manifest_of, open_run


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
    manifest, config = manifest_of(folder), resolve(read_toml(folder / "config.toml"))
    if not manifest["engine"].get("local", True):
        raise RunError(
            f"{str(folder)!r} is a run of real sites, whose images and states are not here; each site can audit a "
            "simulated run of its own images"
        )
    _check_method(config, folder)
    result = open_run(folder)
    if result.rounds < result.planned:
        raise RunError(
            f"{str(folder)!r} has {result.rounds} of {plural(result.planned, 'round')}; finish it first: "
            f"{manifest['command']}"
        )
    federation = config.data.open()
    if federation.digest != manifest["data"]["digest"]:
        raise RunError(
            f"the images of {federation.name!r} have changed since {str(folder)!r} was made; restore them"
        )
    net = config.net_for(federation)
    plan = replace(config.plan, evaluate_every=config.plan.rounds, analysis=False, real_samples=0)
    return Subject(folder, replace(config, plan=plan), federation, net, result)


def _check_method(config: Config, folder: Path) -> None:
    method, budget = config.method, config.method.budget
    if method.personal or method.pooled:
        what = "a model of its own at each site" if method.personal else "the images of all sites in one place"
        raise SettingError(
            f"{method.label} has {what}, so there is no shared model to attack; audit another method"
        )
    if budget is not None and not budget.test_key:
        images = " --data PUBLIC" if config.data.name == "folders" else ""
        settings = f"--config {quote(str(folder / 'config.toml'))} --set {budget.section}.test_key=NAME"
        raise PrivacyError(
            f"this run promises {budget.promise}. An audit trains on its private images again: every federation "
            "would be a new release, above its budget. Audit a simulation with the same settings on public images: "
            f"fedlgd run{images} {settings} --out NEW; then fedlgd audit NEW"
        )


def chosen_site(federation: Federation, name: str) -> str:
    """The named site; by default the one with the fewest training images, which is the most exposed."""
    if not name:
        return min(federation.by_name.values(), key=lambda site: len(site.train)).name
    if name not in federation.by_name:
        hint = did_you_mean(name, federation.by_name) or ";"
        raise DataError(f"no site is called {name!r}{hint} sites: {', '.join(federation.by_name)}")
    return name
