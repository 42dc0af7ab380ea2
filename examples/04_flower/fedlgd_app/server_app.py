"""The coordinator's half: the same code as `fedlgd run --engine flower`, started by `flwr run`."""

from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedlgd.deploy.coordinator import coordinate
from fedlgd.runs.config import resolve
from fedlgd.runs.parse import parse_assignment

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    given = context.run_config
    out = Path(str(given["out"]))
    if not out.is_absolute():
        raise ValueError("set the run folder to an absolute path: --run-config \"out='/srv/runs/one'\"")
    settings = dict(parse_assignment(text) for text in str(given["settings"]).split())
    settings |= {"method": given["method"], "rounds": given["rounds"], "data.name": "real-sites"}
    config = resolve({}, settings, str(given["preset"]))
    sites = named_nodes(str(given["sites"])) or registered_nodes(grid)
    result = coordinate(grid, config, out, sites, timeout=float(given["timeout"]))
    print(f"accuracy: {result.accuracy}; records and model: {out}")


def named_nodes(text: str) -> dict[str, int]:
    """`a=123 b=456`."""
    return {name: int(node) for name, _, node in (part.partition("=") for part in text.split())}


def registered_nodes(grid: Any) -> dict[str, int]:
    """Nodes by the names with which they were registered: flwr supernode register a.pub SUPERLINK --name a"""
    found = {node.name: node.node_id for node in grid.get_nodes() if node.name}
    if not found:
        raise ValueError("no SuperNode has a name; register them with --name, or give sites='a=NODE_ID b=NODE_ID'")
    return dict(sorted(found.items()))
