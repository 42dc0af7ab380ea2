"""How a run computes, compiled or not and in which precision: decided before it starts, kept when it is resumed."""

import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter

import torch
from torch.nn import functional as F

from fedlgd.core.compile import CompileWarning, find_compiler
from fedlgd.core.device import Compile, Place, settle, to_device
from fedlgd.core.meter import track
from fedlgd.core.net import Net
from fedlgd.core.types import Stream
from fedlgd.data.federation import Federation
from fedlgd.rundir.manifest import EngineInfo, read_manifest
from fedlgd.rundir.records import committed_records
from fedlgd.runs.config import Config
from fedlgd.runs.estimate import estimate, warm_up

COMPILE_FLOPS = 1e14  # of a run, about 20 minutes of a core: enough to save more time than compilation takes
PROBE_REPEATS = 3  # of each precision; the shortest time counts


def settle_place(place: Place, config: Config, federation: Federation, net: Net, out: Path | None = None) -> Place:
    """The place with `compile` on or off, and with `on` the passes of the run are compiled.

    `auto` is the mode of the run in `out`; for a new run it is on if the run is long. That is a number of FLOPs and
    not of seconds, so that the decision is the same at any time. Warnings say why compiling fails, what changes in
    a run that is resumed in another mode or precision, and that bfloat16 is slow here.
    """
    started = out if out and (out / "state").exists() else None
    before = read_manifest(started).engine if started else None
    place = replace(place, compile=_mode(place, before, config, federation, net))
    if started and before:
        _compare(place, before, started)
        if len(committed_records(started)) > config.plan.rounds:  # finished
            return place
    place = checked_place(place)
    return _with_graphs(place, config, federation, net) if place.compile == "on" else place


def checked_place(place: Place) -> Place:
    """The place without what is not here. Warnings say that there is no compiler, and that bfloat16 is slow."""
    if place.precision == "bf16" and (ratio := place.do(bf16_speed, None)) < 1:
        warnings.warn(f"bfloat16 is slow here: a convolution takes {1 / ratio:.1f} times as long", stacklevel=3)
    if place.compile == "on" and not find_compiler():
        warnings.warn("the network is not compiled: there is no C++ compiler (g++ or what CXX names)", stacklevel=3)
        return replace(place, compile="off")
    return place


def _mode(place: Place, before: EngineInfo | None, config: Config, federation: Federation, net: Net) -> Compile:
    """Whether to compile, without `auto`."""
    if place.compile != "auto":
        return place.compile
    if before or not find_compiler():
        return "on" if before and before.compile else "off"
    found = estimate(config, federation, net)
    return "on" if found and sum(found.flops.values()) >= COMPILE_FLOPS else "off"


def _compare(place: Place, before: EngineInfo, out: Path) -> None:
    """Warn if a run goes on in another mode or precision."""
    mode = "on" if before.compile else "off"
    for name, was, now, effect in (
        ("compile", mode, place.compile, "the last bits of results can differ"),
        ("precision", before.precision, place.precision, "results differ in the third digit"),
    ):
        if was != now:
            text = f"{out} was started with {name}={was} and is resumed with {name}={now}: {effect}"
            warnings.warn(text, stacklevel=3)


def bf16_speed(_: object = None) -> float:
    """How many times as fast a convolution is in bfloat16, measured in a few milliseconds. Below 1: slower."""
    x, weight = (to_device(torch.ones(shape)) for shape in ((8, 32, 14, 14), (32, 32, 3, 3)))
    best = {}
    for dtype in (torch.float32, torch.bfloat16):
        given, times = (x.to(dtype), weight.to(dtype)), []
        for _ in range(PROBE_REPEATS + 1):  # the first call prepares
            began = perf_counter()
            with torch.no_grad():
                F.conv2d(*given, padding=1)
            settle()
            times.append(perf_counter() - began)
        best[dtype] = min(times[1:])
    return best[torch.float32] / best[torch.bfloat16]


def _with_graphs(place: Place, config: Config, federation: Federation, net: Net) -> Place:
    """Compile the passes by the steps of an estimate: workers are then forked with them. Off if that fails.

    A method without an estimate compiles one pass here, and the others when it needs them.
    """
    try:
        with warnings.catch_warnings(action="error", category=CompileWarning):
            for _ in track("compile", 1):
                if estimate(config, federation, net, place=place) is None:
                    place.do(partial(warm_up, net, federation.sites[0]), net.init(Stream(config.plan.seed)))
    except CompileWarning as problem:
        warnings.warn(f"the network is not compiled: {problem}", stacklevel=3)
        return replace(place, compile="off")
    return place
