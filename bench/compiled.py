"""The phases of a run as they are, in bfloat16, compiled, and both: `python -m bench.compiled --width 128`.

The four take turns in one process with one thread, so that load on the machine affects all of them. A ratio is the
least CPU time of a phase as it is, divided by that of the other.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch

from bench.tools import ours
from bench.tools.measure import kept_malloc, peak_flops, seconds
from bench.tools.scene import Scene
from bench.tools.table import aligned
from fedlgd.core.device import Place

PLACES = {
    "eager": Place(),
    "bfloat16": Place(precision="bf16"),
    "compiled": Place(compile="on"),
    "both": Place(compile="on", precision="bf16"),
}
TEST_IMAGES = 512


def phases(scene: Scene) -> dict[str, Callable[[], object]]:
    """The phases that passes of the network take most of."""
    small = replace(scene, site=replace(scene.site, test=scene.site.test.take(slice(0, TEST_IMAGES))))
    assert scene.target  # computed here, so that it is not measured
    return {
        "training epoch": partial(ours.plain_epoch, scene),
        "regularised epoch": partial(ours.regularised_epoch, scene),
        "evaluation": partial(ours.evaluate, small),
        "distribution matching": partial(ours.iterative_dm, scene, ours.sample(ours.ITERATIVE, 1)),
        "gradient matching": partial(ours.gm, scene, replace(ours.METHOD.anchors, steps=1)),
    }


def measure(work: Callable[[], object], repeats: int) -> tuple[list[float], list[float]]:
    """The least CPU seconds at each place, and those of the first call, which compiles."""

    def at(place: Place) -> float:
        return seconds(lambda: place.do(lambda _: work(), None), kept_malloc)

    first = [at(place) for place in PLACES.values()]
    turns = [[at(place) for place in PLACES.values()] for _ in range(repeats)]
    return [min(column) for column in zip(*turns, strict=True)], first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--data", default="builtin-digits")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"width {given.width}; a matrix product has {peak_flops() / 1e9:.0f} GFLOP/s in float32")
    rows = [["phase", "eager (s)", *list(PLACES)[1:], "first compiled call (s)"]]
    for name, work in phases(Scene.of(given.data, given.width)).items():
        least, first = measure(work, given.repeats)
        rows.append(
            [name, f"{least[0]:.3f}", *(f"{least[0] / each:.2f}x" for each in least[1:]), f"{first[2]:.0f}"]
        )
    print(aligned(rows))


if __name__ == "__main__":
    main()
