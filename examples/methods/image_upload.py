"""Sites send virtual images made under the received model; the server trains on all of them, as in FedDM.

fedlgd run builtin-digits --method image_upload:ImageUpload --set distil.steps=100 --rounds 3
"""

from dataclasses import dataclass, replace
from typing import ClassVar

from fedlgd import methods
from fedlgd.methods import Broadcast, Fit, Hello, Net, ServerState, Site, SiteState, Stream, Updates, Visit


@dataclass(frozen=True, kw_only=True)
class ImageUpload(methods.Training):
    """V_c <- V_c - lr dL/dV under theta_t at site c,  theta_{t+1} = SGD from theta_t on the union of all V_c"""

    name: ClassVar[str] = "image-upload"
    train_on: ClassVar[str] = "nothing"
    sends: ClassVar[dict[str, str]] = {"trees/virtual": "images"}
    reads: ClassVar[tuple[str, ...]] = ("every",)
    stackable: ClassVar[tuple[str, ...]] = ()

    moves: int = methods.setting(10, "Steps on the images in a round; 0: sites send their first images.", least=0)
    local: methods.Local = methods.Local(steps=50)  # of the server

    enrol, start, broadcast = methods.enrol, methods.start, methods.broadcast

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> methods.Expected:
        return methods.expected_upload(net, self.distil.per_class)

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = methods.fit
    ) -> Visit:
        virtual, distil = state.virtual, replace(self.distil, steps=self.moves)
        if self.moves:
            virtual = methods.refine_set(virtual, site.train, net, msg.params, distil, msg.round, rng.at("distil"))
        images = methods.upload_of(virtual, net.classes, distil.per_class)
        sent = methods.Update(site=site.name, params={}, weight=1.0, trees={"virtual": images})
        return sent, replace(state, virtual=virtual)

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        union = methods.union_of(updates, self.distil.tiles)
        trained = methods.fit_on(net, state.params, union, self.local, rng)
        return replace(state, params=trained.params, round=state.round + 1)
