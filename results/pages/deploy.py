"""The measured cost of runs over real sites, for docs/deploy.md."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from results import MEASURED


def measured(name: str) -> str:
    """The cost of a round through Flower and in one process: results/measured/deploy/<name>.json."""
    file = MEASURED / "deploy" / f"{name}.json"
    if not file.exists():
        return "No stored measurement."
    found = json.loads(file.read_text())
    if name == "many-sites":
        return _many_sites(found)
    lines = ["| per round, all sites | `loop` | `flower` |", "| :-- | --: | --: |"]
    lines.append(f"| seconds (median) | {found['loop']['seconds']:.1f} | {found['flower']['seconds']:.1f} |")
    lines.append(
        f"| seconds without evaluation | {found['loop']['unscored']:.1f} | {found['flower']['unscored']:.1f} |"
    )
    for key, words in (("bytes_down", "bytes to the sites"), ("bytes_up", "bytes from the sites")):
        lines.append(f"| {words}, in the records | {found['loop'][key]:,.0f} | {found['flower'][key]:,.0f} |")
    sent = found["sites"] * found["flower"]["sent_by_a_site"]
    lines.append(f"| bytes from the sites with names, scores and format | | {sent:,.0f} |")
    return "\n".join([*lines, "", _conditions(found)])


def _conditions(found: Mapping[str, Any]) -> str:
    message = max(0.0, found["flower"]["seconds"] - found["flower"]["unscored"] - _evaluation(found))
    return (
        f"FedLGD (`quick`, `net.width=32`, short distillation), evaluated in every round; {found['sites']} sites, "
        f"all on one machine with {found['cores']} cores, load average {found['load_before']:g} before; median of "
        f"{found['rounds']} rounds. Bytes of TLS and HTTP are not counted. The message for evaluation costs "
        f"{message:.1f} s in a round beyond the {_evaluation(found):.1f} s that evaluation takes in `loop`. "
        "`python -m bench.real_sites` repeats it."
    )


def _evaluation(found: Mapping[str, Any]) -> float:
    """Seconds of the evaluation in a round of `loop`."""
    seconds: float = found["loop"]["seconds"] - found["loop"]["unscored"]
    return max(0.0, seconds)


def _many_sites(rows: Sequence[Mapping[str, float]]) -> str:
    few, many = rows
    return (
        f"In one process without a network, a round with {few['sites']:g} sites took {few['seconds']:.1f} s and "
        f"one with {many['sites']:g} sites {many['seconds']:.1f} s. At its peak the run had "
        f"{few['peak'] - few['start']:.0f} MB and {many['peak'] - many['start']:.0f} MB more than before it; the "
        f"updates of {many['sites']:g} sites have {many['sites'] * many['update']:.0f} MB "
        "(`python -m bench.many_sites`)."
    )
