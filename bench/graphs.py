"""A training step with a graph for each size of a batch, and with one for all sizes: `python -m bench.graphs`

A graph for one size knows more, but the last batch of an epoch would need a graph of its own, or images with
weights of zero. Ways take turns in one process with one thread; CPU seconds of forward and backward pass.
"""

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

from bench.run import processor
from fedlgd.cli import keep_memory
from fedlgd.core.compile import compiled, compiled_pass
from fedlgd.core.types import Params, Stream
from fedlgd.nets.registry import build_net

OUT = Path(__file__).parents[1] / "results" / "measured" / "bench" / "graphs.json"
SIZES = (8, 32, 132)  # a last batch, a batch, and a batch beside 100 anchors
WIDTHS = (32, 128)


def measure(width: int, size: int, turns: int) -> dict[str, Any]:
    """The shortest step of each way."""
    net = build_net("convnet", (3, 32, 32), 10, {"width": width})
    params = {name: value.requires_grad_() for name, value in net.init(Stream(0).at("init")).items()}
    x, y = torch.randn(size, 3, 32, 32), torch.arange(size) % 10

    def logits(weights: Params, images: torch.Tensor) -> torch.Tensor:
        return net(weights, images).logits

    def step(forward: Callable[..., torch.Tensor]) -> float:
        start = time.process_time()
        loss = cross_entropy(forward(params, x), y)
        torch.autograd.grad(loss, list(params.values()), allow_unused=True)
        return time.process_time() - start

    ways = {"eager": logits, "one size": compiled(logits), "all sizes": compiled_pass(logits)}
    for way in ways.values():
        step(way)
    found = [{name: step(way) for name, way in ways.items()} for _ in range(turns)]
    return {"width": width, "size": size, **{name: min(each[name] for each in found) for name in ways}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=20)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    torch.set_num_threads(1)
    keep_memory()
    rows = []
    for width in WIDTHS:
        for size in SIZES:
            rows.append(measure(width, size, given.turns))
            print(json.dumps(rows[-1]), flush=True)
    found = {"cpu": processor(), "load": os.getloadavg()[0], "rows": rows}
    given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
