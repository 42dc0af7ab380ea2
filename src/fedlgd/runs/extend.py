"""A run with more rounds: which configuration goes on where a stored one ends.

A cosine schedule that has ended starts again; everything else is as if the run had had this length from the start.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedlgd.core.train import Local
from fedlgd.methods.common import restart_schedule
from fedlgd.runs.config import Config


def rounds_before(stored: bytes, config: Config) -> int:
    """The rounds of a stored configuration that is the same but for them and for restarts; 0 if it is not."""
    try:
        raw = tomllib.loads(stored.decode())
        same = _with_stages(config, raw["rounds"], _stored_restarts(raw)).toml().encode() == stored
    except (ValueError, LookupError, TypeError, AttributeError):
        return 0
    rounds: int = raw["rounds"]
    return rounds if same else 0


def continued(config: Config, path: Path) -> Config:
    """The configuration with which a run in this folder continues: a cosine that has ended starts again.

    A longer cosine would have other learning rates in the rounds that are done. With `local.restarts` in its
    configuration, the result is that of a run with these settings from the start.
    """
    stored = path / "config.toml"
    expected = expected_restarts(stored.read_bytes(), config) if stored.is_file() else ()
    chosen = restarts_of(config)
    if not expected or (chosen and chosen != expected[: len(chosen)]):
        return config
    return _with_stages(config, config.plan.rounds, expected)


def expected_restarts(stored: bytes, config: Config) -> tuple[int, ...]:
    """Those of the stored configuration, and one where it ends if `config` has more rounds."""
    before = rounds_before(stored, config)
    if not before or not _has_cosine(config):
        return ()
    more = (before,) if before < config.plan.rounds else ()
    return (*_stored_restarts(tomllib.loads(stored.decode())), *more)


def _with_stages(config: Config, rounds: int, restarts: Sequence[int]) -> Config:
    method = restart_schedule(config.method, restarts) if _has_cosine(config) else config.method
    return replace(config, plan=replace(config.plan, rounds=rounds), method=method)


def _has_cosine(config: Config) -> bool:
    local = getattr(config.method, "local", None)
    return isinstance(local, Local) and local.schedule == "cosine"


def restarts_of(config: Config) -> tuple[int, ...]:
    method: Any = config.method
    return method.local.restarts or () if _has_cosine(config) else ()


def _stored_restarts(raw: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(raw.get("local", {}).get("restarts", ()))


def extension(path: Path, config: Config) -> str:
    """What happens to a run in this folder that has fewer rounds; empty if there is none."""
    file = path / "config.toml"
    before = rounds_before(file.read_bytes(), config) if file.is_file() else 0
    if not before or before >= config.plan.rounds:
        return ""
    text = f"Extending the run in {path} from {before} to {config.plan.rounds} rounds. "
    if _has_cosine(config):
        restarts = list(restarts_of(continued(config, path)))
        text += (
            f"Its cosine schedule ends at round {before}; the learning rate starts again from local.lr and falls "
            f"to 0 at round {config.plan.rounds}. This is recorded as local.restarts={restarts}. The result is not "
            f"that of one cosine over {config.plan.rounds} rounds; for that, start a new run with --out"
        )
    else:
        text += (
            "Its model, virtual sets and anchors will be those of a run with this number of rounds from the start"
        )
    if config.plan.evaluate_every:
        return f"{text}."
    return f"{text}. Evaluated rounds up to round {before} keep their own spacing."
