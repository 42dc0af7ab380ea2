"""FedAvg on real images: ours beside a plain PyTorch loop, fluke and pfl-research. `python -m bench.peers`

The network, the initial weights, the images, the batch size and the number of steps are the same. Each measurement
is a process of its own with one thread, and the ways take turns. The time is that between the ends of two rounds,
without evaluation; memory is the largest resident size, and `start` that before the images are loaded. The packages
can have an environment of their own: `--python PATH`. It needs the files of `fedlgd data fetch digits`.
"""

import argparse
import contextlib
import copy
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench import published
from bench.memory import resident
from fedlgd.cli import keep_memory
from fedlgd.core.types import LabelledSet, Params, Stream
from fedlgd.data.federation import Federation, from_arrays, pooled
from fedlgd.methods.fedavg import FedAvg
from fedlgd.nets.registry import build_net
from fedlgd.runs.config import configure, resolve
from fedlgd.runs.run import run

OUT = Path(__file__).parents[1] / "results" / "measured" / "bench" / "peers.json"
IMAGES, BATCH, TESTED, LR, WIDTH = 64, 32, 2000, 0.05, 32  # images of each site, and of the test
ROUNDS = {5: 12, 100: 5, 1000: 2}
EQUAL_ROUNDS = 2

EndOfRound = Callable[[], None]


class Task(NamedTuple):
    """What all of them do: epochs of SGD at each site, and the mean of the models, for some rounds."""

    sites: list[tuple[Tensor, Tensor]]
    start: nn.Module
    rounds: int
    batch: int
    federation: Federation


class Logits(nn.Module):
    """The network of the reference, with logits alone, and with what pfl-research asks a model for."""

    def __init__(self, shape: tuple[int, int, int], classes: int) -> None:
        super().__init__()
        self.net = published.ConvNet(shape, classes, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.net(x)[1]
        return logits

    def loss(self, x: Tensor, y: Tensor, eval: bool = False) -> Tensor:
        self.train(not eval)
        return F.cross_entropy(self(x), y)

    def metrics(self, *_: Tensor, **__: bool) -> dict[str, Any]:
        return {}


def plain(task: Task, ended: EndOfRound) -> Params:
    """The shortest loop in PyTorch."""
    server, local = task.start, copy.deepcopy(task.start)
    for _ in range(task.rounds):
        total = {name: torch.zeros_like(value) for name, value in server.state_dict().items()}
        for x, y in task.sites:
            local.load_state_dict(server.state_dict())
            step = torch.optim.SGD(local.parameters(), lr=LR)
            for index in torch.randperm(len(y)).split(task.batch):
                step.zero_grad()
                F.cross_entropy(local(x[index]), y[index]).backward()
                step.step()
            for name, value in local.state_dict().items():
                total[name] += value / len(task.sites)
        server.load_state_dict(total)
        ended()
    return server.state_dict()


def fluke(task: Task, ended: EndOfRound) -> Params:
    from fluke import DDict, FlukeENV
    from fluke.algorithms.fedavg import FedAVG
    from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
    from fluke.utils import FederationObserver

    class Ended(FederationObserver):  # type: ignore[misc]
        def end_round(self, round: int) -> None:
            ended()

    FlukeENV().set_eval_cfg(pre_fit=False, post_fit=False, locals=False, server=False)
    how = {"num_labels": len(task.federation.classes), "batch_size": task.batch, "shuffle": True}
    loaders = [FastDataLoader(x, y, **how) for x, y in task.sites]
    data = DummyDataContainer(loaders, [None] * len(loaders), None, num_classes=len(task.federation.classes))
    optimiser, schedule = DDict(name="SGD", lr=LR), DDict(name="StepLR", step_size=1, gamma=1)
    client = DDict(
        batch_size=task.batch, local_epochs=1, loss="CrossEntropyLoss", optimizer=optimiser, scheduler=schedule
    )
    settings = DDict(client=client, server=DDict(weighted=True), model=task.start)
    method = FedAVG(len(loaders), DataSplitter(data), settings)
    method.set_callbacks([Ended()])
    method.run(task.rounds, 1.0, finalize=False)
    params: Params = method.server.model.state_dict()
    return params


def pfl(task: Task, ended: EndOfRound) -> Params:
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Ended(TrainingProcessCallback):  # type: ignore[misc]
        def after_central_iteration(self, *_: Any, **__: Any) -> tuple[bool, Any]:
            ended()
            return False, Metrics()

    def site(i: int) -> Any:
        x, y = task.sites[i]
        order = torch.randperm(len(y))
        return Dataset(raw_data=[x[order], y[order]])

    count = len(task.sites)
    model = PyTorchModel(task.start, torch.optim.SGD, torch.optim.SGD(task.start.parameters(), lr=1.0))
    sampler = get_user_sampler("minimize_reuse", list(range(count)))
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=task.rounds,
            evaluation_frequency=task.rounds + 1,
            train_cohort_size=count,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=FederatedDataset(site, sampler), val_data=None),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=1, local_learning_rate=LR, local_batch_size=task.batch
        ),
        callbacks=[Ended()],
    )
    return task.start.state_dict()


def fedlgd(task: Task, ended: EndOfRound, **how: Any) -> Params:
    method = configure(FedAvg, local__lr=LR, local__batch=task.batch)
    net = {"name": "convnet", "width": WIDTH}
    more: dict[str, Any] = {"evaluate_every": task.rounds, "on_round": lambda _: ended(), "net": net, **how}
    found = run(task.federation, method, rounds=task.rounds, **more).model.state_dict()
    return {f"net.{name}": value for name, value in found.items()}


WAYS: dict[str, Callable[..., Params]] = {
    "plain PyTorch": plain,
    "fluke": fluke,
    "pfl-research": pfl,
    "fedlgd": fedlgd,
    "fedlgd, compiled": lambda *given: fedlgd(*given, compile="on"),
    "fedlgd, compiled, bf16": lambda *given: fedlgd(*given, compile="on", precision="bf16"),
}
OTHERS = ("fluke", "pfl-research")  # packages that may have an environment of their own


def write_images(file: Path, count: int) -> None:
    """Training images of the four real digit sites, mixed, and test images."""
    whole = pooled(resolve({}, {"data.name": "digits", "data.synth": "none"}).data.open()).sites[0]
    arrays: dict[str, Any] = {}
    for name, part, most in (("train", whole.train, count), ("test", whole.test, TESTED)):
        order = torch.randperm(len(part), generator=Stream(0).generator())[:most]
        if len(order) < most:
            raise SystemExit(f"{len(part)} images, {most} are needed")
        arrays |= {f"{name}_x": part.x[order].permute(0, 2, 3, 1).numpy(), f"{name}_y": part.y[order].numpy()}
    np.savez(file, **arrays)


def task_of(file: str, sites: int, rounds: int, batch: int) -> tuple[Task, tuple[Tensor, Tensor]]:
    """The images dealt out to sites, and the test images."""
    with np.load(file) as arrays:
        x, y, test_x, test_y = (arrays[name] for name in ("train_x", "train_y", "test_x", "test_y"))
    parts = [slice(i * IMAGES, (i + 1) * IMAGES) for i in range(sites)]
    arrays = {f"site{i:04}": (x[p], y[p], test_x[:8], test_y[:8]) for i, p in enumerate(parts)}
    federation = from_arrays(arrays, min_per_class=0)
    start = Logits(federation.shape, len(federation.classes))
    net = build_net("convnet", federation.shape, len(federation.classes), {"width": WIDTH})
    start.net.load_state_dict(net.init(Stream(0).at("init")))
    given = [(part.x.contiguous(), part.y) for part in (site.train.take(slice(None)) for site in federation.sites)]
    scaled = LabelledSet(torch.from_numpy(test_x).permute(0, 3, 1, 2), torch.from_numpy(test_y)).take(slice(None))
    return Task(given, start, rounds, batch, federation), (scaled.x, scaled.y)


def measure(way: str, file: str, sites: int, rounds: int, batch: int, out: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    start = resident()
    task, test = task_of(file, sites, rounds, batch)
    if way.startswith("fedlgd"):
        task = task._replace(sites=[])  # it has its own
        keep_memory()  # as the command does
    ends: list[tuple[float, float]] = []
    with contextlib.redirect_stdout(sys.stderr):
        params = WAYS[way](task, lambda: ends.append((time.process_time(), time.perf_counter())))
    peak, model = resident(), Logits(task.federation.shape, len(task.federation.classes))
    model.load_state_dict(params)
    if out:
        torch.save(model.state_dict(), out)
    cpu, wall = ([b[i] - a[i] for a, b in pairwise(ends)] for i in (0, 1))
    timed = slice(None, -1 if way.startswith("fedlgd") else None)  # ours is evaluated at the end
    accuracy = published.evaluate(model.net, *test)[1]
    row = {"way": way, "sites": sites, "cpu": cpu[timed], "wall": wall[timed], "accuracy": accuracy}
    return {**row, "start": round(start), "peak": round(peak)}


def apart(python: str, way: str, *given: Any, out: str = "") -> dict[str, Any]:
    """`measure` in a process; the reason if it fails, for example because a package is missing."""
    command = [python if way in OTHERS else sys.executable, "-m", "bench.peers"]
    command += ["--measure", json.dumps([way, *given, out])]
    around = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=around)
    if done.returncode:
        return {"way": way, "sites": given[1], "failed": (done.stderr.strip().splitlines() or ["no reason"])[-1]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def equal(python: str, images: str, folder: Path) -> Iterator[dict[str, Any]]:
    """The largest difference between weights after rounds with whole batches, relative to how far they moved."""
    start = task_of(images, 5, 0, IMAGES)[0].start.state_dict()
    wanted: Params = {}
    for way in WAYS:
        file = folder / f"{way}.pt"
        row = apart(python, way, images, 5, EQUAL_ROUNDS, IMAGES, out=str(file))
        if "failed" in row:
            yield {"kind": "equal", **row}
            continue
        found = torch.load(file, weights_only=True)
        wanted = wanted or found
        moved = max(float((wanted[name] - start[name]).abs().max()) for name in wanted)
        gap = max(float((wanted[name] - found[name]).abs().max()) for name in wanted)
        yield {"kind": "equal", "way": way, "difference": gap / moved}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="Python with fluke and pfl")
    parser.add_argument("--sites", default="5,100,1000")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--ways", default=";".join(WAYS), help="separated by semicolons")
    parser.add_argument("--equal", action="store_true", help="also compare the weights")
    parser.add_argument("--add", action="store_true", help="add to the file")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    how = parser.parse_args()
    if how.measure:
        print(json.dumps(measure(*json.loads(how.measure))))
        return
    counts = [*map(int, how.sites.split(","))]
    rows = json.loads(how.out.read_text()) if how.add and how.out.exists() else []
    with tempfile.TemporaryDirectory() as folder:
        images = str(Path(folder) / "images.npz")
        write_images(Path(images), max(counts) * IMAGES)
        for row in measured(how, images, counts, Path(folder)):
            rows.append(row)
            print(json.dumps(row), flush=True)
            how.out.write_text(json.dumps(rows, indent=1) + "\n")


def measured(how: argparse.Namespace, images: str, counts: list[int], folder: Path) -> Iterator[dict[str, Any]]:
    """All ways in turn, for each number of sites."""
    for sites in counts:
        for _ in range(how.repeats):
            for way in how.ways.split(";"):
                yield {"kind": "round", **apart(how.python, way, images, sites, ROUNDS[sites], BATCH)}
    if how.equal:
        yield from equal(how.python, images, folder)


if __name__ == "__main__":
    main()
