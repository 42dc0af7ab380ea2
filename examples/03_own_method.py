"""Write your own regulariser for any method, and your own method.

Run: python examples/03_own_method.py
From the command line, in this folder:
    fedlgd run --method fedlgd+proximal                                      # FedLGD with a proximal term
    fedlgd run --method fedlgd+03_own_method:Sparse --set sparse.weight=0.01   # with your own regulariser
    fedlgd run --method 03_own_method:Cautious                               # your own method
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

import fedlgd
from fedlgd.core.tree import add, scale, sub
from fedlgd.core.types import ServerState, Update
from fedlgd.methods import common
from fedlgd.methods.protocol import Net, Stream, setting
from fedlgd.methods.regularisers import Regulariser


@dataclass(frozen=True, kw_only=True)
class Sparse(Regulariser):
    """weight * sum |w|, added to the loss of any method."""

    weight: float = setting(0.001, "Weight of the term.", least=0)

    def term(self, msg, state, net):
        return lambda w, _: self.weight * sum(w[name].abs().sum() for name in net.trainable)


@dataclass(frozen=True, kw_only=True)
class Cautious(common.Training):
    """FedAvg with a smaller server step:  theta_{t+1} = theta_t + step * (mean_c theta_c - theta_t)"""

    name: ClassVar[str] = "cautious"

    step: float = setting(0.5, "Step size of the server.", above=0, most=1)
    local: fedlgd.Local = fedlgd.Local(lr=0.05)

    enrol, start, broadcast, site = common.enrol, common.start, common.broadcast, fedlgd.FedAvg.site

    def server(self, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
        mean = common.average(self, state, updates, net, rng)
        move = scale(sub(mean.params, state.params), self.step)
        return replace(mean, params=add(state.params, move))


def main(rounds: int = 3) -> list[fedlgd.Result]:
    federation = fedlgd.load("builtin-digits", limit=500)
    quick = fedlgd.configure("fedlgd", "quick", distil__steps=20)
    methods = [Cautious(), fedlgd.Regularised(method=quick, term=Sparse(weight=0.01))]
    results = [fedlgd.run(federation, method, rounds=rounds, net={"width": 16}) for method in methods]
    for method, result in zip(methods, results, strict=True):
        print(method.label, result.accuracy)
    return results


if __name__ == "__main__":
    main()
