"""Shadow federations: the same run in which one site has a random half of its images, watched by an attacker.

`Pool` has the attacked images of the site. Every message passes the tap. Statistics of all attacked images are
computed while the federation runs and are stored in one file per federation, so that an interrupted audit goes on.
Virtual sets of other sites are cached.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedlgd.attacks.signals import (
    ForwardPass,
    Tracer,
    confidence,
    forward_pass,
    matched_filter,
    nearest_correlation,
    queries,
    update_cosine,
    update_cosine_all_layers,
)
from fedlgd.core.device import Place
from fedlgd.core.errors import RunError
from fedlgd.core.files import digest
from fedlgd.core.meter import tick
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import LabelledSet, Params, SiteState, VirtualSet
from fedlgd.data.federation import Federation
from fedlgd.dp.release import Told
from fedlgd.engines.loop import serve
from fedlgd.engines.server import Work
from fedlgd.engines.site import Answer, Sites, Task
from fedlgd.engines.storage import RamStates, RamStorage
from fedlgd.engines.wire import read_message, write_message
from fedlgd.methods.common import Training, enrol
from fedlgd.rundir.records import RoundRecord
from fedlgd.runs.config import Config
from fedlgd.runs.jobs import run_jobs

Canaries = Literal["none", "mislabelled", "noise"]
POPULATION_SIZE = 500  # test images that calibrate RMIA
WATCHED_ROUNDS = 6  # whose updates are attacked, evenly spaced


@dataclass(frozen=True, eq=False)
class CandidatePool:
    """The attacked images of a site, in an order that depends only on their content, and which are canaries.

    rest: the other training images of a large site, which every federation has.
    """

    site: str
    data: LabelledSet
    flipped: Tensor
    rest: LabelledSet
    canaries: Canaries = "mislabelled"

    @property
    def parts(self) -> dict[str, NDArray[np.bool_]]:
        """What is scored apart: the images, and the canaries, if any."""
        flipped = self.flipped.numpy()
        return {"": ~flipped} | ({f", {self.canaries}": flipped} if flipped.any() else {})

    def __len__(self) -> int:
        return len(self.data)


def draw_pool(
    federation: Federation, site: str, size: int, flip: float, rng: Stream, canaries: Canaries = "mislabelled"
) -> CandidatePool:
    """At most `size` training images; a share `flip` of them gets another label, or becomes noise as well."""
    train = federation.by_name[site].train
    keys = [digest(x.numpy().tobytes(), bytes([int(y) % 256])) for x, y in zip(train.x, train.y, strict=True)]
    order = torch.tensor(sorted(range(len(keys)), key=keys.__getitem__))
    drawn = order[torch.randperm(len(order), generator=rng.generator("pool"))]
    chosen, kept = drawn[:size], drawn[size:]
    labels, classes = train.y[chosen].clone(), len(federation.classes)
    flipped = torch.rand(len(chosen), generator=rng.generator("canaries")) < flip
    others = torch.randint(1, classes, (len(chosen),), generator=rng.generator("labels"))
    labels[flipped] = (labels + others)[flipped] % classes
    images = train.x[chosen]
    if canaries == "noise":
        pixels = torch.randint(256, images.shape, generator=rng.generator("pixels"), dtype=torch.uint8)
        images[flipped] = pixels[flipped]
    rest = LabelledSet(train.x[kept], train.y[kept], train.scale)
    return CandidatePool(site, LabelledSet(images, labels, train.scale), flipped, rest, canaries)


def members_in(pool: CandidatePool, federation: int, rng: Stream) -> Tensor:
    """Every image is a member with probability 1/2, independently."""
    return torch.rand(len(pool), generator=rng.generator("members", federation)) < 0.5


def halved(
    federation: Federation, pool: CandidatePool, members: Tensor, on_release: Callable[[Any], None] | None = None
) -> Federation:
    """The federation in which the site has only the members of its attacked images, and the rest."""
    data, rest = pool.data, pool.rest
    train = LabelledSet(torch.cat([data.x[members], rest.x]), torch.cat([data.y[members], rest.y]), data.scale)
    half = replace(federation.by_name[pool.site], train=train, on_release=on_release)
    return replace(federation, sites=tuple(half if site.name == pool.site else site for site in federation.sites))


@dataclass(frozen=True, eq=False)
class Study:
    """What is the same in all federations of an audit: the attacked images as network input, and the references."""

    pool: CandidatePool
    attacked: LabelledSet
    population: LabelledSet
    reference: LabelledSet
    trace: Tracer
    all_layers: bool = False
    shifted: bool = True

    @classmethod
    def of(
        cls,
        federation: Federation,
        pool: CandidatePool,
        net: Net,
        rng: Stream,
        all_layers: bool = False,
        shifted: bool = True,
    ) -> "Study":
        """The references are test images of the site: members and others are compared with them alike.

        shifted: ask the model about shifts of every image as well, for LiRA.
        """
        test = federation.by_name[pool.site].test
        drawn = torch.randperm(len(test), generator=rng.generator("population"))
        attacked, reference = pool.data.take(slice(None)), test.take(drawn)
        population = LabelledSet(reference.x[:POPULATION_SIZE], reference.y[:POPULATION_SIZE])
        trace = Tracer.of(net, attacked, reference, rng)
        return cls(pool, attacked, population, reference, trace, all_layers, shifted)

    def of_images(self, images: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """The statistics of every attacked image against a set of images."""
        x, y = self.attacked.x, self.attacked.y
        return {"trace": self.trace(images, labels), "nearest": nearest_correlation(x, y, images, labels)}

    def of_model(self, net: Net, params: Params) -> dict[str, Tensor]:
        """phi of every query, the probability of the true label, and that of the population."""
        x, y = self.attacked.x, self.attacked.y
        asked = queries(x) if self.shifted else [x]
        phi = torch.stack([confidence(forward_pass(net, params, each).logits, y) for each in asked], 1)
        others = confidence(forward_pass(net, params, self.population.x).logits, self.population.y)
        return {"phi": phi, "p": phi[:, 0].sigmoid(), "population": others.sigmoid()}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observations:
    """What an attacker of one federation has: statistics by "target/name", and the accuracy of the model."""

    members: Tensor
    statistics: dict[str, Tensor]
    accuracy: float | None = None


def tapped(work: Work, on: Callable[[Task, Answer], None]) -> Work:
    """The same work; `on` sees every task with its answer, as the server does."""

    def work_and_tell(tasks: Iterator[Task]) -> Iterator[Answer]:
        asked: dict[str, Task] = {}

        def noted() -> Iterator[Task]:
            for task in tasks:
                asked[task.site] = task
                yield task

        for answer in work(noted()):
            on(asked[answer.site], answer)
            yield answer

    return work_and_tell


class Watch(RamStates):
    """Collects statistics: of messages as a tap, and of the virtual sets that the site stores.

    Several versions of a set, and several updates, are averaged. Noisy sums are seen in a simulation of privacy.
    """

    def __init__(self, study: Study, net: Net, rounds: int) -> None:
        super().__init__()
        self._study, self._net = study, net
        self._rounds = {round(i * (rounds - 1) / max(1, WATCHED_ROUNDS - 1)) for i in range(WATCHED_ROUNDS)}
        self._found: dict[str, list[Tensor]] = {}
        self._anchors = -1
        self._pass: tuple[Params, ForwardPass] | None = None
        self._sums = torch.zeros(0)

    @property
    def found(self) -> dict[str, Tensor]:
        means = {name: torch.stack(values).mean(0) for name, values in self._found.items()}
        return means | ({"releases/filter": self._sums} if len(self._sums) else {})

    def save(self, site: str, version: int, state: SiteState, before: int) -> None:
        super().save(site, version, state, before)
        if site == self._study.pool.site and state.virtual and state.virtual.round == version:
            self.images("virtual", state.virtual)

    def tap(self, task: Task, answer: Answer) -> None:
        message, target = task.message, task.site == self._study.pool.site
        if task.what != "train" or message is None:
            return
        if target and message.anchors:
            self.anchors(message.anchors)
        if answer.update and (target and task.round in self._rounds):
            self._update("updates/along", message.params, answer.update.params)
        elif answer.update and task.round == 0:  # of sites that do not have these images
            self._update("blind/along", message.params, answer.update.params)

    def anchors(self, anchors: VirtualSet) -> None:
        """Initial anchors are noise and tell nothing."""
        if anchors.round > self._anchors:
            self._anchors = anchors.round
            self.images("anchors", anchors.under(self._study.pool.data.scale))

    def images(self, target: str, images: VirtualSet) -> None:
        for name, values in self._study.of_images(images.data.x, images.data.y).items():
            self._found.setdefault(f"{target}/{name}", []).append(values)

    def release(self, told: Told) -> None:
        """Releases add up: their noise is independent."""
        values = matched_filter(told, self._study.attacked.x, self._study.attacked.y)
        self._sums = self._sums + values if len(self._sums) else values

    def _update(self, name: str, before: Params, after: Params) -> None:
        attacked = self._study.attacked
        if self._study.all_layers:
            values: Tensor | None = update_cosine_all_layers(self._net, before, after, attacked)
        else:
            values = update_cosine(self._net, before, after, attacked, self._passed(before))
        if values is not None:
            self._found.setdefault(name, []).append(values)

    def _passed(self, params: Params) -> ForwardPass:
        """Of the attacked images; all sites of a round start from the same model."""
        if self._pass is None or self._pass[0] is not params:
            self._pass = params, forward_pass(self._net, params, self._study.attacked.x)
        return self._pass[1]


def run_watched(
    config: Config,
    federation: Federation,
    net: Net,
    study: Study,
    members: Tensor,
    on_round: Callable[[RoundRecord], None] = lambda _: None,
) -> Observations:
    """Run a federation and return what its attacker has seen."""
    method, plan, memory = config.method, config.plan, RamStorage()
    net = method.adapt(net)
    watch = Watch(study, net, plan.rounds)
    half = halved(federation, study.pool, members, watch.release)
    work = tapped(partial(map, Sites(method, half, net, plan, watch, Place())), watch.tap)
    for record in serve(method, half, net, plan, memory, work, Place()):
        on_round(record)
    state = memory.server()
    assert state is not None
    if state.anchors:
        watch.anchors(state.anchors)
    model = {f"model/{name}": values for name, values in study.of_model(net, state.params).items()}
    accuracy = fmean(score.accuracy for score in record.scores.values())
    return Observations(members=members, statistics=watch.found | model, accuracy=accuracy)


def distil_watched(config: Config, federation: Federation, net: Net, study: Study, members: Tensor) -> Observations:
    """Only the first virtual set of the site; no federation is run."""
    site = halved(federation, study.pool, members).by_name[study.pool.site]
    method = config.method
    assert isinstance(method, Training)
    virtual = enrol(method, site, net, Stream(config.plan.seed).at("enrol", site.name))[0].virtual
    assert virtual is not None
    found = study.of_images(virtual.data.x, virtual.data.y)
    return Observations(members=members, statistics={f"virtual/{name}": values for name, values in found.items()})


@dataclass(frozen=True, slots=True)
class Shadow:
    """One federation to run: where its statistics are stored, and how many ticks of progress it has."""

    file: Path
    run: Callable[[Callable[..., None]], Observations]
    ticks: int

    @property
    def title(self) -> str:
        return f"shadow federation {self.file.stem}"

    @property
    def group(self) -> Path:
        """No other federation has its virtual sets."""
        return self.file

    def work(self, on_round: Callable[..., None]) -> None:
        write_message(self.file, self.run(on_round), private=True)

    def read(self) -> Observations:
        return read_message(self.file, Observations)


def run_shadows(shadows: Sequence[Shadow], jobs: int) -> None:
    """Run what is not stored yet, `jobs` federations at a time in processes with one thread each."""
    left = [shadow for shadow in shadows if not shadow.file.exists()]
    total, done = sum(shadow.ticks for shadow in left), 0

    def advance(*_: object) -> None:
        nonlocal done
        done += 1
        tick("shadow federations", min(done, total), total)

    if jobs == 1:
        for shadow in left:
            shadow.work(advance)
        return
    with closing(run_jobs(left, jobs, Shadow.work, advance)) as running:
        for ended in running:
            if ended.error:
                raise RunError("shadow-failed", error=ended.error)
