"""What a round costs through Flower: seconds and bytes with three sites on this machine, against `loop`.

Run: python -m bench.real_sites [OUT.json]      about five minutes; the page docs/deploy.md shows the result

`seconds` is the median of a round that is evaluated, `unscored` of one that is not: it has one message less.
"""

import json
import os
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from fedlgd.deploy.kit import address, provision
from fedlgd.deploy.processes import free_port
from fedlgd.rundir.records import RoundRecord, committed_records

ROOT = Path(__file__).parents[1]
OUT = ROOT / "results" / "measured" / "deploy" / "three-sites.json"
SITES = ("a", "b", "c")
ROUNDS = 6
SETTINGS = ["--method", "fedlgd", "--preset", "quick", "--rounds", str(ROUNDS)]
FEW = ("net.width=32", "distil.steps=2", "refine.steps=2", "anchors.steps=2")
SETTINGS += [f"--set={each}" for each in FEW]  # the messages are those of a long run


def main(out: Path = OUT) -> None:
    with tempfile.TemporaryDirectory(prefix="fedlgd-") as name:
        folder, load = Path(name), os.getloadavg()[0]
        runpy.run_path(str(ROOT / "examples" / "04_flower" / "make_images.py"))["main"](folder / "images")
        found: dict[str, Any] = {
            "sites": len(SITES),
            "rounds": ROUNDS,
            "cores": os.cpu_count(),
            "load_before": round(load, 1),
            "torch": torch.__version__,
            "loop": both(folder, "loop", [str(folder / "images"), "--engine", "loop"]),
            "flower": through_flower(folder),
        }
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(found, indent=1) + "\n")
    print(out.read_text())


def through_flower(folder: Path) -> dict[str, float]:
    kits, server = folder / "kits", address(f"127.0.0.1:{free_port()}")
    provision(kits, SITES, server)
    started = [start(folder, "serve", str(kits / "server"))]
    try:
        for site in SITES:
            data = str(folder / "images" / site)
            started.append(start(folder, "join", str(kits / f"site-{site}"), "--data", data))
        while f"({len(SITES)} of {len(SITES)})" not in (folder / "serve.log").read_text():
            time.sleep(1)
        found = both(folder, "flower", ["--engine", "flower", "--kit", str(kits / "server")])
        journal = (kits / "site-a" / "journal.log").read_text().splitlines()
        sent = [int(line.split(" bytes")[-2].split()[-1].replace(",", "")) for line in journal]
        rounds = sent[2 : 2 + 2 * ROUNDS]  # of the first run, without description and enrolment
        return {**found, "sent_by_a_site": sum(rounds) / ROUNDS}
    finally:
        for process in started:
            process.terminate()
        for process in started:
            process.wait()


def both(folder: Path, name: str, how: list[str]) -> dict[str, float]:
    """A run that is evaluated in every round, and the seconds of one that is evaluated at its end."""
    found = measured(folder, name, [*how, "--set", "evaluate_every=1"])
    bare = measured(folder, f"{name}-unscored", [*how, "--set", f"evaluate_every={ROUNDS}"])
    return {**found, "unscored": bare["seconds"]}


def measured(folder: Path, name: str, how: list[str]) -> dict[str, float]:
    """The median time between two committed rounds, and the mean bytes of a round."""
    process = start(folder, "run", *how, *SETTINGS, "-o", name)
    times = list(commits(folder / name, process))
    if process.wait():
        raise SystemExit(f"the run {name} failed:\n{(folder / 'run.log').read_text()}")
    records: list[RoundRecord] = [r for r in committed_records(folder / name) if r.round >= 0]
    gaps = [b - a for a, b in pairwise(times)]
    return {
        "seconds": round(statistics.median(gaps), 2),
        "bytes_up": statistics.fmean(r.bytes_up for r in records),
        "bytes_down": statistics.fmean(r.bytes_down for r in records),
    }


def commits(run: Path, process: "subprocess.Popen[bytes]") -> Iterator[float]:
    """The moments at which rounds are committed."""
    head, last = run / "state" / "head.json", b""
    while process.poll() is None:
        time.sleep(0.02)
        if head.exists() and (now := head.read_bytes()) != last:
            last = now
            yield time.monotonic()


def start(folder: Path, *arguments: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "FEDLGD_CACHE": str(folder / "home"), "OMP_NUM_THREADS": "1"}
    with (folder / f"{arguments[0]}.log").open("ab") as log:
        command = [sys.executable, "-m", "fedlgd", *arguments]
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=log)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
