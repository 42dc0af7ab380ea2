"""The generated parts of speed-phases.md: a stored benchmark; and of speed.md: accuracy against CPU time."""

import json
import textwrap

from bench.tools.table import markdown
from results import MEASURED, RECORDS, reach
from results.pages.comparisons import REACH, groups_of


def benchmark(name: str) -> str:
    """The tables of a stored `make bench`: results/measured/bench/<name>.jsonl."""
    file = MEASURED / "bench" / f"{name}.jsonl"
    if not file.exists():
        return "No stored benchmark."
    return markdown([json.loads(line) for line in file.read_text().splitlines()]).rstrip()


def reached(name: str) -> str:
    """Accuracy against CPU time and bytes: the runs of `python -m results.reach`, and the projected procedure."""
    if not (RECORDS / name).exists():
        return "No stored runs."
    groups = groups_of(RECORDS / name)
    bench = [json.loads(line) for line in (MEASURED / "bench" / "full.jsonl").read_text().splitlines()]
    return reach.table(groups, bench) + "\n\n![Accuracy against bytes](../images/reach-bytes.svg)"


def figures() -> dict[str, str]:
    """SVG texts by file name."""
    return reach.figures(groups_of(RECORDS / REACH)) if (RECORDS / REACH).exists() else {}


def headline(name: str) -> str:
    """CPU hours of a complete run at equal result, and those of the defaults after it."""
    lines = (MEASURED / "bench" / f"{name}.jsonl").read_text().splitlines()
    machine, *records = map(json.loads, lines)
    hours = {r["note"] or r["initial_steps"]: r["total"] for r in records if r.get("run", "").startswith("DIGITS")}
    loads = [record["load"] for record in records if record["kind"] == "phase"]
    theirs, same = hours[10_000], hours["to the loss of 10000 published steps"]
    every = hours["to the loss of 10000 published steps, evaluated in every round"]
    text = (
        f"A run of the paper's DIGITS is projected to take {theirs:.0f} CPU hours of one core with the released "
        f"procedure. Ours takes {same:.1f} to the same matching loss: **{theirs / same:.0f} times** less "
        f"({theirs / every:.0f} times if ours evaluates in every round, too). Our defaults take fewer matching "
        f"steps and {hours['as it comes']:.1f} hours. Measured on one core of an {machine['cpu']} at load "
        f"{min(loads):.1f} to {max(loads):.1f} of {machine['cores']} cores."
    )
    return textwrap.fill(text, 120)
