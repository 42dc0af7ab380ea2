"""FedAvgM (Hsu et al., 2019): FedAvg with momentum at the server.

fedlgd run builtin-digits --method server_momentum:ServerMomentum --set beta=0.5 --rounds 10
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedlgd import FedAvg, methods
from fedlgd.methods import Net, ServerState, Stream, Updates, tree


@dataclass(frozen=True, kw_only=True)
class ServerMomentum(methods.Training):
    """v <- beta v + (mean_c theta_c - theta_t),  theta_{t+1} = theta_t + v"""

    name: ClassVar[str] = "server-momentum"

    beta: float = methods.setting(0.9, "Momentum of the server; 0: FedAvg.", least=0, below=1)

    enrol, start, broadcast, site = methods.enrol, methods.start, methods.broadcast, FedAvg.site

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        mean = methods.average(self, state, updates, net, rng)
        velocity = tree.sub(mean.params, state.params)
        if before := state.trees.get("velocity"):
            velocity = tree.add(tree.scale(before, self.beta), velocity)
        moved = tree.only(tree.add(state.params, velocity), net.trainable)  # statistics of norm layers are averaged
        return replace(mean, params={**mean.params, **moved}, trees={"velocity": velocity})
