"""Memory and time of a run with many real sites: 10 and 100, in one process without a network.

Run: python -m bench.many_sites [--out OUT.json]      a few minutes; docs/deploy.md shows the result

The messages are those of the network, and the sites are those of `fedlgd join` without their processes. Replies
wait in files, as in the database of the server. `start` and `peak` are the resident size in MB before the run and
its largest value, of the coordinator and one site at a time; `update` is the size of an update in MB.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import cast

import msgspec
from flwr.app import Message
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

from bench.memory import resident
from tests.deploy.grid import LocalGrid

OUT = Path(__file__).parents[1] / "results" / "measured" / "deploy" / "many-sites.json"
SITES, ROUNDS = (10, 100), 2


class StoringGrid(LocalGrid):
    """Keeps replies in files until they are pulled."""

    def push_messages(self, messages: Iterable[Message]) -> Iterator[str]:
        for key in super().push_messages(messages):
            reply = self.replies.pop(key)
            parts = {name: part.deflate() for name, part in get_all_nested_objects(reply).items()}
            self._file(key).write_bytes(msgspec.msgpack.encode((reply.object_id, parts)))
            yield key

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        for key in message_ids:
            found, parts = msgspec.msgpack.decode(self._file(key).read_bytes(), type=tuple[str, dict[str, bytes]])
            self._file(key).unlink()
            yield cast(Message, inflate_object_from_contents(found, parts))

    def _file(self, key: str) -> Path:
        return next(iter(self.folders.values())).parent / f"{key}.reply"


def measure(sites: int) -> dict[str, float]:
    """A run with so many tiny sites and a model of the real size."""
    import torch

    from fedlgd.deploy.coordinator import coordinate
    from fedlgd.runs.config import resolve
    from tests import tiny
    from tests.deploy import grid

    torch.set_num_threads(1)
    settings = {"method": "fedavg", "net.width": 128, "net.depth": 2, "rounds": ROUNDS, "local.steps": 1}
    config = resolve({}, {**settings, "data.name": "real-sites", "evaluate_every": 1})
    with tempfile.TemporaryDirectory(prefix="fedlgd-") as name:
        folders, _ = grid.sites(Path(name) / "sites", tiny.federation([f"s{i:03}" for i in range(sites)], side=16))
        at = StoringGrid(folders)
        names = {name: node for node, name in at.names.items()}
        before, began = resident(), time.perf_counter()
        records = coordinate(at, config, Path(name) / "run", names, pause=0.0).records
        seconds = time.perf_counter() - began
    update = records[-1].bytes_up / sites
    found = {"sites": sites, "start": before, "peak": resident(), "update": update / 2**20}
    return {key: round(value, 1) for key, value in {**found, "seconds": seconds / ROUNDS}.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--sites", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.sites:
        print(json.dumps(measure(given.sites)))
        return
    command = [sys.executable, "-m", "bench.many_sites", "--sites"]
    rows = [json.loads(subprocess.check_output([*command, str(sites)])) for sites in SITES]
    given.out.write_text(json.dumps(rows, indent=1) + "\n")
    print(given.out.read_text())


if __name__ == "__main__":
    main()
