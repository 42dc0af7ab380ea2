"""FedAF (Wang et al., CVPR 2024): sites send images that agree with the logits of all, the server trains on them

Y. Wang, H. Fu, R. Kanagavelu, Q. Wei, Y. Liu and R. S. M. Goh, An Aggregation-Free Federated Learning for Tackling
Data Heterogeneity. A round has two exchanges: first mean logits of real images, then images and soft labels.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedlgd.core.losses import class_means
from fedlgd.core.meter import phase
from fedlgd.core.types import Broadcast, Hello, LabelledSet, Params, ServerState, Site, SiteState, Update
from fedlgd.distill.distribution import LogitTerm
from fedlgd.methods import common, union
from fedlgd.methods.protocol import Cost, Expected, Fit, Net, Presets, Stream, Updates, Visit, setting
from fedlgd.methods.registry import register

LOGITS, LABELS = "logits", "labels"  # trees of messages; each has `means`, in which an unknown class is a row of 0
TINY = 1e-12  # of probabilities in a logarithm


def mixed(net: Net, params: Params, share: float, rng: Stream) -> Params:
    """w = gamma theta + (1 - gamma) w~ over the trainable parameters, w~ a random network; share 1: theta."""
    if share == 1:
        return params
    other = net.init(rng)
    return params | {name: share * params[name] + (1 - share) * other[name] for name in net.trainable}


def mean_of_known(sent: Iterable[Tensor]) -> Tensor:
    """V_k = mean of v_{c,k} over the sites that have class k; 0 if none has it."""
    total = known = torch.zeros(())
    for each in sent:
        total, known = total + each.double(), known + each.any(1, keepdim=True)
    return (total / known.clamp(min=1)).float()


def sliced_distance(u: Tensor, v: Tensor) -> Tensor:
    r"""E |d.(u - v)| = c_K || u - v ||,  c_K = Gamma(K / 2) / (sqrt(pi) Gamma((K + 1) / 2)),  for each row.

    The sliced Wasserstein distance between two single vectors, in closed form; d is uniform on the unit sphere.
    """
    k = u.shape[1]
    factor = math.exp(math.lgamma(k / 2) - math.lgamma((k + 1) / 2)) / math.sqrt(math.pi)
    distance: Tensor = factor * torch.linalg.vector_norm(u - v, dim=1)
    return distance


def symmetric_divergence(r: Tensor, t: Tensor) -> Tensor:
    r"""[KL(r || t) + KL(t || r)] / 2 = sum_j (r_j - t_j) (log r_j - log t_j) / 2, for each row."""
    return ((r - t) * (r.clamp(min=TINY).log() - t.clamp(min=TINY).log())).sum(1) / 2


@register
@dataclass(frozen=True, kw_only=True)
class FedAF(union.Condensing):
    r"""Site, first:  v_{c,k} = mean z_w(D_k),  w = gamma theta_t + (1 - gamma) w~;  server:  V_k = mean_c v_{c,k}.
    Site, then:  S_c <- S_c - lr dL/dS,  L = sum_k || mean psi_w(D_k) - mean psi_w(S_k) ||^2 + a SWD(u_{c,k}, V_k),
    u_{c,k} = mean z_w(S_k);  R_{c,k} = mean softmax(z_w(D_k) / T).
    Server:  theta_{t+1} = SGD from theta_t on CE(union of S_c) + b / K sum_k [KL(R_k || T_k) + KL(T_k || R_k)] / 2,
    R_k = mean_c R_{c,k},  T_k = mean softmax(z / T) of the images of class k in the batch.

    Round 0 is that of FedDM: networks are random, a new one for each draw, and there are no logits to agree on.
    With a = b = 0 and gamma = 1 it is FedDM with radius 0 and without its logit term, bit for bit.
    """

    name: ClassVar[str] = "fedaf"
    presets: ClassVar[Presets] = {
        "paper": {
            "allow_copies": True,
            "distil.plan": "exact",
            "distil.steps": 1000,
            "distil.per_class": 50,
            "distil.real_per_class": 256,
            "distil.width": 0,
            "distil.smooth": 0.0,
            "distil.start": "real",
            "images": "new",
            "local.epochs": 500,
            "local.lr": 0.001,
        },
        "quick": {**common.TUNED, "local.steps": 100, "distil.steps": 50},
    }

    gamma: float = setting(0.9, "Share of theta_t in the network of a site; the rest is random.", least=0, most=1)
    agree: float = setting(0.8, "Weight a: images with the mean logits of all sites; 0: one exchange.", least=0)
    soft: float = setting(0.8, "Weight b: the model with the soft labels of all sites; 0: off.", least=0)
    temperature: float = setting(2.0, "Temperature T of the soft labels.", above=0)
    images: Literal["keep", "new"] = setting(
        "keep",
        "Images before the steps of a round: `keep` those of the round before, or `new` from `distil.start`.",
    )

    @property
    def exchanges(self) -> int:  # type: ignore[override]
        return 2 if self.agree else 1

    @property
    def sends(self) -> Mapping[str, str]:  # type: ignore[override]
        logits = {f"trees/{LOGITS}": "mean logits"} if self.agree else {}
        return {**logits, f"trees/{union.TREE}": "images"} | (
            {f"trees/{LABELS}": "soft labels"} if self.soft else {}
        )

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        """Unknown with soft labels: their pass over all real images does not grow with the steps."""
        return None if self.soft else super().cost(t, site, classes)

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        """theta_t first; then V alone: the site still has its network."""
        params = {} if state.exchange else state.params
        return Broadcast(round=state.round, params=params, trees=state.trees)

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        means = {"means": torch.empty(net.classes, net.classes)}
        if self._is_first(msg):
            return Expected({}, {LOGITS: means})
        upload = union.expected_upload(net, self.distil.per_class)
        if not self.soft:
            return upload
        least = {**upload.least, f"trees/{LABELS}/means": 0.0}
        return replace(upload, trees={**upload.trees, LABELS: means}, least=least)

    def _is_first(self, msg: Broadcast) -> bool:
        """Whether it asks for logits, not for images."""
        return msg.exchange < self.exchanges - 1

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = common.fit
    ) -> Visit:
        """Its network w and its logits in the first exchange, its images in the last; `fit` is not used."""
        w = state.trees["network"] if msg.exchange else mixed(net, msg.params, self.gamma, rng.at("mixed"))
        if self._is_first(msg):
            sent = {LOGITS: self._means(msg, net, w, site.train)}
            return Update(site=site.name, params={}, weight=1.0, trees=sent), replace(state, trees={"network": w})
        before = state if self.images == "keep" else SiteState()
        virtual = union.images_before(before, site, net, self.distil, msg.round, rng.at("start"))
        term = self._agreement(msg.trees)
        virtual = union.condense(virtual, site, net, w, self.distil, msg.round, rng.at("refine"), term=term)
        sent = {union.TREE: union.upload_of(virtual, net.classes, self.distil.per_class)}
        if self.soft:
            sent[LABELS] = self._means(msg, net, w, site.train, self.temperature)
        return Update(site=site.name, params={}, weight=1.0, trees=sent), SiteState(virtual=virtual)

    def _means(self, msg: Broadcast, net: Net, w: Params, real: LabelledSet, soften: float = 0.0) -> Params:
        """The mean of z_w of each class, or of softmax(z_w / T); in round 0, when w knows nothing, 0."""
        if msg.round == 0:
            return {"means": torch.zeros(net.classes, net.classes)}
        with phase("distil"):
            z = common.outputs_on(net, w, real).logits
        return {"means": common.means_by_class((z / soften).softmax(1) if soften else z, real, net.classes)}

    def _agreement(self, trees: Mapping[str, Params]) -> LogitTerm | None:
        """a sum_k SWD(u_k, V_k) over the classes whose V_k is known."""
        target = trees[LOGITS]["means"] if LOGITS in trees else torch.zeros(())
        if not target.any():
            return None

        def agreement(u: Tensor, classes: Tensor) -> Tensor:
            v = target[classes]
            return self.agree * (sliced_distance(u, v) * v.any(1)).sum()

        return agreement

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        if state.exchange < self.exchanges - 1:
            means = mean_of_known(update.trees[LOGITS]["means"] for update in updates)
            return replace(state, trees={LOGITS: {"means": means}})
        labels: list[Tensor] = []

        def noted() -> Iterator[Update]:
            for update in updates:
                labels.extend([update.trees[LABELS]["means"]] if self.soft else [])
                yield update

        everyone = union.union_of(noted(), self.distil.tiles)
        target = mean_of_known(labels) if labels else torch.zeros(())
        terms = [self._soft_labels(target)] if target.any() else []
        trained = common.fit_on(net, state.params, everyone, self.local, rng, terms=terms)
        return replace(state, params=trained.params, trees={}, round=state.round + 1)

    def _soft_labels(self, target: Tensor) -> common.Term:
        """b / K sum_k [KL(R_k || T_k) + KL(T_k || R_k)] / 2 over the classes in the batch whose R_k is known."""

        def near_labels(w: Params, batch: common.Batch) -> Tensor:
            classes = batch.y.unique()
            r = target[classes]
            t = class_means((batch.logits / self.temperature).softmax(1), batch.y, classes)
            return self.soft / len(target) * (symmetric_divergence(r, t) * r.any(1)).sum()

        return near_labels
