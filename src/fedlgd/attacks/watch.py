"""The attacker of a shadow federation: statistics of all attacked images, from everything that leaves the site."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedlgd.attacks import signals
from fedlgd.attacks.pool import CandidatePool
from fedlgd.attacks.sent import SentImages, agreement, class_means_in, images_in, is_whole
from fedlgd.attacks.signals import ForwardPass, confidence, forward_pass
from fedlgd.core.losses import class_means
from fedlgd.core.types import Hello, LabelledSet, Params, SiteState, Update, VirtualSet
from fedlgd.data.federation import Federation
from fedlgd.distill.augment import Transform
from fedlgd.dp.release import Told
from fedlgd.engines.site import Answer, Task
from fedlgd.engines.storage import RamStates
from fedlgd.engines.wire import sent_tensors
from fedlgd.methods.protocol import Net, Stream
from fedlgd.rundir.disclosure import UNDECLARED, declared_kind

POPULATION_SIZE = 500  # test images that calibrate RMIA
WATCHED_ROUNDS = 6  # whose updates are attacked, evenly spaced
MIN_AGREEMENT = 0.5  # from which on class means are taken for those of features of a model
Draw = tuple[Net, Params, list[Transform]]
"""A network that all know, and its augmentation of each class."""
MAX_DRAWS = 10  # of them are attacked
WIDEST = ("uploads/nearest", "copies/nearest")  # of several uploads the nearest image of all counts


@dataclass(frozen=True, eq=False)
class Study:
    """The constants of an audit in all its federations: the attacked images as network input, and the references.

    all_layers: compare updates with the gradient of all layers, not of the last alone. shifted: ask the model about
    shifts of every image as well, for LiRA.
    """

    pool: CandidatePool
    attacked: LabelledSet
    population: LabelledSet
    reference: LabelledSet
    trace: signals.Tracer
    all_layers: bool = False
    shifted: bool = True

    @classmethod
    def of(cls, federation: Federation, pool: CandidatePool, net: Net, rng: Stream) -> "Study":
        """The references are test images of the site: members and others are compared with them alike."""
        test = federation.by_name[pool.site].test
        drawn = torch.randperm(len(test), generator=rng.generator("population"))
        attacked, reference = pool.data.take(slice(None)), test.take(drawn)
        population = LabelledSet(reference.x[:POPULATION_SIZE], reference.y[:POPULATION_SIZE])
        return cls(pool, attacked, population, reference, signals.Tracer.of(net, attacked, reference, rng))

    def of_images(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The statistics of every attacked image against a set of images."""
        x, y = self.attacked.x, self.attacked.y
        return {"trace": self.trace(images, labels), "nearest": signals.nearest_correlation(x, y, images, labels)}

    def of_upload(self, sent: SentImages) -> dict[str, Tensor]:
        """The same against images that a site sent. A copy is one with any label; class means need labels."""
        nearest = signals.nearest_correlation(self.attacked.x, self.attacked.y, sent.x, None)
        trace = {} if sent.labels is None else {"trace": self.trace(sent.x, sent.labels)}
        return {**trace, "nearest": nearest}

    def of_means(self, net: Net, params: Params, features: Tensor, means: Tensor) -> Tensor:
        """The side of class means on which an attacked image lies, seen from the means of test images."""
        y, classes = self.attacked.y, torch.arange(net.classes)
        others = forward_pass(net, params, self.population.x).features
        reference = class_means(others, self.population.y, classes)
        return signals.traced(features, means[y], reference[y]).nan_to_num()

    def of_draw(self, draw: Draw, means: Tensor) -> Tensor:
        """The same under a network and augmentations of each class that all know."""
        net, params, transforms = draw
        features, others = (
            forward_pass(net, params, changed(data, transforms)).features
            for data in (self.attacked, self.population)
        )
        reference = class_means(others, self.population.y, torch.arange(net.classes))
        return signals.traced(features, means[self.attacked.y], reference[self.attacked.y]).nan_to_num()

    def of_model(self, net: Net, params: Params) -> dict[str, Tensor]:
        """phi of every query, the probability of the true label, and that of the population."""
        x, y = self.attacked.x, self.attacked.y
        asked = signals.queries(x) if self.shifted else [x]
        phi = torch.stack([confidence(forward_pass(net, params, each).logits, y) for each in asked], 1)
        others = confidence(forward_pass(net, params, self.population.x).logits, self.population.y)
        return {"phi": phi, "p": phi[:, 0].sigmoid(), "population": others.sigmoid()}


def changed(data: LabelledSet, transforms: Sequence[Transform]) -> Tensor:
    """The images, those of each class with its augmentation."""
    x = data.x.clone()
    for k, transform in enumerate(transforms):
        if (own := data.y == k).any():
            x[own] = transform(x[own])
    return x


class Watch(RamStates):
    """Collects statistics: of messages as a tap, and of the virtual sets that the site stores.

    Several versions of a set, and several updates, are averaged. Noisy sums are seen in a simulation of privacy.
    first: the model before the first round. sends: what the method declares; its form decides what a part is.
    draws: the networks that all know, under which a method sends feature means.
    """

    def __init__(
        self,
        study: Study,
        net: Net,
        rounds: int,
        members: Tensor,
        first: Params,
        sends: Mapping[str, str],
        draws: Sequence[Draw] = (),
    ) -> None:
        super().__init__()
        self._draws = draws
        self._study, self._net, self._members, self._first, self._sends = study, net, members, first, sends
        self._rounds = {round(i * (rounds - 1) / max(1, WATCHED_ROUNDS - 1)) for i in range(WATCHED_ROUNDS)}
        self._found: dict[str, list[Tensor]] = {}
        self._attacked: dict[str, bool] = {}
        self._anchors = -1
        self._pass: tuple[Params, ForwardPass] | None = None
        self._sums = torch.zeros(0)

    @property
    def found(self) -> dict[str, Tensor]:
        stacked = {name: torch.stack(values) for name, values in self._found.items()}
        joined = {name: values.amax(0) if name in WIDEST else values.mean(0) for name, values in stacked.items()}
        return joined | ({"releases/filter": self._sums} if len(self._sums) else {})

    @property
    def unattacked(self) -> tuple[str, ...]:
        """The paths of what the site sent and no attack could read."""
        return tuple(sorted(path for path, attacked in self._attacked.items() if not attacked))

    def save(self, site: str, version: int, state: SiteState, before: int) -> None:
        super().save(site, version, state, before)
        if site == self._study.pool.site and state.virtual and state.virtual.round == version:
            self._images("virtual", state.virtual)

    def tap(self, task: Task, answer: Answer) -> None:
        target = task.site == self._study.pool.site
        if target and task.what == "train" and task.message and task.message.anchors:
            self.anchors(task.message.anchors)
        for message in (answer.hello, answer.update):
            if message is not None:
                for path, tensors in sent_tensors(message).items():
                    attacked = self._attack(path, tensors, task, message, target)
                    if target:
                        self._attacked[path] = self._attacked.get(path, False) or attacked

    def _attack(self, path: str, tensors: Params, task: Task, message: Hello | Update, target: bool) -> bool:
        """Attack a part of a message by what it is; False if no attack reads it, or not in this round.

        Other sites do not have the attacked images: their first weights and means are blind controls.
        """
        before = task.message.params if task.message else self._first
        watched = task.round < 0 or task.round in self._rounds if target else task.round <= 0
        kind = declared_kind(path, self._sends)
        if kind == "weights" or (path == "params" and kind == UNDECLARED):
            models = is_whole(before, self._first) and is_whole(tensors, self._first)
            return watched and models and self._update(target, before, tensors)
        if images := images_in(tensors, self._net, self._study.pool.data.scale):
            return target and self._upload(images)
        if self._draws and kind == "feature means":
            return self._drawn_means(target, next(iter(tensors.values())).double())
        if (means := class_means_in(tensors, self._net)) is not None and watched:
            after = message.params if isinstance(message, Update) else {}
            return self._means(target, means, [each for each in (after, before) if is_whole(each, self._first)])
        return False

    def anchors(self, anchors: VirtualSet) -> None:
        """Initial anchors are noise and tell nothing."""
        if anchors.round > self._anchors:
            self._anchors = anchors.round
            self._images("anchors", anchors.under(self._study.pool.data.scale))

    def _images(self, target: str, images: VirtualSet) -> None:
        self._add(target, self._study.of_images(images.data.x, images.data.y))

    def _add(self, target: str, statistics: Mapping[str, Tensor]) -> None:
        for name, values in statistics.items():
            self._found.setdefault(f"{target}/{name}", []).append(values)

    def _upload(self, images: SentImages) -> bool:
        self._add("uploads", self._study.of_upload(images))
        self.copy(len(images.x), images.labels is not None)
        return True

    def copy(self, count: int = 0, labelled: bool = True) -> None:
        """What an upload of `count` training images would show, as a control that must leak; 0: of half of them."""
        inside, attacked = self._members.nonzero().flatten(), self._study.attacked
        share = round((count or len(inside) / 2) * len(inside) / (len(inside) + len(self._study.pool.rest)))
        number = len(self._found.get("copies/nearest", ()))
        order = torch.randperm(len(inside), generator=Stream(number).generator("copies"))
        drawn = inside[order[: max(1, share)]]
        sent = SentImages(attacked.x[drawn], attacked.y[drawn] if labelled else None)
        self._add("copies", self._study.of_upload(sent))

    def release(self, told: Told) -> None:
        """Releases add up: their noise is independent."""
        values = signals.matched_filter(told, self._study.attacked.x, self._study.attacked.y)
        self._sums = self._sums + values if len(self._sums) else values

    def _update(self, target: bool, before: Params, after: Params) -> bool:
        attacked = self._study.attacked
        if self._study.all_layers:
            values: Tensor | None = signals.update_cosine_all_layers(self._net, before, after, attacked)
        else:
            values = signals.update_cosine(self._net, before, after, attacked, self._passed(before))
        if values is not None:
            self._add("updates" if target else "blind", {"along": values})
        return values is not None

    def _means(self, target: bool, sent: Tensor, models: Sequence[Params]) -> bool:
        """Means under one of these models; known images tell which. One other site is enough as a control."""
        if not target and "blind/means" in self._found:
            return False
        attacked, best = self._study.attacked, (MIN_AGREEMENT, torch.zeros(0))
        known = self._members if target else torch.ones_like(self._members)
        for model in models:
            features = forward_pass(self._net, model, attacked.x).features
            like = agreement(sent, features[known], attacked.y[known])
            if like > best[0]:
                best = like, self._study.of_means(self._net, model, features, sent)
        if len(best[1]):
            self._add("features" if target else "blind", {"trace" if target else "means": best[1]})
        return bool(len(best[1]))

    def _drawn_means(self, target: bool, sent: Tensor) -> bool:
        """Means under public networks: the traces under some of them, added up."""
        if not target and "blind/means" in self._found:
            return False
        seen = torch.stack([self._study.of_draw(*each) for each in zip(self._draws, sent, strict=False)]).sum(0)
        self._add("features" if target else "blind", {"trace" if target else "means": seen})
        return True

    def _passed(self, params: Params) -> ForwardPass:
        """Of the attacked images; all sites of a round start from the same model."""
        if self._pass is None or self._pass[0] is not params:
            self._pass = params, forward_pass(self._net, params, self._study.attacked.x)
        return self._pass[1]
