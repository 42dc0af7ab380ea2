"""A regulariser: a term that can be added to the loss of any method.

fedlgd run builtin-digits --method fedavg+sparse:Sparse --set sparse.weight=0.01 --rounds 10
"""

from dataclasses import dataclass

from torch import Tensor

from fedlgd import methods


@dataclass(frozen=True, kw_only=True)
class Sparse(methods.Regulariser):
    """weight * sum |w|"""

    weight: float = methods.setting(0.001, "Weight of the term; 0: off.", least=0)

    def term(self, msg: methods.Broadcast, state: methods.SiteState, net: methods.Net) -> methods.Term | None:
        def size(w: methods.Params, batch: methods.Batch) -> Tensor:
            return self.weight * sum(w[name].abs().sum() for name in net.trainable)

        return size if self.weight else None
