"""Time of a site and memory of a run as a function of the number of sites: `python -m bench.scale`

Networks are tiny (width 4, one block), so that what the engine does for a site is most of the time. Images are
memory-mapped, 60 per site. Each number of sites is a process of its own with one thread; `round` is the CPU time of
the second round without evaluation, `enrolment` that of the first exchange, both divided by the number of sites.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.memory import open_sites, resident, write_images

OUT = Path(__file__).parents[1] / "results" / "measured" / "bench" / "scale.json"
SITES = {"fedlgd": (10, 100, 1000), "fedavg": (10, 100, 1000, 10_000)}
TINY = {
    "rounds": 3,
    "evaluate_every": 3,
    "net.width": 4,
    "net.depth": 1,
    "local.steps": 1,
    "analysis": False,
    "distil.per_class": 1,
    "distil.steps": 1,
    "distil.real_per_class": 1,
    "distil.width": 0,
}
FEDLGD = {"refine.steps": 1, "anchors.steps": 1, "anchors.per_class": 1}
METHODS: dict[str, dict[str, Any]] = {"fedavg": {}, "fedlgd": FEDLGD}


def measure(method: str, sites: int) -> dict[str, Any]:
    import torch

    from fedlgd.engines.registry import Loop
    from fedlgd.runs.config import resolve
    from fedlgd.runs.run import execute

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_images(Path(folder), sites)
        federation, settings = open_sites(Path(folder), sites), {"method": method, **TINY, **METHODS[method]}
        config = resolve({}, settings)
        start, ends = resident(), [time.process_time()]
        execute(config, federation, Path(folder, "run"), lambda _: ends.append(time.process_time()), engine=Loop())
    enrolment, _, second, _ = (b - a for a, b in pairwise(ends))
    row = {"method": method, "sites": sites, "enrolment": enrolment / sites, "round": second / sites}
    return row | {"start": round(start), "peak": round(resident())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", choices=METHODS)
    parser.add_argument("--sites", type=int, default=0)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    if given.method:
        print(json.dumps(measure(given.method, given.sites)))
        return
    rows = []
    for method in METHODS:
        for sites in SITES[method]:
            command = [sys.executable, "-m", "bench.scale", "--method", method, "--sites", str(sites)]
            rows.append(json.loads(subprocess.check_output(command)))
            print(json.dumps(rows[-1]), flush=True)
            given.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
