"""Rounds of fedlgd beside rounds of fluke-fl, a federated-learning package by other authors, in float64.

Both get the same sites, first model, sampling and batches; each runs its own clients and server. Prints the table
of agreement.md. With `pip install fluke-fl==0.8.1` beside fedlgd: python docs/methods/agreement.py
"""

import sys
from collections import OrderedDict
from collections.abc import Iterator
from copy import deepcopy
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

import torch
from fluke.algorithms import FastDataLoader
from torch import Tensor, nn

from fedlgd.core.net import Net, Output
from fedlgd.core.rng import Stream
from fedlgd.core.train import Local
from fedlgd.core.types import LabelledSet, Params, Site
from fedlgd.data.federation import federation
from fedlgd.engines.loop import Plan, loop
from fedlgd.engines.memory import Ram
from fedlgd.methods import fedavg, fedbn, fednova, fedproto, fedprox, moon, scaffold

torch.set_default_dtype(torch.float64)
RNG, SIZES, CLASSES = Stream(0), {"ape": 6, "bee": 10, "cat": 16}, ("a", "b", "c")
BATCH, LR = 2, 0.1  # 3, 5 and 8 steps per round
PLANS = [Plan(rounds=1), Plan(rounds=3, ratio=0.67)]  # the second: ape cat, ape bee, bee cat
LAYERS = {"": nn.Identity, "linear": partial(nn.Linear, 4, 4), "norm": partial(nn.BatchNorm1d, 4)}
OURS: dict[str, Any] = {"FedAVG": fedavg.FedAvg, "FedProx": partial(fedprox.FedProx, mu=0.5), "MOON": moon.Moon}
OURS |= {"SCAFFOLD": scaffold.Scaffold, "FedNova": fednova.FedNova, "FedBN": fedbn.FedBN}
OURS |= {"FedProto": partial(fedproto.FedProtoLocal, weigh="uniform")}
THEIRS = {"FedProx": {"mu": 0.5}, "MOON": {"mu": 1.0, "tau": 0.5}}
THEIRS |= {"FedProto": {"lam": 1.0, "n_protos": 3, "model": nn.Identity()}}


class Featured(nn.Sequential):
    def forward(self, x: Tensor) -> Output:
        return Output(z := self.encoder(x), self.head(z))


def parts(layer: str) -> OrderedDict[str, nn.Module]:
    return OrderedDict(encoder=nn.Sequential(nn.Flatten(), LAYERS[layer]()), head=nn.Linear(4, 3))


def points(name: str) -> LabelledSet:
    x = torch.randn(SIZES[name], 1, 2, 2, generator=RNG.generator(name)) + list(SIZES).index(name)
    return LabelledSet(x, torch.arange(SIZES[name]) % 3)


def prepared(name: str, model: nn.Module, client: dict[str, Any], server: dict[str, Any]) -> Any:
    sets = [FastDataLoader(points(s).x, points(s).y, num_labels=3, batch_size=BATCH) for s in SIZES]
    common = {"batch_size": BATCH, "local_epochs": 1, "loss": nn.CrossEntropyLoss, "scheduler": {"step_size": 99}}
    settings = {"client": common | client, "server": {"weighted": True} | server, "model": model}
    algorithm = getattr(import_module(f"fluke.algorithms.{name.lower()}"), name)
    run = algorithm(3, MagicMock(assign=lambda *_: ((sets, [None] * 3), None)), settings)
    for client in run.clients if name == "FedProto" else []:
        client.model = deepcopy(model)
    return run


def their_round(run: Any, t: int, chosen: tuple[str, ...]) -> None:
    clients = [run.clients[list(SIZES).index(name)] for name in chosen]
    run.server.broadcast_model(clients)
    for client, name in zip(clients, chosen, strict=True):
        order = torch.randperm(SIZES[name], generator=RNG.at("site", name, t).generator("shuffle"))
        client.train_set.tensors = (points(name).x[order], points(name).y[order])
        client.local_update(t + 1)
    run.server.aggregate(clients, run.server.receive_client_models(clients, state_dict=False))


def both(memory: Any, run: Any) -> Iterator[tuple[Params, Params]]:
    """What the two sides hold, part by part: ours, theirs."""
    if run.server.model:
        yield memory.server().params, run.server.model.state_dict()
    else:
        yield memory.server().trees["prototypes"], {"means": torch.stack(run.server.prototypes)}
    if "variate" in memory.server().trees:
        yield memory.server().trees["variate"], run.server.control
    for name, client in zip(SIZES, run.clients, strict=True):
        for kind, tree in memory.site(name).trees.items() if client.model else []:
            yield tree, client.control if kind == "variate" else client.model.state_dict()


def gap(plan: Plan, name: str, layer="", momentum=0.0, ours={}, client={}, server={}, change=None) -> float:
    """Largest difference after the rounds."""
    net, memory = Net(lambda _: Featured(parts(layer)), (1, 2, 2), 3, layer), Ram()
    method = OURS[name](local=Local(batch=BATCH, lr=LR, momentum=momentum), **ours)
    sites = federation("tiny", [Site(s, points(s), points(s), CLASSES) for s in SIZES])
    records = list(loop(method, sites, net, plan, memory))[1:]
    model = nn.Sequential(parts(layer))
    model.load_state_dict(net.init(RNG.at("init")))
    optimizer = {"optimizer": {"name": "SGD", "lr": LR, "momentum": momentum}}
    run = prepared(name, model, THEIRS.get(name, {}) | optimizer | client, server)
    for record in records:
        if change: change(run, record.round)
        their_round(run, record.round, record.sampled)
    pairs = [(v, b[k]) for a, b in both(memory, run) for k, v in a.items() if v.is_floating_point()]
    return max((v - w).abs().max().item() for v, w in pairs)


def add_start(run: Any, t: int) -> None:
    """FedNova's server adds what fluke leaves out: (1 - sum v) theta_t."""

    def aggregate(clients: Any, models: Any) -> None:
        before = deepcopy(run.server.model)
        type(run.server).aggregate(run.server, clients, models)
        p, a = torch.tensor(run.server._get_client_weights(clients)), torch.tensor([float(c.a) for c in clients])
        for now, then in zip(run.server.model.parameters(), before.parameters(), strict=True):
            now.data += (1 - (p @ a) * (p / a).sum()) * then.data

    run.server.aggregate = aggregate


def greet(run: Any, t: int) -> None:
    """Everyone has the first model before the first round."""
    run.server.broadcast_model(run.clients)
    for client in run.clients:
        client.receive_model()


def late(run: Any, t: int) -> None:
    """FedProto's prototypes are the trained model's, and everyone uses them from the second round on."""

    def update(client: Any, _: Any) -> None:
        (x, y), psi = client.train_set.tensors, client.model.encoder
        client.prototypes = {k: psi(x[y == k]).mean(0).detach() for k in range(3)}

    for client in run.clients:
        client._last_round, client._update_protos = t, partial(update, client)


CASES = [
("FedAVG","",{}), ("FedAVG","norm",dict(layer="norm")),("FedAVG","mom",dict(momentum=.9)), ("FedAVG","mom fresh",dict(momentum=.9,client={"persistency":False})),
("FedProx","",{}), ("SCAFFOLD","",{}), ("SCAFFOLD","even",dict(server={"weighted":False})),
("SCAFFOLD","gs",dict(ours={"server_lr":.5},server={"weighted":False,"global_step":.5})),
("SCAFFOLD","lr",dict(ours={"server_lr":.5},server={"weighted":False,"lr":.5})),
("FedNova","",{}), ("FedNova","add",dict(change=add_start)), ("FedNova","add, mom",dict(change=add_start,momentum=.9,client={"persistency":False})),
("MOON","",dict(layer="linear")), ("MOON","bn",dict(layer="norm")), ("MOON","bn eval",dict(layer="norm",change=lambda run,t: run.server.model.eval())),
("FedBN","",dict(layer="norm")),("FedBN","greet",dict(layer="norm",change=greet)),
("FedProto","",dict(layer="linear",server={"n_protos":3})),("FedProto","late",dict(layer="linear",server={"n_protos":3},change=late)),
]
if __name__ == "__main__":
    sys.modules["torchvision"] = sys.modules["torchvision.models"] = MagicMock()
    for name, lab, kw in CASES:
        print(name, lab, *[gap(p, name, **kw) for p in PLANS])
