"""Updates that no honest site sends, and a server that receives them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from fedlgd.core.device import Place
from fedlgd.core.net import Net
from fedlgd.core.types import Update
from fedlgd.data.federation import Federation
from fedlgd.engines.server import Server, Work
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import Answer, Sites, Task
from fedlgd.engines.storage import RamStorage
from tests import tiny
from tests.contract import battery

PLAN = RoundSettings(rounds=1, seed=3)

Leaf = tuple[str, str]
"""("", a name) of a parameter, or (a tree, a name in it)."""


def leaves(update: Update) -> list[Leaf]:
    return [("", name) for name in update.params] + [(t, name) for t, tree in update.trees.items() for name in tree]


def changed(update: Update, leaf: Leaf, value: Tensor | None) -> Update:
    """With another tensor at a leaf, or without it."""
    tree, name = leaf
    old = update.trees[tree] if tree else update.params
    new = {k: v for k, v in old.items() if k != name} | ({} if value is None else {name: value})
    return replace(update, trees={**update.trees, tree: new}) if tree else replace(update, params=new)


def value_at(update: Update, leaf: Leaf) -> Tensor:
    return (update.trees[leaf[0]] if leaf[0] else update.params)[leaf[1]]


def spoilt(value: Tensor, bad: float, at: int = -1) -> Tensor:
    """One number of many is bad."""
    flat = value.clone().reshape(-1)
    flat[at] = bad
    return flat.reshape(value.shape)


EVERY_LEAF: dict[str, Callable[[Tensor], Tensor | None]] = {
    "nan": lambda v: spoilt(v, math.nan),
    "infinite": lambda v: spoilt(v, math.inf),
    "minus infinity": lambda v: spoilt(v, -math.inf, 0),
    "missing": lambda _: None,
    "one dimension more": lambda v: v[None],
    "longer": lambda v: torch.cat([v.reshape(-1), v.reshape(-1)]),
    "float64 or 32": lambda v: v.to(torch.float32 if v.dtype == torch.float64 else torch.float64),
    "half": lambda v: v.half(),
    "integer": lambda v: v.long(),
    "sparse": lambda v: v.to_sparse() if v.ndim else None,
}
WHOLE: dict[str, Callable[[Update], Update]] = {
    "another site's name": lambda u: replace(u, site="ape" if u.site != "ape" else "bee"),
    "an unknown name": lambda u: replace(u, site="nobody"),
    "weight 0": lambda u: replace(u, weight=0.0),
    "negative weight": lambda u: replace(u, weight=-1.0),
    "weight nan": lambda u: replace(u, weight=math.nan),
    "infinite weight": lambda u: replace(u, weight=math.inf),
    "weight beyond a float": lambda u: replace(u, weight=10**400),
    "weight in words": lambda u: replace(u, weight="much"),
    "extra parameter": lambda u: replace(u, params={**u.params, "extra": torch.zeros(2)}),
    "extra tree": lambda u: replace(u, trees={**u.trees, "extra": {"x": torch.zeros(2)}}),
    "another model": lambda u: replace(
        u, params={f"{k}.x": v for k, v in u.params.items()} or {"x": torch.ones(1)}
    ),
}
OWN: dict[str, tuple[Leaf, Callable[[Tensor], Tensor]]] = {
    "no work": (("nova", "work"), torch.zeros_like),
    "negative work": (("nova", "work"), lambda v: -v),
    "negative counts": (("prototypes", "counts"), lambda v: -v),
}
"""What only some methods' updates hold."""


def hostile(update: Update) -> Iterator[tuple[str, Update]]:
    """Every attack on an honest update, by name."""
    for attack, spoil in EVERY_LEAF.items():
        for leaf in leaves(update):
            yield f"{attack}: {leaf}", changed(update, leaf, spoil(value_at(update, leaf)))
    for attack, spoil_all in WHOLE.items():
        yield attack, spoil_all(update)
    for attack, (leaf, spoil) in OWN.items():
        if leaf in leaves(update):
            yield attack, changed(update, leaf, spoil(value_at(update, leaf)))


def exchange_of(task: Task) -> int | None:
    """The exchange that a site trains in; None: it does something else."""
    return task.message.exchange if task.what == "train" and task.message else None


@dataclass(frozen=True, eq=False)
class Honest:
    """A federation after enrolment, and what its sites answer in an exchange of the first round."""

    method: Any
    data: Federation
    net: Net
    memory: tiny.Kept
    sites: Sites
    answers: dict[str, Answer]
    exchange: int = 0

    def server(self, answers: list[Answer], plan: RoundSettings = PLAN) -> tuple[Server, RamStorage]:
        """A server that is at the first round and gets these answers in the exchange, and its memory."""

        def work(tasks: Iterator[Task]) -> Iterator[Answer]:
            asked = list(tasks)
            yield from answers if exchange_of(asked[0]) == self.exchange else map(self.sites, asked)

        return self._server(work, plan)

    def at(self, exchange: int) -> "Honest":
        """With what the sites answer in this exchange, if all are honest in those before it."""
        found: dict[str, Answer] = {}

        def work(tasks: Iterator[Task]) -> Iterator[Answer]:
            for task in tasks:
                answer = self.sites(task)
                found.update({task.site: answer} if exchange_of(task) == exchange else {})
                yield answer

        list(self._server(work, PLAN)[0].run())
        return replace(self, answers=found, exchange=exchange)

    def _server(self, work: Work, plan: RoundSettings) -> tuple[Server, RamStorage]:
        memory = RamStorage()
        memory.commit(self.memory.server(), None, {})
        names, tested = list(self.data.by_name), [site.name for site in self.data.tested]
        return (
            Server(
                method=self.method,
                names=names,
                tested=tested,
                net=self.net,
                plan=plan,
                memory=memory,
                work=work,
            ),
            memory,
        )


@cache
def honest(case: str) -> Honest:
    method, data, net = battery.CASES[case], battery.uneven(), tiny.net()
    data, memory = battery.prepared(method, data, net, PLAN.seed), tiny.Kept()
    next(tiny.play(method, data, net, PLAN, memory))
    net, state = method.adapt(net), memory.server()
    sites = Sites(method, data, net, PLAN, memory.states, Place())
    tasks = [Task(what="train", site=name, round=0, message=method.broadcast(state, name)) for name in data.by_name]
    return Honest(method, data, net, memory, sites, {task.site: sites(task) for task in tasks})
