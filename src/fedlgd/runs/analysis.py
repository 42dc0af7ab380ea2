"""Similarity of the sites under the global model, for real and virtual images: `analysis.json`.

It is measured after a commit, outside the timed phases, on a few hundred images. Personalised methods have no
common features and therefore no such file.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from fedlgd.core.errors import RunError
from fedlgd.core.files import read_json, safe_name, write_json
from fedlgd.core.losses import class_means, mmd_rbf
from fedlgd.core.net import Net
from fedlgd.core.types import LabelledSet, Params, Stream, VirtualSet
from fedlgd.data.federation import Federation
from fedlgd.data.prepare import mean_scale
from fedlgd.engines.storage import States, Storage
from fedlgd.rundir.records import RoundRecord
from fedlgd.runs.config import Config
from fedlgd.runs.folder import write_samples

MAX_ANALYSED_SITES = 24  # the first by name; more would take too much time and memory
MAX_REAL_IMAGES = 400  # in total
MAX_MAP_POINTS = 400
PERPLEXITY = 30
MAX_IMAGES_IN_MEAN = 10  # virtual images of a class
BATCH_SIZE = 256


class ImageFeatures(NamedTuple):
    """Features of some images, and their classes."""

    features: Tensor
    labels: Tensor


class Sources(NamedTuple):
    """The subject of an analysis: the sites, the network, the committed states of the server and of the sites."""

    federation: Federation
    net: Net
    storage: Storage
    states: States
    rng: Stream


@contextmanager
def report_files(
    config: Config, sources: Sources, out: Path, before: Sequence[RoundRecord]
) -> Iterator[Callable[[RoundRecord], None] | None]:
    """What only the report reads: pictures of real images, and the analysis of the rounds given to the listener."""
    for site in sources.federation.tested[:MAX_ANALYSED_SITES]:
        write_samples(out / "real", safe_name(site.name), site.train, config.plan.real_samples)
    if config.method.personal or not config.plan.analysis:
        yield None
        return
    analysis = SiteAnalysis(sources, out / "analysis.json", before[-1:])
    yield analysis.add
    analysis.finish()


class SiteAnalysis:
    """`analysis.json` of a run: distances after rounds that changed a virtual set or the anchors, and the end.

    last: the last record of an earlier session. If a crash happened between its commit and its analysis, the
    analysis is done now, on the same committed state.
    """

    def __init__(self, sources: Sources, file: Path, last: Sequence[RoundRecord] = ()) -> None:
        self._federation, self._net, self._storage, self._states, self._rng = sources
        self._file = file
        self._found: dict[str, Any] = {"complete": False, "distances": []}
        with suppress(RunError):  # a damaged file is replaced, because no result depends on it
            self._found = read_json(file)
        for record in last:
            self._note(record)

    def add(self, record: RoundRecord) -> None:
        """Measure after the commit of a round."""
        self._found["complete"] = False
        self._note(record)

    def _note(self, record: RoundRecord) -> None:
        known = any(each["round"] == record.round for each in self._found["distances"])
        if record.flags and not known and (found := self.distances()):
            self._found["distances"].append({"round": record.round, "sites": found})
            write_json(self._file, self._found)

    def finish(self) -> None:
        """Measure after the last round."""
        if not self._found["complete"]:
            write_json(self._file, {**self._found, **self.at_the_end(), "complete": True})

    def distances(self) -> dict[str, float]:
        r"""Of each virtual set to the anchors:  mean_k || mean z_v,k - mean z_g,k ||^2,  z = psi / ||psi||.

        psi: the features of the current global model; k: the classes that both sets have; the means are over the
        first images of each class. The value is between 0 and 4.
        """
        state, found = self._storage.server(), {}
        if state is None or state.anchors is None:
            return {}
        anchors = _class_means(self._net, state.params, as_input(state.anchors, self._federation))
        for name, own in self._virtual().items():
            means = _class_means(self._net, state.params, own)
            gaps = torch.stack([means[k] - anchors[k] for k in sorted(means.keys() & anchors.keys())])
            found[name] = round(float(gaps.square().sum(1).mean()), 6)
        return {name: gap for name, gap in found.items() if np.isfinite(gap)}

    def at_the_end(self) -> dict[str, Any]:
        """MMD between sites for real and virtual images, and a map of their features."""
        sites = self._federation.tested[:MAX_ANALYSED_SITES]
        virtual = {name: own for name, own in self._virtual().items() if name in {site.name for site in sites}}
        size = min(MAX_REAL_IMAGES // len(sites), *(len(site.train) for site in sites), *map(len, virtual.values()))
        state = self._storage.server()
        assert state is not None

        def embed(data: LabelledSet, *path: str) -> ImageFeatures:
            chosen = data.take(torch.randperm(len(data), generator=self._rng.generator(*path))[:size])
            return ImageFeatures(features_of(self._net, state.params, chosen.x), chosen.y)

        real = {site.name: embed(site.train, "real", site.name) for site in sites}
        learned = {name: embed(own.data, "virtual", name) for name, own in virtual.items()}
        anchors = state.anchors and as_input(state.anchors, self._federation)
        shared = {"": embed(anchors.data, "anchors")} if anchors else {}
        if not all(
            bool(each.features.isfinite().all()) for sets in (real, learned, shared) for each in sets.values()
        ):
            return {}
        return {
            "sites": [site.name for site in sites],
            "images": size,
            "mmd": _matrices(real, learned),
            "map": tsne_map({"real": real, "virtual": learned, "anchors": shared}, self._rng.number()),
        }

    def _virtual(self) -> dict[str, VirtualSet]:
        names = list(self._federation.by_name)[:MAX_ANALYSED_SITES]
        sets = {name: self._states.load(name, self._storage.version(name)).virtual for name in names}
        return {name: own for name, own in sets.items() if own}


def as_input(anchors: VirtualSet, federation: Federation) -> VirtualSet:
    """Anchors belong to no site: pictures are normalised by the mean of the sites' scales."""
    return anchors.under(mean_scale([site.train.scale for site in federation.sites]))


def _class_means(net: Net, params: Params, own: VirtualSet) -> dict[int, Tensor]:
    """The mean of the unit features of each class, over its first images."""
    data, classes = own.data, own.labels.unique()
    first = torch.cat([data.of_class(k)[:MAX_IMAGES_IN_MEAN] for k in classes.tolist()])
    z = F.normalize(features_of(net, params, data.x[first]), dim=1, eps=1e-6)
    return dict(zip(classes.tolist(), class_means(z, data.y[first], classes), strict=True))


def features_of(net: Net, params: Params, x: Tensor, batch: int = BATCH_SIZE) -> Tensor:
    return torch.cat([net.frozen(params, part).features for part in x.split(batch)])


def _matrices(
    real: Mapping[str, ImageFeatures], virtual: Mapping[str, ImageFeatures]
) -> dict[str, list[list[float]]]:
    """Unbiased squared MMD of all pairs of sites; it can be slightly negative for similar sites."""
    if len(real) < 2 or min(len(each.labels) for each in real.values()) < 2:
        return {}
    sets = {"real": real} | ({"virtual": virtual} if real.keys() == virtual.keys() else {})
    rows = {kind: {name: each.features for name, each in own.items()} for kind, own in sets.items()}
    return {kind: np.round(between(own, unbiased=True), 6).tolist() for kind, own in rows.items()}


def between(sets: Mapping[str, Tensor], unbiased: bool = False) -> list[list[float]]:
    """`mmd2` between every two sets of rows; zero on the diagonal."""
    names = list(sets)
    matrix = [[0.0] * len(names) for _ in names]
    for (i, a), (j, b) in combinations(enumerate(names), 2):
        matrix[i][j] = matrix[j][i] = mmd2(sets[a], sets[b], unbiased)
    return matrix


def mmd2(a: Tensor, b: Tensor, unbiased: bool = False, width: float = 0.0) -> float:
    """`core.losses.mmd_rbf` in float64; `width` 0: that of the pair. The paper's code has the biased estimator."""
    return mmd_rbf(a.double(), b.double(), unbiased=unbiased, width=width).item()


def tsne_map(sets: Mapping[str, Mapping[str, ImageFeatures]], seed: int) -> list[dict[str, Any]]:
    """t-SNE (van der Maaten and Hinton, JMLR 2008) of all sets together; empty if there are too few points."""
    named = [(kind, site, each) for kind, own in sets.items() for site, each in own.items()]
    most = max(1, MAX_MAP_POINTS // len(named))
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
