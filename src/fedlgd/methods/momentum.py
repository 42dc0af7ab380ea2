"""Momentum that a site keeps between rounds (Yu, Jin and Yang, ICML 2019, without averaging it)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fedlgd.core.errors import SettingError
from fedlgd.core.types import Broadcast, Params, Site, SiteState
from fedlgd.methods.common import fit
from fedlgd.methods.parts import Part
from fedlgd.methods.protocol import Fit, Net, Stream, Trained, Visit


@dataclass(frozen=True, kw_only=True)
class Momentum(Part):
    """v of the last step of a round is v of the first step of the next; needs `local.momentum` above 0."""

    kind: ClassVar[str] = "momentum"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.local.momentum:
            raise SettingError(
                "momentum is kept between rounds, but local.momentum is 0; set it, for example to 0.9"
            )

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        last: list[Params] = []

        def remembering(*given: Any, **more: Any) -> Trained:
            trained = fit(*given, velocity=state.trees.get("velocity"), **more)
            last.append(trained.velocity)
            return trained

        update, after = self.method.site(msg, state, site, net, rng, remembering)
        return update, replace(after, trees={**after.trees, "velocity": last[-1]})
