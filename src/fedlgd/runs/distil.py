"""Virtual sets as a result of their own: made, stored, and scored beside real images.

    config.toml      the settings that the sets depend on
    distilled.json   a hash of the images, and the scores of each finished site
    <site>.npz       the virtual set (see `distill.files`); <site>.png shows it, one row per class

A run can start from them: `--set distil.start=FOLDER/`.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from fedlgd.core.device import Place
from fedlgd.core.errors import RunError
from fedlgd.core.files import digest, read_json, reading, safe_name, write_atomic, write_json, writing
from fedlgd.core.meter import metered
from fedlgd.core.net import Net
from fedlgd.core.train import Local, score, sgd
from fedlgd.core.types import Cache, LabelledSet, Site, Stream, VirtualSet
from fedlgd.data.federation import Federation
from fedlgd.distill.distribution import first_set, first_set_key
from fedlgd.distill.files import write_set
from fedlgd.distill.init import from_real, short_classes
from fedlgd.distill.settings import Distil
from fedlgd.methods.common import plain
from fedlgd.rundir.results import write_class_sheet
from fedlgd.runs.config import Config

TRAINING = Local(batch=256, lr=0.01, momentum=0.9, weight_decay=0.0005)
"""How networks are trained for the scores: as is usual for distilled sets, without augmentation."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Accuracy on a site's test images of a network trained on the virtual images, on as many randomly chosen real
    images, and on all real images; from the same initial weights, with the same number of SGD steps."""

    virtual: float
    picks: float
    real: float
    steps: int


@dataclass(frozen=True, slots=True)
class Distilled:
    """The virtual set of one site: its file, its size, what it cost, and its scores."""

    site: str
    file: str
    images: int
    cpu: float
    scores: Scores | None = None


def distil_all(
    config: Config, how: Distil, federation: Federation, net: Net, out: Path, steps: int, place: Place = Place()
) -> Iterator[Distilled]:
    """The virtual set of each site. Sets come from the cache and scores from `out` if they are there already.

    `steps` of SGD for each score; 0: no scores. The random numbers are those of a run with the same seed.
    """
    text, data = config.toml(), federation.digest
    done = _open(out, text, data)
    root = Stream(config.plan.seed)
    for name, site in federation.by_name.items():
        before = done.get(name)
        with metered() as meter:
            virtual = place.do(partial(first_set, site, net, how), root.at("enrol", name, "distil"))
        made = Distilled(name, str(_write(out, site, virtual)), len(virtual), meter.cpu["distil"])
        if before and before.scores and before.scores.steps == steps:
            made = before
        elif steps:
            compare = partial(scores, site, virtual, net, steps)
            made = replace(made, scores=place.do(compare, root.at("score", name)))
        done[name] = made
        sites = {each: asdict(value) for each, value in done.items()}
        write_json(out / "distilled.json", {"config": digest(text.encode()), "data": data, "sites": sites})
        yield made


def _open(out: Path, text: str, data: str) -> dict[str, Distilled]:
    """The finished sites in `out`, which must belong to the same settings and images."""
    file = out / "distilled.json"
    if not file.exists():
        with writing(out):
            write_atomic(out / "config.toml", text.encode())
        return {}
    stored = read_json(file)
    with reading(file):
        if (stored["config"], stored["data"]) != (digest(text.encode()), data):
            raise RunError("other-sets", folder=str(out))
        return msgspec.convert(stored["sites"], dict[str, Distilled])


def _write(out: Path, site: Site, virtual: VirtualSet) -> Path:
    """The set and its picture."""
    stem = safe_name(site.name)
    write_class_sheet(out, out / f"{stem}.png", site.train.scale.to_pixels(virtual.images), virtual.labels)
    return write_set(out / f"{stem}.npz", virtual, site.train.scale)


def scores(site: Site, virtual: VirtualSet, net: Net, steps: int, rng: Stream) -> Scores:
    """Train and test the three networks."""
    classes, numbers = virtual.labels.unique(return_counts=True)
    picks = from_real(site.train, classes.tolist(), numbers.tolist(), rng.generator("picks"))
    sets = (virtual.data, LabelledSet(picks, virtual.labels), site.train)
    on_virtual, on_picks, on_all = (_accuracy(each, site, net, steps, rng) for each in sets)
    return Scores(virtual=on_virtual, picks=on_picks, real=on_all, steps=steps)


def _accuracy(data: LabelledSet, site: Site, net: Net, steps: int, rng: Stream) -> float:
    how, start = replace(TRAINING, steps=steps), net.init(rng.at("init"))
    trained = sgd(net, start, len(data), plain(net, data), how, rng.at("train"))
    return score(net, trained.params, site.test, net.classes).accuracy


def seconds_left(config: Config, how: Distil, federation: Federation, net: Net, place: Place = Place()) -> float:
    """Estimated seconds for the virtual sets that are not cached, from a few steps at one site."""
    root, small = Stream(config.plan.seed), how.shrunk()
    left = [
        site
        for site in federation.sites
        if site.cache.get(first_set_key(site, net, how, root.at("enrol", site.name, "distil"))) is None
    ]
    if not left or not small.steps:
        return 0.0
    site, rng = sorted(left, key=lambda each: len(each.train))[len(left) // 2], root.at("estimate")
    work = partial(first_set, replace(site, cache=Cache()), net, small)
    place.do(work, rng.at("warm"))  # the first steps are slower
    with metered() as meter:
        place.do(work, rng)
    return len(left) * meter.seconds["distil"] * how.steps / small.steps


def short_at(method: Any, site: Site) -> dict[str, int]:
    """The classes of which a site has too few images for `distil.per_class` virtual ones, and how many it has.

    None with differential privacy, which leaves small classes out by noisy counts, nor if such a run is refused.
    """
    distil: Distil | None = getattr(method, "distil", None)
    if method.train_on == "real" or distil is None or distil.private.on or distil.short == "refuse":
        return {}
    few = short_classes(site.train, len(site.classes), distil)
    return {site.classes[k]: count for k, count in few.items()}
