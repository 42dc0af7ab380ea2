"""FedVCK (Yan et al., AAAI 2025): images from what the model finds hard; the server remembers and contrasts them

G. Yan, L. Xie, X. Gao, W. Zhang, Q. Shen, Y. Fang and Z. Wu, FedVCK: Non-IID Robust and Communication-Efficient
Federated Learning via Valuable Condensed Knowledge for Medical Image Analysis.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedlgd.core.device import to_cpu, to_device
from fedlgd.core.meter import phase
from fedlgd.core.net import Output
from fedlgd.core.tree import clone
from fedlgd.core.types import Broadcast, Hello, LabelledSet, Params, ServerState, Site, SiteState, Update
from fedlgd.distill.settings import Distil
from fedlgd.methods import common, union
from fedlgd.methods.common import Batch, Term
from fedlgd.methods.protocol import Cost, Expected, Fit, Net, Presets, Stream, Updates, Visit, setting
from fedlgd.methods.registry import register

LOGITS, PROTOTYPES, MEMORY = "logits", "prototypes", "memory"  # trees of messages and of the server
PUBLISHED = {"clip": 10.0, "margin": 0.3, "late": 0.1, "local.epochs": 1000, "local.lr": 0.001}
BODY = "body."  # of the names in a network with a head
STATISTICS_BATCHES, STATISTICS_SIZE = 50, 256  # 0.9^50 = 0.5 % of the statistics of the received model is left


def importance(logits: Tensor, labels: Tensor, slope: float, margin: float) -> Tensor:
    """p(x) ~ exp(sigmoid(gamma (CE(z, y) - b))) within a class: a softmax of values between 0 and 1."""
    return torch.sigmoid(slope * (F.cross_entropy(logits, labels, reduction="none") - margin)).exp()


def with_statistics(net: Net, params: Params, real: LabelledSet, rng: Stream) -> Params:
    """theta with running statistics of the real images: batches of them in train mode, weights unchanged."""
    w, generator = clone(params), rng.generator()
    with torch.no_grad(), net.training():
        for _ in range(STATISTICS_BATCHES):
            net(w, real.take(torch.randperm(len(real), generator=generator)[:STATISTICS_SIZE]).x)
    return w


def related_classes(means: Tensor, counts: Tensor, number: int) -> Tensor:
    """(K, K), bool: row k has the `number` largest mean logits of images of class k, and k itself.

    Of a class that no site has in this round all classes are related.
    """
    top = means.topk(min(number, len(means)), dim=1).indices
    related = torch.zeros_like(means, dtype=torch.bool).scatter_(1, top, True)
    return related | torch.eye(len(means), dtype=torch.bool, device=means.device) | (counts == 0)[:, None]


def relational_contrast(z: Tensor, labels: Tensor, centres: Tensor, related: Tensor, temperature: float) -> Tensor:
    r"""mean_i -log [ e^{s_iy} / sum_{k related to y} e^{s_ik} ],  s_ik = cos(z_i, c_k) / T,  y the label of i.

    related: also says of which classes there is a centre. An image of a class without one contributes 0.
    """
    s = F.normalize(z, dim=1, eps=1e-6) @ F.normalize(centres, dim=1, eps=1e-6).T / temperature
    known = related[labels, labels]
    below = s.masked_fill(~related[labels], -torch.inf)[known].logsumexp(1)
    return (below - s[known, labels[known]]).sum() / len(z)


class WithHead(nn.Module):
    """A network that has a head of two layers beside it, which only the contrastive term applies."""

    def __init__(self, body: nn.Module, features: int, width: int) -> None:
        super().__init__()
        self.body = body
        if hasattr(body, "per_image"):
            self.per_image = body.per_image
        self.first, self.second = nn.Linear(features, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Output:
        return Output(*self.body(x))

    @staticmethod
    def project(w: Params, x: Tensor) -> Tensor:
        """g(x) = W_2 relu(W_1 x + b_1) + b_2"""
        hidden = F.relu(F.linear(x, w["first.weight"], w["first.bias"]))
        return F.linear(hidden, w["second.weight"], w["second.bias"])


def with_head(net: Net, params: Params, width: int, rng: Stream) -> tuple[Net, Params]:
    """The network with a new head, and the weights of both."""
    features = net.features
    both = net.wrapped(lambda body, _: WithHead(body, features, width), f"head={width}")
    head = {name: value for name, value in both.init(rng).items() if not name.startswith(BODY)}
    return both, {**{BODY + name: value for name, value in params.items()}, **head}


@register
@dataclass(frozen=True, kw_only=True)
class FedVCK(union.Condensing):
    r"""Site:  S_c from noise <- S_c - lr dL/dS,  L = sum_k || mean psi(D_k) - mean psi(S_k) ||^2  under theta_t,
    D_k drawn with p(x) ~ exp(sigmoid(gamma (CE(z(x), y) - b))),  z = (z under theta_t + z under theta_{t-1}) / 2.
    Server:  theta_{t+1} = SGD from theta_t on CE(S) + beta RSC(g(psi(S)), related classes),  S of the last rounds,
    RSC = mean -log [ e^{s_y} / sum_{related} e^{s_k} ],  s_k = cos(g(psi(x)), g(c_k)) / T,
    c_k = mean psi of the images of class k of the round before;  related: the largest mean logits of class k.

    Round 0 is that of FedDM. With beta = gamma = 0 and memory = 1 it is FedDM with radius 0, without its logit term
    and with new images from noise, bit for bit.
    """

    name: ClassVar[str] = "fedvck"
    presets: ClassVar[Presets] = {
        "paper": {**common.PAPER, **PUBLISHED},
        "quick": {**common.TUNED, "local.steps": 100, "distil.steps": 50},
    }

    slope: float = setting(1.0, "Slope gamma of the importance of a real image in its loss; 0: all alike.", least=0)
    margin: float = setting(0.0, "Loss b of a real image of medium importance.", least=0)
    latent: bool = setting(
        True, "Batch norm of virtual images has the statistics of real ones; no other norm changes."
    )
    clip: float = setting(0.0, "Largest norm of the gradient of all images of a site; 0: any.", least=0)
    memory: int = setting(10, "Rounds whose images the server trains on; 1: only the last.", least=1, most=100_000)
    beta: float = setting(0.1, "Weight beta of the contrastive term, from the second round on; 0: off.", least=0)
    temperature: float = setting(0.1, "Temperature T of the contrastive term.", above=0)
    related: int = setting(5, "Classes related to a class, by its largest mean logits.", least=1, most=100_000)
    head: int = setting(128, "Width of the head g, new in every round; 0: none.", least=0, most=100_000)
    late: float = setting(1.0, "Factor on beta and learning rate in the second half of a round.", above=0, most=1)
    distil: Distil = Distil(steps=100, reuse=10, real_per_class=64, start="noise")

    @property
    def sends(self) -> Mapping[str, str]:  # type: ignore[override]
        logits = {f"trees/{LOGITS}": "mean logits", f"trees/{LOGITS}/counts": "counts"}
        return {f"trees/{union.TREE}": "images", **(logits if self.beta else {})}

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        """Unknown: passes over all images, at sites and at the server, do not grow with the steps."""
        return None if self.slope or self.beta or self.latent else super().cost(t, site, classes)

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        upload = union.expected_upload(net, self.distil.per_class)
        if not self.beta:
            return upload
        logits = {"means": torch.empty(net.classes, net.classes), "counts": torch.empty(net.classes)}
        least = {**upload.least, f"trees/{LOGITS}/counts": 0.0}
        return replace(upload, trees={**upload.trees, LOGITS: logits}, least=least)

    def site(
        self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = common.fit
    ) -> Visit:
        """New images, and the mean logits of the real ones; `fit` is not used."""
        t = msg.round
        w, how, logits = self._hard_images(msg, state, site.train, net, rng)
        virtual = union.images_before(SiteState(), site, net, self.distil, t, rng.at("start"))
        virtual = union.condense(virtual, site, net, w, self.distil, t, rng.at("refine"), **how)
        upload = union.upload_of(virtual, net.classes, self.distil.per_class)
        sent = {union.TREE: upload, **({LOGITS: logits} if self.beta else {})}
        kept = {"model": msg.params} if self.slope else {}
        return Update(site=site.name, params={}, weight=1.0, trees=sent), SiteState(virtual=virtual, trees=kept)

    def _hard_images(
        self, msg: Broadcast, state: SiteState, real: LabelledSet, net: Net, rng: Stream
    ) -> tuple[Params, dict[str, Any], Params]:
        """The network, the changes of the steps, and the mean logits of the real images with their numbers.

        In round 0, when the model knows nothing, nothing changes, and the logits are 0.
        """
        theta = msg.params
        how: dict[str, Any] = {"largest": self.clip, "running": self.latent and not net.per_image}
        logits = {"means": torch.zeros(net.classes, net.classes), "counts": torch.zeros(net.classes)}
        if msg.round == 0:
            return theta, {}, logits
        with phase("distil"):
            now = common.outputs_on(net, theta, real).logits if self.slope or self.beta else torch.empty(0)
            if self.slope:
                before = common.outputs_on(net, state.trees.get("model", theta), real).logits
                how["chances"] = to_cpu(importance((now + before) / 2, to_device(real.y), self.slope, self.margin))
            w = with_statistics(net, theta, real, rng.at("statistics")) if how["running"] else theta
        if self.beta:
            means = common.means_by_class(now, real, net.classes)
            logits = {"means": means, "counts": real.counts(net.classes).float()}
        return w, how, logits

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        """Trains on the images of the last rounds, and keeps them with their class means for the next."""
        sums, counts = to_device((torch.zeros(net.classes, net.classes), torch.zeros(net.classes)))

        def noted() -> Iterator[Update]:
            nonlocal sums, counts
            for update in updates:
                if self.beta:
                    sent = update.trees[LOGITS]
                    sums, counts = sums + sent["means"] * sent["counts"][:, None], counts + sent["counts"]
                yield update

        new = union.union_of(noted(), self.distil.tiles)
        names = (f"{MEMORY}-{i}" for i in range(self.memory - 1))  # the oldest first
        rounds = [state.trees[name] for name in names if name in state.trees] + [{"x": new.x, "y": new.y}]
        x, y = (torch.cat([each[part] for each in rounds]) for part in ("x", "y"))
        centres = state.trees[PROTOTYPES]["means"] if PROTOTYPES in state.trees else torch.zeros(())
        related = related_classes(sums / counts.clamp(min=1)[:, None], counts, self.related)
        params = self._train(state.params, LabelledSet(x, y), centres, related, net, rng)
        kept = rounds[max(0, len(rounds) + 1 - self.memory) :]
        trees: dict[str, Params] = {f"{MEMORY}-{i}": each for i, each in enumerate(kept)}
        if self.beta:
            means = common.means_by_class(common.outputs_on(net, params, new).features, new, net.classes)
            trees[PROTOTYPES] = {"means": means}
        return replace(state, params=params, trees=trees, round=state.round + 1)

    def _train(
        self, theta: Params, data: LabelledSet, centres: Tensor, related: Tensor, net: Net, rng: Stream
    ) -> Params:
        """theta_{t+1}; with `late` below 1 in two halves."""
        contrast, steps, local = bool(centres.any()), self.local.count(len(data)), self.local
        headed = contrast and self.head > 0
        if headed:
            net, theta = with_head(net, theta, self.head, rng.at("head"))
        halves = [(local, 1.0, rng)]
        if self.late < 1 and steps > 1:
            later = replace(local, steps=steps - steps // 2, lr=self.late * local.lr)
            halves = [(replace(local, steps=steps // 2), 1.0, rng), (later, self.late, rng.at("late"))]
        for how, factor, here in halves:
            terms = [self._contrast(factor * self.beta, centres, related)] if contrast else []
            theta = common.fit_on(net, theta, data, how, here, terms=terms).params
        body = {name.removeprefix(BODY): value for name, value in theta.items() if name.startswith(BODY)}
        return body if headed else theta

    def _contrast(self, beta: float, centres: Tensor, related: Tensor) -> Term:
        """beta RSC among the related classes that have a centre."""
        among = related & centres.any(1)

        def near_centres(w: Params, batch: Batch) -> Tensor:
            z, c = batch.features, centres
            if self.head:
                z, c = WithHead.project(w, z), WithHead.project(w, c)
            return beta * relational_contrast(z, batch.y, c, among, self.temperature)

        return near_centres
