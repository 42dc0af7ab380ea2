"""Digests of a whole run: every tensor the server and the sites end with, and every record but its times.

`python -m tests.contract.digests` adds those of cases that have none to the stored ones in `digests.json`, each
with the machine that it was made on; a case without it was made on that of the file.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn import functional as F

from fedlgd.engines.registry import Loop, Pool
from fedlgd.engines.wire import pack
from fedlgd.rundir.records import RoundRecord
from tests import tiny
from tests.contract import battery

PLAN = replace(battery.PLAN, seed=0)
STORED = Path(__file__).with_name("digests.json")
ADDED = ("cpu", "wall", "refused", "unscored", "joined", "readers", "sent")
ENGINES = {"loop": Loop(), "pool": Pool(workers=2)}


def of_run(case: str, engine: str) -> dict[str, Any]:
    """What a run of this case comes to; `size` is for machines that round differently."""
    data, method = battery.uneven(), battery.CASES[case]
    net, memory = tiny.net(classes=len(data.classes)), tiny.Kept(ENGINES[engine].states())
    data = battery.prepared(method, data, net, PLAN.seed)
    records = list(tiny.play(method, data, net, PLAN, memory, ENGINES[engine]))
    server = pack(memory.server())[0]
    sites = {f"{name}/{leaf}": t for name in data.by_name for leaf, t in pack(memory.site(name))[0].items()}
    return {
        "records": _digest(msgspec.json.encode([_timeless(record) for record in records], order="sorted")),
        "server": of_tensors(server),
        "sites": of_tensors(sites),
        "size": [_size(server), _size(sites), records[-1].accuracy],
    }


def _timeless(record: RoundRecord) -> dict[str, Any]:
    """Fields that were added after the digests were stored are left out."""
    values = msgspec.to_builtins(record)
    assert not values["refused"]
    return {name: value for name, value in values.items() if name not in ADDED} | {"seconds": {}}


def of_tensors(tensors: Mapping[str, Tensor]) -> str:
    parts = [(name, str(t.dtype), tuple(t.shape), t.contiguous().numpy().tobytes()) for name, t in tensors.items()]
    return _digest(repr(sorted(parts)).encode())


def _size(tensors: Mapping[str, Tensor]) -> float:
    return float(sum(t.double().abs().sum() for t in tensors.values()))


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=12).hexdigest()


@cache
def machine() -> str:
    """How this machine rounds: a digest of convolutions, products and exponentials that no code of ours is in."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 3, 8, 8, generator=generator, requires_grad=True)
    kernel = torch.randn(4, 3, 3, 3, generator=generator, requires_grad=True)
    dense = torch.randn(64, 3, generator=generator, requires_grad=True)
    y = F.avg_pool2d(F.relu(F.group_norm(F.conv2d(x, kernel, padding=1), 4)), 2)
    grid = F.affine_grid(
        torch.tensor([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.0]]]).expand(6, -1, -1), [6, 4, 4, 4], align_corners=False
    )
    loss = F.cross_entropy(F.grid_sample(y, grid, align_corners=False).flatten(1) @ dense, torch.arange(6) % 3)
    gradients = torch.autograd.grad(loss, [x, kernel, dense])
    return (
        torch.__version__ + " " + of_tensors({str(i): g for i, g in enumerate((loss.detach()[None], *gradients))})
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    stored = json.loads(STORED.read_text())
    new = [case for case in battery.CASES if case not in stored["runs"]]
    made = stored["runs"] | {case: of_run(case, "loop") | {"machine": machine()} for case in new}
    STORED.write_text(json.dumps(stored | {"runs": made}, indent=1) + "\n")
