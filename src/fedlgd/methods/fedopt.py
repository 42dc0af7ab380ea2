"""FedOpt (Reddi et al., ICLR 2021, Algorithm 2): an optimiser of the server; with momentum it is FedAvgM."""

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlgd.core import tree
from fedlgd.core.types import ServerState
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Net, Settings, Stream, Updates, setting

ADAPTIVE_LR = 0.01
MEAN, SQUARE = "fedopt-mean", "fedopt-square"  # what the server remembers


@dataclass(frozen=True, kw_only=True)
class ServerOptimiser(Settings):
    """How the server moves the model along the mean change of a round."""

    section: ClassVar[str] = "fedopt"

    optimiser: Literal["momentum", "adagrad", "adam", "yogi"] = setting(
        "momentum", "Optimiser of the server: `momentum` (FedAvgM), `adagrad`, `adam` or `yogi`."
    )
    lr: float = setting(0.0, "Learning rate of the server; 0: 1 for `momentum`, 0.01 for the others.", least=0)
    beta1: float = setting(0.9, "Decay of the mean change; 0: no momentum.", least=0, below=1)
    beta2: float = setting(0.99, "Decay of the squared changes, for `adam` and `yogi`.", least=0, below=1)
    tau: float = setting(0.001, "Added to the root of the squared changes.", above=0)

    @property
    def rate(self) -> float:
        return self.lr or (1.0 if self.optimiser == "momentum" else ADAPTIVE_LR)

    def mean(self, m: Tensor, delta: Tensor) -> Tensor:
        """momentum (Hsu et al., 2019):  m <- b1 m + Delta;  others:  m <- b1 m + (1 - b1) Delta"""
        return self.beta1 * m + (1 if self.optimiser == "momentum" else 1 - self.beta1) * delta

    def square(self, v: Tensor, delta: Tensor) -> Tensor:
        """adagrad:  v <- v + Delta^2;  adam:  v <- b2 v + (1 - b2) Delta^2;
        yogi:  v <- v - (1 - b2) Delta^2 sign(v - Delta^2)
        """
        squared = delta.square()
        if self.optimiser == "adagrad":
            return v + squared
        if self.optimiser == "adam":
            return self.beta2 * v + (1 - self.beta2) * squared
        return v - (1 - self.beta2) * squared * torch.sign(v - squared)


@dataclass(frozen=True, kw_only=True)
class FedOpt(Part):
    r"""theta_{t+1} = theta_t + eta m_t  for momentum,  theta_t + eta m_t / (sqrt(v_t) + tau)  for the others.

    Delta_t = (the new model of the method) - theta_t. m starts at 0, v at tau^2. Only trainable tensors; the others
    (statistics of norm layers) are those of the method. beta1 = 0 and lr = 1 with momentum is the method itself.
    """

    kind: ClassVar[str] = "fedopt"
    allows: ClassVar[tuple[str, ...]] = (
        "refine",
        "redraw",
        "regulariser",
        "momentum",
        "robust",
    )  # anchors use the mean

    fedopt: ServerOptimiser = ServerOptimiser()

    @property
    def title(self) -> str:
        return f"server {self.fedopt.optimiser}"

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        after, opt = self.method.server(state, updates, net, rng), self.fedopt
        names = net.trainable & after.params.keys()
        new, old = (tree.double(tree.only(params, names)) for params in (after.params, state.params))
        delta = tree.sub(new, old)
        m = state.trees.get(MEAN) or tree.zeros(delta)
        m = {name: opt.mean(m[name], delta[name]) for name in delta}
        step, kept = m, {MEAN: m}
        if opt.optimiser != "momentum":
            v = state.trees.get(SQUARE) or {name: torch.full_like(d, opt.tau**2) for name, d in delta.items()}
            kept[SQUARE] = v = {name: opt.square(v[name], delta[name]) for name in delta}
            step = {name: m[name] / (v[name].sqrt() + opt.tau) for name in delta}
        # theta_t + eta step = theta + (eta step - Delta): a step that is Delta itself leaves the bits of theta
        moved = tree.add(new, tree.sub(tree.scale(step, opt.rate), delta))
        params = {**after.params, **tree.cast(moved, after.params)}
        return replace(after, params=params, trees={**after.trees, **kept})
