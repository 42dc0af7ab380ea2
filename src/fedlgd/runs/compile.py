"""Whether a run compiles its passes: decided before it starts, and the same when it is resumed."""

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path

from fedlgd.core.compile import find_compiler
from fedlgd.core.device import Compile, Place
from fedlgd.core.meter import track
from fedlgd.core.net import Net
from fedlgd.core.types import Stream
from fedlgd.data.federation import Federation
from fedlgd.rundir.manifest import read_manifest
from fedlgd.rundir.records import committed_records
from fedlgd.runs.config import Config
from fedlgd.runs.estimate import estimate, warm_up

COMPILE_FLOPS = 1e14  # of a run, about 20 minutes of a core: enough to save more time than compilation takes


def settle_compile(
    place: Place, config: Config, federation: Federation, net: Net, out: Path | None = None
) -> Place:
    """The place with `compile` on or off, and with `on` the passes of the run are compiled.

    `auto` is the mode of the run in `out`; for a new run it is on if the run is long. That is a number of FLOPs and
    not of seconds, so that the decision is the same at any time. If compiling fails, a warning says why.
    """
    before: Compile | None = None
    if out and (out / "state").exists():
        before = "on" if read_manifest(out).engine.compile else "off"
    mode = before or "off" if place.compile == "auto" else place.compile
    if place.compile == "auto" and not before and find_compiler():
        found = estimate(config, federation, net)
        mode = "on" if found and sum(found.flops.values()) >= COMPILE_FLOPS else "off"
    if before and mode != before:
        text = f"{out} was started with compile={before} and is resumed with compile={mode}"
        warnings.warn(f"{text}: the last bits of results can differ", stacklevel=2)
    place = replace(place, compile=mode)
    if mode == "off" or (out and before and len(committed_records(out)) > config.plan.rounds):  # finished
        return place
    if problem := _compile_problem(place, config, federation, net):
        warnings.warn(f"the network is not compiled: {problem}", stacklevel=2)
        return replace(place, compile="off")
    return place


def _compile_problem(place: Place, config: Config, federation: Federation, net: Net) -> str:
    """Compile the passes by the steps of an estimate: workers are then forked with them. Returns why it failed.

    A method without an estimate compiles one pass here, and the others when it needs them.
    """
    if not find_compiler():
        return "there is no C++ compiler (g++, or what CXX names)"
    try:
        for _ in track("compile", 1):
            if estimate(config, federation, net, place=place) is None:
                place.do(partial(warm_up, net, federation.sites[0]), net.init(Stream(config.plan.seed)))
    except RuntimeError as error:
        return str(error).strip().splitlines()[0]
    return ""
