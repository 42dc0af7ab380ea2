"""DeSA (Huang et al., ICML 2024): each site has its model; sites share distilled anchors, and logits on them

C.-Y. Huang, K. Srinivas, X. Zhang and X. Li, Overcoming Data and Model Heterogeneities in Decentralized Federated
Learning via Synthetic Anchors. Here a server passes messages on, and all sites have one architecture.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from fedlgd.core.losses import cross_entropy, supervised_contrastive
from fedlgd.core.types import (
    Broadcast,
    Hello,
    LabelledSet,
    Params,
    ServerState,
    Site,
    SiteState,
    Update,
    VirtualSet,
)
from fedlgd.distill.distribution import first_set
from fedlgd.methods import common
from fedlgd.methods.anchors import stale_anchors
from fedlgd.methods.common import PAPER, QUICK, AnchorLoss, Batch, Term, fit, outputs_on
from fedlgd.methods.protocol import Cost, Expected, Fit, Hellos, Net, Presets, Stream, Updates, Visit, setting
from fedlgd.methods.registry import register
from fedlgd.methods.union import TREE, Uploading, expected_upload, union_of, upload_of


def mean_anchors(uploads: Sequence[Params], per_class: int) -> LabelledSet:
    """V_{k,j} = mean over the sites that have a j-th image of class k; one that no site has is left out."""
    present = torch.stack([upload["present"] for upload in uploads])
    has = torch.arange(per_class, device=present.device) < present[..., None]
    sites = has.sum(0).flatten()
    total = torch.stack([upload["images"].double() for upload in uploads]).sum(0)  # absent images are 0
    mean = total / sites.clamp(min=1)[:, None, None, None]
    labels = torch.arange(present.shape[1], device=present.device).repeat_interleave(per_class)
    return LabelledSet(mean[sites > 0].to(uploads[0]["images"].dtype), labels[sites > 0])


def mean_of_others(logits: Mapping[str, Tensor], site: str) -> Tensor | None:
    """Z_{-c} = mean of Z_i over the sites i other than c; None if there is no other."""
    others = [each.double() for name, each in sorted(logits.items()) if name != site]
    return torch.stack(others).mean(0).float() if others else None


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    r"""T^2 mean_i sum_k p_ik log(p_ik / q_ik),  p = softmax(Z / T) of the teacher,  q = softmax(z / T)."""
    p, q = F.log_softmax(teacher / temperature, 1), F.log_softmax(logits / temperature, 1)
    return temperature**2 * F.kl_div(q, p, reduction="batchmean", log_target=True)


@register
@dataclass(frozen=True, kw_only=True)
class DeSA(Uploading):
    r"""Once:    V = mean over sites of V^c, each distilled by Eq. 1 under random networks.
    Site:    CE(D^c + V) + a SupCon(batch + B, B detached, tau) + b [h CE(B) + (1 - h) KD(Z_{-c}, z(B))],  B from V.
    Server:  Z_{-c} = mean over the other sites of Z_i, their logits on V after their last training.

    Without V in the cross-entropy and with a = b = 0 it is local-only, bit for bit. Each site is evaluated with its
    own model: personalised accuracy.
    """

    name: ClassVar[str] = "desa"
    personal: ClassVar[bool] = True
    presets: ClassVar[Presets] = {
        "paper": {**PAPER, "distil.steps": 1000, "distil.per_class": 50, "distil.start": "noise"},
        "quick": QUICK,
    }
    stackable: ClassVar[tuple[str, ...]] = ("regulariser", "momentum")

    combine: Literal["mean", "union"] = setting(
        "mean", "Anchors: the pixelwise `mean` of the sites' images, or the `union` of all of them."
    )
    in_loss: bool = setting(True, "Anchors are in the cross-entropy, beside the images of the site.")
    align: float = setting(
        1.0, "Weight a of the contrastive term between features of a batch and anchors.", least=0
    )
    temperature: float = setting(0.07, "Temperature tau of the contrastive term.", above=0)
    agree: float = setting(1.0, "Weight b of the term with the logits of other sites on the anchors.", least=0)
    hard: float = setting(
        0.1, "Share h of the true labels in that term; the rest is distillation.", least=0, most=1
    )
    soften: float = setting(20.0, "Temperature T of the distillation.", above=0)
    reduction: Literal["classes", "elements"] = setting(
        "classes", "KL divergence: sum over `classes`, or mean over `elements` as in the original code."
    )
    anchor_batch: int = setting(32, "Anchors B in each step.", least=1, most=1_000_000)

    @property
    def _uses_anchors(self) -> bool:
        return self.in_loss or self.align > 0 or self.agree > 0

    @property
    def sends(self) -> Mapping[str, str]:  # type: ignore[override]
        images = {f"hello/trees/{TREE}": "images"} if self._uses_anchors else {}
        return {**images, "metrics/loss": "loss", **({"trees/logits": "logits"} if self.agree else {})}

    def cost(self, t: int, site: Site, classes: int) -> Cost | None:
        """With the anchors of all classes; how many a union has depends on the sites."""
        cost = super().cost(t, site, classes)
        if cost is None or (self._uses_anchors and self.combine == "union"):
            return None
        anchors = self.distil.pictures * classes if self.in_loss else 0
        return cost._replace(images=cost.images + anchors, by_step=self.align > 0 or self.agree > 0)

    def enrol(self, site: Site, net: Net, rng: Stream) -> tuple[SiteState, Hello]:
        """The site distils V^c and sends it. It trains on its real images, or on V^c."""
        state, hello = common.enrol(self, site, net, rng)
        if not self._uses_anchors:
            return state, hello
        virtual = state.virtual or first_set(site, net, self.distil, rng.at("distil"))
        upload = upload_of(virtual, net.classes, self.distil.per_class)
        return state, replace(hello, counts=virtual.data.counts(net.classes), trees={TREE: upload})

    def expects_hello(self, net: Net) -> Hello:
        trees = expected_upload(net, self.distil.per_class).trees if self._uses_anchors else {}
        return replace(super().expects_hello(net), trees=trees)

    def start(self, params: Params, hellos: Hellos, net: Net, rng: Stream) -> ServerState:
        """A site that enrols later receives the anchors, and adds none."""
        uploads = [hello.trees[TREE] for hello in hellos if self._uses_anchors]
        if not uploads:
            return ServerState(params=params)
        data = mean_anchors(uploads, self.distil.per_class) if self.combine == "mean" else union_of(hellos)
        anchors = VirtualSet(images=data.x, labels=data.y, origin="server", round=-1, tiles=self.distil.tiles)
        return ServerState(params=params, anchors=anchors)

    def broadcast(self, state: ServerState, site: str) -> Broadcast:
        """The anchors, once, and Z_{-c}; as long as no other site has sent logits, an empty tensor of n rows."""
        trees: dict[str, Params] = {}
        if state.anchors and self.agree:
            teacher = mean_of_others(state.trees.get("logits", {}), site)
            trees = {"logits": {"mean": torch.empty(len(state.anchors.data), 0) if teacher is None else teacher}}
        return Broadcast(round=state.round, params={}, anchors=stale_anchors(state, site), trees=trees)

    def expects(self, msg: Broadcast, net: Net, hello: Hello) -> Expected:
        if "logits" not in msg.trees:
            return Expected({})
        return Expected({}, {"logits": {"own": torch.empty(len(msg.trees["logits"]["mean"]), net.classes)}})

    def site(self, msg: Broadcast, state: SiteState, site: Site, net: Net, rng: Stream, fit: Fit = fit) -> Visit:
        model = state.trees.get("model") or common.first_model(net, rng)
        state = replace(state, anchors=msg.anchors or state.anchors)
        if state.anchors is None:
            trained, sent = fit(self, model, state, site, net, rng), {}
        else:
            anchors, logits = state.anchors.data, msg.trees.get("logits")
            terms = self._terms(anchors, logits["mean"] if logits else torch.empty(0, 0), net, rng)
            in_loss = AnchorLoss(anchors, True, None) if self.in_loss else None
            trained = fit(self, model, state, site, net, rng, terms=terms, anchors_in_loss=in_loss)
            sent = {"logits": {"own": outputs_on(net, trained.params, anchors).logits}} if logits else {}
        update = Update(site=site.name, params={}, weight=1.0, metrics={"loss": trained.loss}, trees=sent)
        return update, replace(state, trees={"model": trained.params})

    def _terms(self, anchors: LabelledSet, teacher: Tensor, net: Net, rng: Stream) -> list[Term]:
        """The contrastive term, and the one with the teacher's logits as soon as there are any."""
        agree = self.agree if teacher.numel() else 0.0
        if not (self.align or agree):
            return []
        generator = rng.generator("anchors")

        def with_anchors(w: Params, batch: Batch) -> Tensor:
            chosen = torch.randperm(len(anchors), generator=generator)[: self.anchor_batch]
            part = anchors.take(chosen)
            out = net(w, part.x)
            together = torch.cat([batch.features, out.features.detach()]), torch.cat([batch.y, part.y])
            term = self.align * supervised_contrastive(*together, self.temperature)
            return term + agree * self._agreement(out.logits, part.y, teacher[chosen]) if agree else term

        return [with_anchors]

    def _agreement(self, logits: Tensor, labels: Tensor, teacher: Tensor) -> Tensor:
        """h CE(z, y) + (1 - h) KD(Z, z); with reduction "elements" KD / K."""
        scale = logits.shape[1] if self.reduction == "elements" else 1
        soft = distillation(logits, teacher, self.soften) / scale
        return self.hard * cross_entropy(logits, labels) + (1 - self.hard) * soft

    def server(self, state: ServerState, updates: Updates, net: Net, rng: Stream) -> ServerState:
        """Keeps the last logits of every site: the model of an absent site does not change."""
        sent = {update.site: update.trees["logits"]["own"] for update in updates if update.trees}
        trees = {"logits": {**state.trees.get("logits", {}), **sent}} if sent else state.trees
        return replace(state, trees=trees, round=state.round + 1)

    def model_at(self, params: Params, kept: SiteState) -> Params:
        return kept.trees.get("model") or params
