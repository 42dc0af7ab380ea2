"""Similarity of the sites under the global model, for real and virtual images: `analysis.json`.

It is measured after a commit, outside the timed phases, on a few hundred images. Personalised methods have no
common features and therefore no such file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedlgd.core.errors import RunError
from fedlgd.core.files import read_json, write_json
from fedlgd.core.losses import class_means
from fedlgd.core.net import Net
from fedlgd.core.rng import Stream
from fedlgd.core.types import LabelledSet, Params, VirtualSet, mean_scale
from fedlgd.data.federation import Federation
from fedlgd.engines.storage import States, Storage
from fedlgd.rundir.records import RoundRecord
from fedlgd.runs.shift import between

SITES = 24  # the first by name; more would take too much time and memory
IMAGES = 400  # real images in total
POINTS = 400  # points of the map
PERPLEXITY = 30
PER_CLASS = 10  # virtual images in the mean of a class
BATCH = 256


@dataclass(frozen=True, slots=True, eq=False)
class Subject:
    """The run to analyse."""

    federation: Federation
    net: Net
    memory: Storage
    states: States
    rng: Stream


class Seen(NamedTuple):
    """Features of some images, and their classes."""

    features: Tensor
    labels: Tensor


def analysed(
    rounds: Iterator[RoundRecord], committed: Sequence[RoundRecord], subject: Subject, file: Path
) -> Iterator[RoundRecord]:
    """The same records, with an analysis between rounds; `committed` are the records of an earlier session.

    If a crash happened between a commit and its analysis, the analysis is done now, on the same committed state.
    """
    seen = _read(file)
    for record in committed[-1:]:
        _note(seen, record, subject, file)
    for record in rounds:
        seen["complete"] = False
        _note(seen, record, subject, file)
        yield record
    if not seen["complete"]:
        write_json(file, {**seen, **at_the_end(subject), "complete": True})


def _note(seen: dict[str, Any], record: RoundRecord, subject: Subject, file: Path) -> None:
    """Store the distances after a round that changed a virtual set or the anchors."""
    known = any(each["round"] == record.round for each in seen["distances"])
    if record.flags and not known and (found := distances(subject)):
        seen["distances"].append({"round": record.round, "sites": found})
        write_json(file, seen)


def distances(subject: Subject) -> dict[str, float]:
    r"""Of each virtual set to the anchors:  mean_k || mean z_v,k - mean z_g,k ||^2,  z = psi / ||psi||.

    psi: the features of the current global model; k: the classes that both sets have; the means are over the first
    images of each class. The value is between 0 and 4.
    """
    state = subject.memory.server()
    if state is None or state.anchors is None:
        return {}
    anchors = _class_means(subject.net, state.params, _as_input(state.anchors, subject.federation))
    sets = _virtual(subject)
    found = {name: _gap(_class_means(subject.net, state.params, own), anchors) for name, own in sets.items()}
    return {name: gap for name, gap in found.items() if np.isfinite(gap)}


def at_the_end(subject: Subject) -> dict[str, Any]:
    """MMD between sites for real and virtual images, and a map of their features."""
    sites = subject.federation.tested[:SITES]
    virtual = {name: own for name, own in _virtual(subject).items() if name in {site.name for site in sites}}
    size = min(IMAGES // len(sites), *(len(site.train) for site in sites), *map(len, virtual.values()))
    state = subject.memory.server()
    assert state is not None

    def look(data: LabelledSet, *path: str) -> Seen:
        chosen = data.take(torch.randperm(len(data), generator=subject.rng.generator(*path))[:size])
        return Seen(_features(subject.net, state.params, chosen.x), chosen.y)

    real = {site.name: look(site.train, "real", site.name) for site in sites}
    learned = {name: look(own.data, "virtual", name) for name, own in virtual.items()}
    anchors = state.anchors and _as_input(state.anchors, subject.federation)
    shared = {"": look(anchors.data, "anchors")} if anchors else {}
    seen = (*real.values(), *learned.values(), *shared.values())
    if not all(bool(each.features.isfinite().all()) for each in seen):
        return {}
    return {
        "sites": [site.name for site in sites],
        "images": size,
        "mmd": _matrices(real, learned),
        "map": _map({"real": real, "virtual": learned, "anchors": shared}, subject.rng.number()),
    }


def _read(file: Path) -> dict[str, Any]:
    """The analysis so far; a damaged file is replaced, because no result depends on it."""
    try:
        return read_json(file)
    except RunError:
        return {"complete": False, "distances": []}


def _virtual(subject: Subject) -> dict[str, VirtualSet]:
    memory, names = subject.memory, list(subject.federation.by_name)[:SITES]
    sets = {name: subject.states.load(name, memory.version(name)).virtual for name in names}
    return {name: own for name, own in sets.items() if own}


def _as_input(anchors: VirtualSet, federation: Federation) -> VirtualSet:
    """Anchors belong to no site: pictures are normalised by the mean of the sites' scales."""
    return anchors.under(mean_scale([site.train.scale for site in federation.sites]))


def _class_means(net: Net, params: Params, own: VirtualSet) -> dict[int, Tensor]:
    """The mean of the unit features of each class, over its first images."""
    data, classes = own.data, own.labels.unique()
    first = torch.cat([data.of_class(k)[:PER_CLASS] for k in classes.tolist()])
    z = F.normalize(_features(net, params, data.x[first]), dim=1, eps=1e-6)
    return dict(zip(classes.tolist(), class_means(z, data.y[first], classes), strict=True))


def _features(net: Net, params: Params, x: Tensor) -> Tensor:
    return torch.cat([net.frozen(params, part).features for part in x.split(BATCH)])


def _gap(a: Mapping[int, Tensor], b: Mapping[int, Tensor]) -> float:
    gaps = torch.stack([a[k] - b[k] for k in sorted(a.keys() & b.keys())])
    return round(float(gaps.square().sum(1).mean()), 6)


def _matrices(real: Mapping[str, Seen], virtual: Mapping[str, Seen]) -> dict[str, list[list[float]]]:
    """Unbiased squared MMD of all pairs of sites; it can be slightly negative for similar sites."""
    if len(real) < 2 or min(len(each.labels) for each in real.values()) < 2:
        return {}
    sets = {"real": real} | ({"virtual": virtual} if real.keys() == virtual.keys() else {})
    rows = {kind: {name: each.features for name, each in own.items()} for kind, own in sets.items()}
    return {kind: np.round(between(own, unbiased=True), 6).tolist() for kind, own in rows.items()}


def _map(sets: Mapping[str, Mapping[str, Seen]], seed: int) -> list[dict[str, Any]]:
    """t-SNE (van der Maaten and Hinton, JMLR 2008) of all sets together; empty if there are too few points."""
    named = [(kind, site, each) for kind, own in sets.items() for site, each in own.items()]
    most = max(1, POINTS // len(named))
    shown = [each.features[:most] for _, _, each in named]
    joint = torch.cat(shown).numpy()
    if len(joint) <= 3 * PERPLEXITY or not joint.std() > 0:
        return []
    from sklearn.manifold import TSNE

    flat = TSNE(perplexity=PERPLEXITY, init="random", max_iter=500, random_state=seed % 2**32).fit_transform(joint)
    parts = np.split(flat.round(2), np.cumsum([len(each) for each in shown])[:-1])
    return [
        {"kind": kind, "site": site, "points": part.tolist(), "labels": each.labels[:most].tolist()}
        for (kind, site, each), part in zip(named, parts, strict=True)
    ]
