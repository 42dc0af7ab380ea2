"""Compare rounds of fedlgd with rounds of fluke-fl, an independent federated-learning package, in float64.

Both get the same sites, initial model, sampled sites and batches; each uses its own clients and server. Prints the
table of agreement.md. Run: pip install fluke-fl==0.8.1, then python -m results.agreement
"""

import sys
from collections import OrderedDict
from copy import deepcopy
from functools import partial
from importlib import import_module
from typing import Any
from unittest.mock import MagicMock

import torch
from fluke.algorithms import FastDataLoader
from torch import nn

from fedlgd.core.net import Net, Output
from fedlgd.core.train import Local
from fedlgd.core.types import LabelledSet, Site, Stream
from fedlgd.data.federation import from_sites
from fedlgd.engines.registry import Loop
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.storage import RamStates, RamStorage
from fedlgd.methods import registry

RNG, SIZES, BATCH, LR = Stream(0), {"ape": 6, "bee": 10, "cat": 16}, 2, 0.1  # 3, 5 and 8 steps per round
PLANS = RoundSettings(rounds=1), RoundSettings(rounds=3, ratio=0.67)  # the second samples ape cat, ape bee, bee cat
LAYERS: dict[str, Any] = {
    "none": nn.Identity,
    "linear": partial(nn.Linear, 4, 4),
    "norm": partial(nn.BatchNorm1d, 4),
}
HELD: dict[str, Any] = {"variate": lambda party: party.control}  # the states of fluke by our names
HELD |= {"prototypes": lambda server: {"means": torch.stack(server.prototypes)}}
HELD |= dict.fromkeys(("model", "previous", "own"), lambda party: party.model.state_dict() if party.model else {})


class Featured(nn.Sequential):
    encoder: nn.Module
    head: nn.Module

    def forward(self, x: torch.Tensor) -> Output:
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
    for party in run.clients if name == "FedProto" else []:
        party.model = deepcopy(model)
    return run


def their_round(run: Any, t: int, chosen: tuple[str, ...]) -> None:
    clients = [run.clients[list(SIZES).index(name)] for name in chosen]
    run.server.broadcast_model(clients)
    for client, name in zip(clients, chosen, strict=True):
        order = torch.randperm(SIZES[name], generator=RNG.at("site", name, t).generator("shuffle"))
        client.train_set.tensors = (points(name).x[order], points(name).y[order])
        client.local_update(t + 1)
    run.server.aggregate(clients, run.server.receive_client_models(clients, state_dict=False))


def gap(plan: RoundSettings, name: str, layer: str, momentum: float, given: dict[str, Any]) -> float:
    """The largest difference between the final states of both sides."""
    net, memory, states = Net(lambda _: Featured(parts(layer)), (1, 2, 2), 3, layer), RamStorage(), RamStates()
    method = registry.find_method("fedproto-local" if name == "FedProto" else name.lower())
    ours = method(local=Local(batch=BATCH, lr=LR, momentum=momentum), **given.get("ours", {}))
    sites = from_sites("tiny", [Site(s, points(s), points(s), ("a", "b", "c")) for s in SIZES])
    model = nn.Sequential(parts(layer))
    model.load_state_dict(net.init(RNG.at("init")))
    client = {"optimizer": {"name": "SGD", "lr": LR, "momentum": momentum}} | given.get("client", {})
    run = prepared(name, model, client, given.get("server", {}))
    for record in list(Loop().run(ours, sites, net, plan, memory, states))[1:]:
        given.get("change", MagicMock())(run, record.round)
        their_round(run, record.round, record.sampled)
    kept: list[Any] = [states.load(site, memory.version(site)).trees for site in SIZES]
    server: Any = memory.server()
    trees = [{**server.trees, "model": server.params}, *kept]
    parties = zip([run.server, *run.clients], trees, strict=True)
    pairs = [(tree[k], HELD[k](who)) for who, tree in parties for k in tree if k in HELD]
    shared = [(v, b[k]) for a, b in pairs for k, v in a.items() if b and v.is_floating_point()]
    return max(float((ours - theirs).abs().max()) for ours, theirs in shared)


def add_start(run: Any, t: int) -> None:
    """Add the term that fluke's FedNova server omits: (1 - sum v) theta_t."""

    def aggregate(clients: Any, models: Any) -> None:
        before = deepcopy(run.server.model)
        type(run.server).aggregate(run.server, clients, models)
        p, a = torch.tensor(run.server._get_client_weights(clients)), torch.tensor([float(c.a) for c in clients])
        for now, then in zip(run.server.model.parameters(), before.parameters(), strict=True):
            now.data += (1 - (p @ a) * (p / a).sum()) * then.data

    run.server.aggregate = aggregate


def greet(run: Any, t: int) -> None:
    """Send the initial model to all FedBN clients before the first round."""
    run.server.broadcast_model(run.clients if t == 0 else [])
    for client in run.clients if t == 0 else []:
        client.receive_model()


def late(run: Any, t: int) -> None:
    """Compute FedProto's prototypes with the trained model, and use them from the second round on."""

    def update(client: Any, _: Any) -> None:
        (x, y), psi = client.train_set.tensors, client.model.encoder
        client.prototypes = {k: psi(x[y == k]).mean(0).detach() for k in range(3)}

    for client in run.clients:
        client._last_round, client._update_protos = t, partial(update, client)


FORGET, HALF = {"client": {"persistency": False}}, {"server": {"weighted": False, "lr": 0.5}}
STEP = {"ours": {"server_lr": 0.5}, "server": {"weighted": False, "global_step": 0.5}}
MOON, EVAL = {"client": {"mu": 1.0, "tau": 0.5}}, {"change": lambda run, _: run.server.model.eval()}
PROTO = {"client": {"lam": 1.0, "n_protos": 3, "model": nn.Identity()}, "server": {"n_protos": 3}}
CASES: list[tuple[str, str, float, dict[str, Any], str, dict[str, Any]]] = [
    ("FedAVG", "none", 0, {}, "", {}),
    ("FedAVG, batch norm", "norm", 0, {}, "", {}),
    ("FedAVG, momentum 0.9", "none", 0.9, {}, "theirs lasts from round to round", FORGET),
    ("FedProx", "none", 0, {"ours": {"mu": 0.5}, "client": {"mu": 0.5}}, "", {}),
    ("SCAFFOLD", "none", 0, {}, "theirs weights sites by size", {"server": {"weighted": False}}),
    ("SCAFFOLD, server step 0.5", "none", 0, STEP, "theirs scales the model, not its change", HALF),
    ("FedNova", "none", 0, {}, "their weights do not sum to 1", {"change": add_start}),
    ("FedNova, momentum 0.9", "none", 0.9, FORGET, "their weights do not sum to 1", {"change": add_start}),
    ("MOON", "linear", 0, MOON, "", {}),
    ("MOON, batch norm", "norm", 0, MOON, "their frozen models run in train mode", EVAL),
    ("FedBN", "norm", 0, {}, "their newcomers get averaged norm layers", {"change": greet}),
    ("FedProto", "linear", 0, {"ours": {"weigh": "uniform"}, **PROTO}, "prototypes made early", {"change": late}),
]

if __name__ == "__main__":
    torch.set_default_dtype(torch.float64)
    sys.modules["torchvision"] = sys.modules["torchvision.models"] = MagicMock()  # imported by fluke, not used here
    rows = [("case", "1 round", "3 rounds", "reason", "1 round, removed", "3 rounds, removed"), ("---",) * 6]
    for label, layer, momentum, given, why, fix in CASES:
        gaps = [gap(plan, label.split(",")[0], layer, momentum, x) for x in (given, given | fix) for plan in PLANS]
        shown = ["< 1e-14" if g < 1e-14 else f"{g:.0e}" for g in gaps]
        rows.append((label, *shown[:2], why, *(shown[2:] if fix else ("", ""))))
    sys.stdout.writelines("| " + " | ".join(row) + " |\n" for row in rows)
