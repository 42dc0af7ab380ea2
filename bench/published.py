"""A simple implementation of the published procedure, with the settings and inefficiencies of the released code.

It is our own code. It has the expensive parts of the released code: a loop over classes, a new network for every
step of initial matching, 256 real images per class and step, unused weight gradients, an unneeded autograd graph,
features of anchors at every step, and images that are evaluated twice. It omits decoding the images again in every
selected round, and seeds from the clock.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

Transform = Callable[[Tensor], Tensor]
State = dict[str, Tensor]

REAL_PER_CLASS = 256
IMAGE_LR, IMAGE_MOMENTUM = 1.0, 0.5
BATCH = 32


class ConvNet(nn.Module):
    """3 x [conv 3x3 with bias, GroupNorm with one channel per group, ReLU, average pool], then a linear layer."""

    def __init__(self, shape: tuple[int, int, int], classes: int, width: int = 128) -> None:
        super().__init__()
        channels, height, side = shape
        layers: list[nn.Module] = []
        for i in range(3):
            layers += [nn.Conv2d(width if i else channels, width, 3, padding=1), nn.GroupNorm(width, width)]
            layers += [nn.ReLU(inplace=True), nn.AvgPool2d(2)]
        self.blocks = nn.Sequential(*layers)
        self.head = nn.Linear(width * (height // 8) * (side // 8), classes)

    def embed(self, x: Tensor) -> Tensor:
        features: Tensor = self.blocks(x)
        return features.flatten(1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.embed(x)
        return features, self.head(features)


def optimiser(images: Tensor) -> torch.optim.SGD:
    return torch.optim.SGD([images], lr=IMAGE_LR, momentum=IMAGE_MOMENTUM)


def random_net(shape: tuple[int, int, int], classes: int, width: int) -> ConvNet:
    """A new frozen network; initial matching draws one for every step."""
    return ConvNet(shape, classes, width).requires_grad_(False)


def draw_real(
    x: Tensor, members: Sequence[Tensor], generator: Generator, count: int = REAL_PER_CLASS
) -> list[Tensor]:
    """`count` real images of each class."""
    return [x[pool[torch.randperm(len(pool), generator=generator)[:count]]] for pool in members]


def dm_step(
    images: Tensor, step: torch.optim.SGD, net: ConvNet, real: Sequence[Tensor], transforms: Sequence[Transform]
) -> float:
    """One step on sum_k || mean psi(A_k x) - mean psi(A_k v) ||^2. Weight gradients only if required."""
    per_class = len(images) // len(real)
    loss = torch.zeros((), dtype=images.dtype)
    for k, transform in enumerate(transforms):
        virtual = transform(images[k * per_class : (k + 1) * per_class])
        target = net.embed(transform(real[k])).detach()
        loss = loss + (target.mean(0) - net.embed(virtual).mean(0)).square().sum()
    step.zero_grad()
    loss.backward()
    step.step()
    return loss.item()


def gm_step(images: Tensor, labels: Tensor, step: torch.optim.SGD, net: ConvNet, target: Sequence[Tensor]) -> float:
    """One step on Dist(grad CE(images), target), through the gradient of all weights."""
    loss = F.cross_entropy(net(images)[1], labels)
    gradient = torch.autograd.grad(loss, list(net.parameters()), create_graph=True)
    dist = distance(gradient, target)
    step.zero_grad()
    dist.backward()
    step.step()
    return dist.item()


def distance(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """sum over rows of 1 - cosine; vectors (biases, normalisation) are ignored."""
    total = torch.zeros((), dtype=a[0].dtype)
    for s, t in zip(a, b, strict=True):
        if s.ndim > 1:
            s, t = s.flatten(1), t.flatten(1)
            total = total + (1 - (s * t).sum(1) / (s.norm(dim=1) * t.norm(dim=1) + 1e-6)).sum()
    return total


def plain_epoch(net: ConvNet, x: Tensor, y: Tensor, lr: float, order: Tensor) -> None:
    """SGD on the cross-entropy of local and global virtual images."""
    step = torch.optim.SGD(net.parameters(), lr=lr)
    for index in order.split(BATCH):
        step.zero_grad()
        loss = F.cross_entropy(net(x[index])[1], y[index])
        loss.backward()
        loss.item()
        step.step()


def regularised_epoch(
    net: ConvNet, x: Tensor, y: Tensor, anchors: Tensor, labels: Tensor, weight: float, lr: float, order: Tensor
) -> None:
    """SGD on CE(batch) + weight * L_Con(batch + all anchors), with features of all anchors at every step."""
    step = torch.optim.SGD(net.parameters(), lr=lr)
    for index in order.split(BATCH):
        step.zero_grad()
        features, logits = net(x[index])
        every = torch.cat([features, net.embed(anchors)])
        pull = contrastive(every, torch.cat([y[index], labels]), 0.07)
        loss = F.cross_entropy(logits, y[index]) + weight * pull
        loss.backward(retain_graph=True)
        loss.item()
        step.step()


def contrastive(features: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """mean_j -1/|P(j)| sum_p log softmax of the similarities to all others."""
    z = features / features.norm(dim=1, keepdim=True)
    similarity = z @ z.T / temperature
    others = 1 - torch.eye(len(z), dtype=z.dtype)
    positive = (labels[:, None] == labels).to(z) * others
    shifted = similarity - similarity.max(dim=1, keepdim=True).values.detach()
    log_p = shifted - (shifted.exp() * others).sum(1, keepdim=True).log()
    losses: Tensor = -(positive * log_p).sum(1) / positive.sum(1).clamp(min=1)
    return losses.mean()


def evaluate(net: ConvNet, x: Tensor, y: Tensor) -> tuple[float, float]:
    """Loss and accuracy in batches of 32; each batch builds an autograd graph."""
    net.eval()
    loss, correct = 0.0, 0
    for index in torch.arange(len(y)).split(BATCH):
        logits = net(x[index])[1]
        loss += F.cross_entropy(logits, y[index]).item()
        correct += int((logits.max(1)[1] == y[index]).sum())
    return loss / -(-len(y) // BATCH), correct / len(y)


@torch.no_grad()
def aggregate(server: ConvNet, models: Sequence[ConvNet]) -> None:
    """Average the weights of the sites, and copy them to the models of the server and of each site."""
    for key in server.state_dict():
        mean = torch.zeros_like(server.state_dict()[key])
        for model in models:
            mean += (1 / len(models)) * model.state_dict()[key]
        server.state_dict()[key].copy_(mean)
        for model in models:
            model.state_dict()[key].copy_(server.state_dict()[key])


def save_and_load(path: Path, state: State) -> State:
    """torch.save and torch.load, without fsync and verification."""
    torch.save(state, path)
    loaded: State = torch.load(path, weights_only=True)
    return loaded


@contextmanager
def as_shipped() -> Iterator[None]:
    """Anomaly detection of autograd, which the released code leaves enabled."""
    with torch.autograd.set_detect_anomaly(True):
        yield
