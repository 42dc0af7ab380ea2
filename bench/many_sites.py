"""Memory and time of a run with many real sites: 10 and 100, in one process without a network.

Run: python -m bench.many_sites [OUT.json]      a few minutes; docs/deploy.md shows the result

The messages are those of the network, and the sites are those of `fedlgd join` without their processes. `peak` is
the largest resident size in MB, of the coordinator and one site at a time.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.memory import resident

OUT = Path(__file__).parents[1] / "docs" / "results" / "deploy" / "many-sites.json"
SITES, ROUNDS = (10, 100), 2


def measure(sites: int) -> dict[str, float]:
    """A run with so many tiny sites and a model of the real size."""
    import torch

    from fedlgd.deploy.server import Request, coordinate
    from fedlgd.runs.config import resolve
    from tests import tiny
    from tests.deploy import grid

    torch.set_num_threads(1)
    settings = {"method": "fedavg", "net.width": 128, "net.depth": 2, "rounds": ROUNDS, "local.steps": 1}
    config = resolve({}, {**settings, "data.name": "real-sites", "evaluate_every": 1})
    with tempfile.TemporaryDirectory(prefix="fedlgd-") as name:
        folders, _ = grid.sites(Path(name) / "sites", tiny.federation([f"s{i:03}" for i in range(sites)], side=16))
        at = grid.LocalGrid(folders)
        names = {name: node for node, name in at.names.items()}
        before, began = resident(), time.perf_counter()
        request = Request(config=config.toml(), out=f"{name}/run", sites=names)
        records = coordinate(at, request, pause=0.0).records
        seconds = time.perf_counter() - began
    update = records[-1].bytes_up / sites
    found = {"sites": sites, "start": before, "peak": resident(), "update": update / 2**20}
    return {key: round(value, 1) for key, value in {**found, "seconds": seconds / ROUNDS}.items()}


def main(out: Path = OUT) -> None:
    command = [sys.executable, "-m", "bench.many_sites", "--sites"]
    rows = [json.loads(subprocess.check_output([*command, str(sites)])) for sites in SITES]
    out.write_text(json.dumps(rows, indent=1) + "\n")
    print(out.read_text())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sites"]:
        print(json.dumps(measure(int(sys.argv[2]))))
    else:
        main(*map(Path, sys.argv[1:]))
