"""A method of your own: one frozen dataclass with five functions.

This one is FedAvg whose server takes only a part of the step (server learning rate).
Run: python examples/03_own_method.py      From the command line: --method 03_own_method:Cautious
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import fedlgd
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.tree import add, scale, sub
from fedlgd.core.types import ServerState, Update
from fedlgd.methods import common


@dataclass(frozen=True, kw_only=True)
class Cautious(common.Averaging):
    """theta_{t+1} = theta_t + step * (mean_c theta_c - theta_t)"""

    name: ClassVar[str] = "cautious"
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    step: float = 0.5
    local: fedlgd.Local = fedlgd.Local(lr=0.05)

    enrol = common.enrol
    start = common.start
    broadcast = common.broadcast
    site = fedlgd.FedAvg.site

    def server(self, state: ServerState, updates: Iterable[Update], net: Net, rng: Stream) -> ServerState:
        mean = common.average(self, state, updates, net, rng)
        move = scale(sub(mean.params, state.params), self.step)
        return replace(mean, params=add(state.params, move))


def main(rounds: int = 3) -> fedlgd.Result:
    federation = fedlgd.load("builtin-digits", limit=500)
    result = fedlgd.run(federation, Cautious(), rounds=rounds, net={"name": "convnet", "width": 16})
    print(result.accuracy)
    return result


if __name__ == "__main__":
    main()
