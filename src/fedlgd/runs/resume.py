"""Begin a run in a folder, resume it, or give it more rounds: what must agree, and the manifest that is written.

With more rounds, a cosine schedule that has ended starts again; everything else is as if the run had had them from
the start.
"""

import os
import platform
import subprocess
import tomllib
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch

from fedlgd import __version__
from fedlgd.core import files
from fedlgd.core.errors import RunError
from fedlgd.core.net import Net
from fedlgd.core.settings import flat
from fedlgd.core.source import code_digests
from fedlgd.core.text import plural
from fedlgd.core.train import Local
from fedlgd.data.federation import Federation
from fedlgd.engines.registry import Engine, Loop
from fedlgd.engines.wire import add_sent
from fedlgd.methods.parts import name_of
from fedlgd.methods.protocol import Method
from fedlgd.methods.registry import code_of
from fedlgd.rundir import manifest as info
from fedlgd.rundir.records import SentPart, committed_records
from fedlgd.runs.config import Config, with_setting
from fedlgd.runs.distil import short_at
from fedlgd.runs.folder import RunDirectory, clear_own_parts


class Stages(NamedTuple):
    """A stored configuration that another one continues: its rounds (0: it is not continued), and the rounds after
    which the cosine schedule of the other one starts again."""

    rounds: int = 0
    restarts: tuple[int, ...] = ()


def stages(stored: bytes, config: Config) -> Stages:
    """Of a stored configuration that is the same as `config` but for its rounds and restarts."""
    try:
        raw = tomllib.loads(stored.decode())
        rounds, restarts = raw["rounds"], tuple(raw.get("local", {}).get("restarts", ()))
        if _with_stages(config, rounds, restarts).toml().encode() != stored:
            return Stages()
    except (ValueError, LookupError, TypeError, AttributeError):
        return Stages()
    more = (rounds,) if rounds < config.plan.rounds else ()
    return Stages(rounds, (*restarts, *more) if _has_cosine(config) else ())


def stages_in(folder: Path, config: Config) -> Stages:
    """Those of the run in this folder, if there is one."""
    file = folder / "config.toml"
    return stages(file.read_bytes(), config) if file.is_file() else Stages()


def continued(config: Config, path: Path) -> Config:
    """The configuration with which a run in this folder continues: a cosine that has ended starts again.

    A longer cosine would have other learning rates in the rounds that are done. With `local.restarts` in its
    configuration, the result is that of a run with these settings from the start.
    """
    restarts, chosen = stages_in(path, config).restarts, _restarts(config)
    if not restarts or chosen != restarts[: len(chosen)]:
        return config
    return _with_stages(config, config.plan.rounds, restarts)


def _with_stages(config: Config, rounds: int, restarts: Sequence[int]) -> Config:
    method = config.method
    if _has_cosine(config):
        method = with_setting(method, "local.restarts", tuple(restarts) or None)
    return replace(config, plan=replace(config.plan, rounds=rounds), method=method)


def _has_cosine(config: Config) -> bool:
    local = getattr(config.method, "local", None)
    return isinstance(local, Local) and local.schedule == "cosine"


def _restarts(config: Config) -> tuple[int, ...]:
    method: Any = config.method
    return method.local.restarts or () if _has_cosine(config) else ()


def extension(path: Path, config: Config) -> str:
    """A sentence on continuing the run in this folder that has fewer rounds; empty if there is none."""
    before, rounds = stages_in(path, config).rounds, config.plan.rounds
    if not 0 < before < rounds:
        return ""
    text = f"Extending the run in {path} from {before} to {rounds} rounds. "
    if _has_cosine(config):
        restarts = list(_restarts(continued(config, path)))
        text += (
            f"Its cosine schedule ends at round {before}; the learning rate starts again from local.lr and falls "
            f"to 0 at round {rounds}. This is recorded as local.restarts={restarts}. The result is not "
            f"that of one cosine over {rounds} rounds; for that, start a new run with --out"
        )
    else:
        text += (
            "Its model, virtual sets and anchors will be those of a run with this number of rounds from the start"
        )
    if config.plan.evaluate_every:
        return f"{text}."
    return f"{text}. Evaluated rounds up to round {before} keep their own spacing."


def default_folder(config: Config) -> Path:
    """runs/<data>/<method>/seed<n>-<digest of the configuration>, or a run there that only has fewer rounds."""
    method = files.safe_name(config.method.label.lower().replace(" ", "-"))
    folder = Path("runs", files.safe_name(config.data.name), method)
    named = folder / f"seed{config.plan.seed}-{config.digest}"
    if named.exists():
        return named
    others = [file.parent for file in sorted(folder.glob(f"seed{config.plan.seed}-*/config.toml"))]
    rounds = {path: stages_in(path, config).rounds for path in others}
    shorter = {path: count for path, count in rounds.items() if 0 < count <= config.plan.rounds}
    return max(shorter, key=shorter.__getitem__, default=named)


def open_directory(
    path: Path,
    config: Config,
    federation: Federation,
    net: Net,
    command: str,
    title: str,
    engine: Engine,
    accept_changed_code: bool = False,
) -> RunDirectory:
    """A run folder for this configuration: a new one, or an existing one to resume."""
    text = config.toml().encode()
    if (path / "state").exists():
        manifest, stored = check_resume(path, config, federation)
        if manifest.threads != torch.get_num_threads():
            warnings.warn(
                f"{path} was started with {plural(manifest.threads, 'thread')} and is resumed with "
                f"{torch.get_num_threads()}: the last bits of results can differ",
                stacklevel=2,
            )
        manifest = _check_code(path, manifest, config, net, accept_changed_code)
        if title not in ("", manifest.label):
            manifest = replace(manifest, label=title)
            manifest.write(path)
        if stored != text:
            _extend(path, manifest, config, stored, command)
    else:
        _check_free(path, text)
        with files.writing(path):
            files.write_atomic(path / "config.toml", text)
        new_manifest(config, federation, net, command, title, engine).write(path)
        clear_own_parts(path)
    scales = {name: site.train.scale for name, site in federation.by_name.items()}
    return RunDirectory(path, scales, engine.local)


def check_resume(path: Path, config: Config, federation: Federation) -> tuple[info.Manifest, bytes]:
    """Refuse to resume a run with other settings, data or versions. Its manifest and its stored configuration."""
    manifest = info.read_manifest(path)
    stored = _check_config(path, manifest, config)
    check_origin(path, manifest, federation)
    return manifest, stored


def _check_free(path: Path, text: bytes) -> None:
    """Refuse to overwrite anything except a run that has not started."""
    ours = {".lock"}
    if (path / info.MANIFEST).exists() and files.read_json(path / info.MANIFEST):
        ours |= {info.MANIFEST, "config.toml", "virtual", "real"}
    elif (path / "config.toml").exists() and (path / "config.toml").read_bytes() == text:
        ours |= {"config.toml"}
    if any(p.name not in ours and p.suffix != ".part" for p in path.iterdir()):
        raise RunError("folder-not-empty", path=str(path))


def _check_config(path: Path, manifest: info.Manifest, config: Config) -> bytes:
    """Refuse to resume a run with another configuration. Returns the stored one, which can have fewer rounds."""
    file = path / "config.toml"
    with files.reading(file):
        stored = file.read_bytes()
        replaced = (each.config_before for each in manifest.extended)
        if files.digest(stored) not in (manifest.config, *replaced):
            raise ValueError("it has changed since the start of the run")
    before, restarts = stages(stored, config)
    if before > config.plan.rounds:
        raise RunError("more-rounds-done", path=str(path), before=before, rounds=config.plan.rounds)
    if not before:
        differences = _differences(stored.decode(), config.toml())
        raise RunError("other-configuration", path=str(path), differences=differences, file=str(file))
    if _restarts(config) != restarts:
        raise RunError("other-restarts", path=str(path), before=before, restarts=list(_restarts(config)))
    return stored


def _differences(stored: str, wanted: str) -> str:
    """net.width is 8 there and 16 here, mu is not there and 0.1 here"""
    old, new = ({path: repr(value) for path, value in flat(tomllib.loads(text))} for text in (stored, wanted))
    both = [(path, old.get(path, "not set"), new.get(path, "not set")) for path in old | new]
    return ", ".join(f"{path} is {there} there and {here} here" for path, there, here in both if there != here)


def check_origin(path: Path, manifest: info.Manifest, federation: Federation) -> None:
    """Refuse to resume a run with other data or another version."""
    for name, version in _versions().items():
        if name != "python" and manifest.versions.get(name) != version:
            made_with = manifest.versions.get(name)
            raise RunError("other-version", path=str(path), name=name, made_with=made_with, version=version)
    if manifest.data.digest != federation.digest:
        raise RunError("images-changed", data=federation.name, path=str(path))


def sources_of(method: Method, net: Net) -> dict[str, str]:
    """The digests of the code of the user's own that a method and a network are made of."""
    return code_digests([*code_of(method), *net.base.made_of])


def changed_code(manifest: info.Manifest, sources: Mapping[str, str]) -> list[str]:
    """The source files that are not those of a run; none for a run that has not stored them."""
    stored = manifest.method.sources
    return differing_keys(stored, sources) if stored else []


def differing_keys(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    return sorted(key for key in {**before, **after} if before.get(key) != after.get(key))


def _check_code(path: Path, manifest: info.Manifest, config: Config, net: Net, accepted: bool) -> info.Manifest:
    """Refuse to resume a run with other code unless it is accepted. The manifest records that.

    A complete run has no round of the code of today, so that it keeps the digests of its own.
    """
    stored, sources = manifest.method.sources, sources_of(config.method, net)
    changed = changed_code(manifest, sources)
    if stored == sources:
        return manifest
    if changed and not accepted:
        raise RunError("code-changed", path=str(path), files=changed)
    if not stored:
        names = ", ".join(sources)
        warnings.warn(f"{path} did not store its code ({names}); from now on it is checked", stacklevel=2)
    done = max(0, len(committed_records(path)) - 1)
    if changed and done >= config.plan.rounds:
        text = f"{path} is complete: its results are those of the code before {', '.join(changed)} changed"
        warnings.warn(f"{text}; for the code of today start a new run with --out", stacklevel=2)
        return manifest
    entries = (
        info.CodeChange(file=name, after_round=done, before=stored.get(name, ""), after=sources.get(name, ""))
        for name in changed
    )
    method, history = replace(manifest.method, sources=sources), (*manifest.code_changed, *entries)
    manifest = replace(manifest, method=method, code_changed=history)
    manifest.write(path)
    return manifest


def _extend(path: Path, manifest: info.Manifest, config: Config, before: bytes, command: str) -> None:
    """More rounds for a run. A crash between the two files leaves a configuration that the manifest still names."""
    after = config.toml().encode()
    if manifest.config != files.digest(after):
        entry = info.Extension(
            rounds_before=stages(before, config).rounds,
            rounds=config.plan.rounds,
            after_round=len(committed_records(path)) - 1,
            command=command,
            config_before=files.digest(before),
        )
        extended = (*manifest.extended, entry)
        replace(manifest, config=files.digest(after), variant=config.variant, extended=extended).write(path)
    with files.writing(path):
        files.write_atomic(path / "config.toml", after)


def new_manifest(
    config: Config, federation: Federation, net: Net, command: str = "", title: str = "", engine: Engine = Loop()
) -> info.Manifest:
    """What a run with this configuration knows about itself before it starts."""
    method = config.method
    return info.Manifest(
        versions=_versions(),
        commit=COMMIT,
        threads=torch.get_num_threads(),
        command=command,
        config=files.digest(config.toml().encode()),
        label=title or method.label,
        variant=config.variant,
        method=method_info(method, net),
        promise=promise_of(method),
        competes=not (method.personal or method.pooled),
        data=_data_info(federation, method),
        net=info.NetInfo(label=net.label, parameters=net.size, flops=net.flops),
        engine=engine_info(engine, federation),
        positive=config.plan.positive or "",
    )


def promise_of(method: Method) -> info.Promise | None:
    """The privacy promise of a method; a run without a promise does not enter `fedlgd.dp`."""
    if method.budget is None:
        return None
    from fedlgd.dp.budget import guarantee

    return guarantee(method)


def engine_info(engine: Engine, federation: Federation) -> info.EngineInfo:
    return info.EngineInfo(
        name=engine.name,
        local=engine.local,
        workers=engine.processes(federation),
        threads=torch.get_num_threads(),
        device=engine.place.device,
        precision=engine.place.precision,
        compile=engine.place.compile == "on",
    )


def method_info(method: Method, net: Net) -> info.MethodInfo:
    """What a method declares of itself, with this network."""
    selected = {part: info.Rounds(each.start, each.step, len(each)) for part, each in method.schedule.items()}
    return info.MethodInfo(
        name=name_of(method),
        label=method.label,
        train_on=method.train_on,
        selected=selected,
        reads=method.reads,
        sends=_sends(method, net),
        sources=sources_of(method, net),
    )


def _sends(method: Method, net: Net) -> dict[str, str]:
    """What the method declares, with the parts of its `Hello`, whose kinds are their names."""
    sent: dict[str, SentPart] = {}
    add_sent(sent, method.expects_hello(method.adapt(net)))
    hello = {path: path.removeprefix("hello/") for path in sent if not path.startswith("hello/trees/")}
    return {**hello, **method.sends}


def _data_info(federation: Federation, method: Method) -> info.DataInfo:
    local = getattr(method, "local", None)
    sites = (
        info.SiteInfo(
            name=site.name,
            folder=files.safe_name(site.name),
            train=len(site.train),
            test=len(site.test),
            note=site.note,
            real_work=local.images(len(site.train)) if isinstance(local, Local) else None,
            short=short_at(method, site),
        )
        for site in federation.test_sites or federation.sites
    )
    return info.DataInfo(
        name=federation.name,
        digest=federation.digest,
        note=federation.note,
        shape=federation.shape,
        classes=tuple(federation.classes),
        sites=tuple(sites),
        prepare=msgspec.to_builtins(federation.preparation),
        public=federation.public,
    )


def _versions() -> dict[str, str]:
    return {"fedlgd": __version__, "torch": str(torch.__version__), "python": platform.python_version()}


def commit_of(root: Path) -> str:
    """The commit of a checkout, with `-dirty` if a file that git knows differs from it; empty without one."""
    asked = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*", "--abbrev=12"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    with suppress(OSError, subprocess.SubprocessError):  # no git here, or one that does not answer
        if (root / ".git").exists():
            return subprocess.run(asked, capture_output=True, text=True, timeout=10, env=own).stdout.strip()
    return ""


COMMIT = commit_of(Path(__file__).parents[3])  # of the code that is imported, not of what a later process finds
