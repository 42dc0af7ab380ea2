"""Signals of an attack: numbers of an image x with label y under a model, a set of images, or an update."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedlgd.core.losses import class_means, cross_entropy
from fedlgd.core.net import Net
from fedlgd.core.types import LabelledSet, Params, Stream
from fedlgd.dp.release import Told, clip_rows

BATCH_SIZE = 256
TRACE_NETS = 12  # random networks of `trace`
TRACE_NET_WIDTH = 16
QUERY_SHIFT = 2  # pixels


class ForwardPass(NamedTuple):
    """Features psi(x) and logits of all images, in float64."""

    features: Tensor
    logits: Tensor


def forward_pass(net: Net, params: Params, x: Tensor) -> ForwardPass:
    """A pass in eval mode; only the logits of the classes."""
    parts = [net.frozen(params, part) for part in x.split(BATCH_SIZE)]
    features, logits = (torch.cat(each).double() for each in zip(*parts, strict=True))
    return ForwardPass(features, logits[:, : net.classes])


def confidence(logits: Tensor, y: Tensor) -> Tensor:
    """phi = z_y - log sum_{j != y} exp z_j:  the logit of the probability of the true label."""
    own = F.one_hot(y, logits.shape[1]).bool()
    return logits[own] - logits.masked_fill(own, -torch.inf).logsumexp(1)


def queries(x: Tensor) -> Iterator[Tensor]:
    """The images and their shifts by two pixels in four directions. No flips: a digit has none."""
    yield x
    padded = F.pad(x, (QUERY_SHIFT,) * 4, mode="replicate")
    for down, right in (
        (0, QUERY_SHIFT),
        (2 * QUERY_SHIFT, QUERY_SHIFT),
        (QUERY_SHIFT, 0),
        (QUERY_SHIFT, 2 * QUERY_SHIFT),
    ):
        yield padded[..., down : down + x.shape[2], right : right + x.shape[3]]


class GradientNorms(NamedTuple):
    """Of the cross-entropy of each image, in eval mode: the norm over all parameters, that of the last layer
    ||p - e_y|| sqrt(||psi||^2 + 1), and the loss itself."""

    norm: Tensor
    last_layer: Tensor
    loss: Tensor


def gradient_norms(net: Net, params: Params, data: LabelledSet) -> GradientNorms:
    """One image at a time."""
    seen = forward_pass(net, params, data.x)
    norms = [each.norm() for each in single_gradients(net, params, data)]
    error = seen.logits.softmax(1) - F.one_hot(data.y, net.classes)
    last = error.norm(dim=1) * (seen.features.square().sum(1) + 1).sqrt()
    return GradientNorms(torch.stack(norms), last, F.cross_entropy(seen.logits, data.y, reduction="none"))


def single_gradients(net: Net, params: Params, data: LabelledSet) -> Iterator[Tensor]:
    """The gradient of the cross-entropy of each image by all trainable parameters, in the order of `params`."""
    for x, y in zip(data.x.split(1), data.y.split(1), strict=True):
        leaves = {k: v.detach().requires_grad_(k in net.trainable) for k, v in params.items()}
        wanted = [v for v in leaves.values() if v.requires_grad]
        found = torch.autograd.grad(cross_entropy(net(leaves, x).logits, y), wanted, materialize_grads=True)
        yield torch.cat([g.double().flatten() for g in found])


def update_cosine_all_layers(net: Net, before: Params, after: Params, data: LabelledSet) -> Tensor:
    """c = cos(grad l(x; theta_t), theta_t - theta_{c,t}) over all layers, one image at a time."""
    moved = torch.cat([(before[k] - after[k]).double().flatten() for k in before if k in net.trainable])
    return torch.stack([F.cosine_similarity(g, moved, dim=0) for g in single_gradients(net, before, data)])


def update_cosine(
    net: Net, before: Params, after: Params, data: LabelledSet, seen: ForwardPass | None = None
) -> Tensor | None:
    """c = cos(grad l(x; theta_t), theta_t - theta_{c,t}) over the last layer, whose gradient is (p - e_y) (psi, 1).

    None if the network does not end in a linear layer on its features. `seen`: the pass of the images, if known.
    """
    weight = last_layer(net, before)
    if weight is None:
        return None
    moved = (before[weight] - after[weight]).double()[: net.classes]
    bias = weight.removesuffix("weight") + "bias"
    shift = (before[bias] - after[bias]).double()[: net.classes] if bias in before else moved.new_zeros(len(moved))
    seen = seen or forward_pass(net, before, data.x)
    error = seen.logits.softmax(1) - F.one_hot(data.y, net.classes)
    product = ((error @ moved) * seen.features).sum(1) + error @ shift
    length = error.norm(dim=1) * (seen.features.square().sum(1) + (bias in before)).sqrt()
    cosine: Tensor = product / (length * (moved.square().sum() + shift.square().sum()).sqrt()).clamp(min=1e-30)
    return cosine


def last_layer(net: Net, params: Params) -> str | None:
    """The name of the weights from the features to the logits."""
    shapes = {k: tuple(v.shape) for k, v in params.items() if k in net.trainable and k.endswith("weight")}
    found = [k for k, shape in shapes.items() if len(shape) == 2 and shape[1] == net.features]
    return found[-1] if found else None


def nearest_correlation(x: Tensor, y: Tensor, images: Tensor, labels: Tensor | None) -> Tensor:
    """max over the images v of the same class (without labels: over all) of corr(x, v) - 1.

    Contrast and brightness do not count.
    """
    mine, others = (F.normalize(t.flatten(1) - t.flatten(1).mean(1, keepdim=True), dim=1) for t in (x, images))
    alike = mine @ others.T
    if labels is not None:
        alike = alike.masked_fill(y[:, None] != labels, -1.0)
    return alike.amax(1).double() - 1


def traced(features: Tensor, release: Tensor, reference: Tensor) -> Tensor:
    """<f(x) - r_y, v_y - r_y>  (Homer et al., 2008; Dwork et al., 2015): large if x helped to make the mean v."""
    return ((features - reference) * (release - reference)).sum(1)


def matched_filter(told: Told, x: Tensor, y: Tensor) -> Tensor:
    r"""Matched filter of a noisy class sum S, the most powerful linear test for u in Gaussian noise:

    <u, S_y> / (sigma C)^2,   u = clip_C(psi(A_y x) - c_y);   0 for a class that was not released
    """
    found = torch.zeros(len(y), dtype=torch.float64)
    for i, k in enumerate(told.classes):
        mine = (y == k).nonzero().flatten()
        for index in mine.split(BATCH_SIZE) if len(mine) else ():
            with torch.no_grad():
                features = told.net.by_batch(told.params, told.transforms[i](x[index])).features.double()
            u = clip_rows(features - told.centre[i].double(), told.bound)
            found[index] = (u @ told.sums[i]) / (told.level.sigma * told.bound) ** 2
    return found


@dataclass(frozen=True, eq=False)
class Tracer:
    """`trace` of images under random networks of the auditor's own seed:

    T(x) = sum_j < f_j(x) - r_{j,y}, v_{j,y} - r_{j,y} >,  v: mean of released images of y, r: of reference images
    """

    nets: Sequence[tuple[Net, Params]]
    y: Tensor
    features: Sequence[Tensor]
    references: Sequence[Tensor]

    @classmethod
    def of(cls, net: Net, data: LabelledSet, reference: LabelledSet, rng: Stream) -> "Tracer":
        """The features of the attacked images and the reference means are the same for every release."""
        base = net.base.narrow(TRACE_NET_WIDTH) if net.base.narrow else net.base
        nets = [(base, base.init(rng.at("trace", j))) for j in range(TRACE_NETS)]
        features = [forward_pass(*each, data.x).features for each in nets]
        classes = torch.arange(net.classes)
        means = [class_means(forward_pass(*each, reference.x).features, reference.y, classes) for each in nets]
        return cls(nets, data.y, features, means)

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """T of every attacked image; 0 for a class without released or reference images."""
        total = torch.zeros(len(self.y), dtype=torch.float64)
        for each, features, reference in zip(self.nets, self.features, self.references, strict=True):
            means = class_means(forward_pass(*each, images).features, labels, torch.arange(len(reference)))
            total += traced(features, means[self.y], reference[self.y]).nan_to_num()
        return total
