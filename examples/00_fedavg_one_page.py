"""FedAvg (McMahan et al., AISTATS 2017) on one page: every step of a round, without the engine.

A test checks that the result is bit-equal to `fedlgd.run(federation, "fedavg", ...)`. Methods of your own
are in the folder methods.

Run: python examples/00_fedavg_one_page.py
"""

from torch import Tensor

import fedlgd
from fedlgd.core.losses import cross_entropy
from fedlgd.core.net import Net
from fedlgd.core.train import Local, score, sgd
from fedlgd.core.tree import Mean
from fedlgd.core.types import Params, Site, Stream
from fedlgd.nets.registry import build_net

ROUNDS = 3
LOCAL = Local(epochs=1, batch=32, lr=0.01)
NET = {"width": 16}


def train(site: Site, net: Net, model: Params, rng: Stream) -> Params:
    """The site's half: theta_c after E epochs of SGD on cross-entropy from theta_t."""

    def loss(w: Params, index: Tensor) -> Tensor:
        batch = site.train.take(index)
        return cross_entropy(net(w, batch.x).logits, batch.y)

    return sgd(net, model, len(site.train), loss, LOCAL, rng).params


def one_round(federation: fedlgd.Federation, net: Net, model: Params, t: int, root: Stream) -> Params:
    """The server's half: theta_{t+1} = sum_c n_c theta_c / sum_c n_c."""
    mean = Mean()
    for name, site in federation.by_name.items():
        mean.add(train(site, net, model, root.at("site", name, t)), len(site.train))
    return mean.value()


def main(rounds: int = ROUNDS, limit: int = 500, seed: int = 0) -> Params:
    federation = fedlgd.load("builtin-digits", limit=limit)
    net = build_net("convnet", federation.shape, len(federation.classes), NET)
    root = Stream(seed)  # every random number has an address below it
    model = net.init(root.at("init"))
    for t in range(rounds):
        model = one_round(federation, net, model, t, root)
        scores = {name: score(net, model, site.test, net.classes) for name, site in federation.by_name.items()}
        print(f"round {t + 1}:", "  ".join(f"{name} {100 * s.accuracy:.1f}" for name, s in scores.items()))
    return model


if __name__ == "__main__":
    main()
