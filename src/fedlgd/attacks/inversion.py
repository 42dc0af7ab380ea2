"""Inversion of the updates of a run: cases, distances of the reconstructions, and what a run folder keeps.

Cases, all with the same model: a step of FedAvg on real images (what sites would send without distillation), one on
the virtual set, and the steps of the method itself, with the anchors that the server knows or after refinement.
`memorisation` asks whether the images of virtual sets and the anchors copy training images.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from fedlgd.attacks import similarity
from fedlgd.attacks.gradient_inversion import LBFGS_ITERATIONS, Attack, Reconstruction, Step, invert
from fedlgd.attacks.membership import clopper_pearson
from fedlgd.attacks.similarity import Neighbours, neighbours
from fedlgd.attacks.target import Moment, Replay, chosen_site, local_of, training_of
from fedlgd.core import files
from fedlgd.core.errors import RunError, SettingError, check
from fedlgd.core.meter import tick
from fedlgd.core.types import LabelledSet, Site, Stream, VirtualSet
from fedlgd.methods.common import AnchorLoss, Criterion, Term, training_set
from fedlgd.rundir.results import results_of, unused_file, write_sheet
from fedlgd.runs.folder import DIVISOR

PAIRS_SHOWN = 5  # the closest of each virtual set
PICTURES_PER_ROW = 8
INVERSION_FORMAT = 1
INVERSION_KIND = "invert"  # of the files with results
MAX_CANDIDATES = 100  # private images among which the true one is looked for
TRIAL_ITERATIONS = LBFGS_ITERATIONS  # iterations of an estimate: L-BFGS takes them in whole calls


@dataclass(frozen=True, kw_only=True)
class InversionPlan:
    """The attacked steps: `targets` batches of each size, at the beginning of each round, of one site.

    rounds: (): the first, and the one after the last. site "": the one with the fewest images. show: pictures of
    images that are not public may be shown in a report.
    """

    attack: Attack = Attack()
    batches: tuple[int, ...] = (1, 4)
    targets: int = 8
    rounds: tuple[int, ...] = ()
    site: str = ""
    seed: int = 0
    show: bool = False

    def __post_init__(self) -> None:
        check(bool(self.batches) and min(self.batches) > 0, "batch", list(self.batches), "use 1 or more")
        check(self.targets > 0, "targets", self.targets, "use 1 or more")


@dataclass(frozen=True, eq=False)
class Case:
    """The images that a site trains on, and what else is in its loss."""

    kind: str
    title: str
    round: int
    data: LabelledSet
    terms: Sequence[Term] = ()
    anchors_in_loss: AnchorLoss | None = None
    criterion: Criterion | None = None


@dataclass(frozen=True, eq=False)
class InversionCell:
    """Attacks on batches of one size in one case."""

    case: Case
    moment: Moment
    batch: int

    @property
    def name(self) -> str:
        return f"{self.case.kind}-round{self.case.round}-batch{self.batch}"

    @property
    def label(self) -> str:
        return f"{self.case.title}, round {self.case.round}, batch {self.batch}"


def cells_of(run: Replay, plan: InversionPlan, moments: dict[int, Moment]) -> list[InversionCell]:
    """All cells of a run; batches that are larger than the data of a case are left out."""
    site = site_of(run, plan.site)
    cases = [(moment, case) for t, moment in moments.items() for case in _cases(run, moment, site, t)]
    found = [InversionCell(case, moment, b) for moment, case in cases for b in plan.batches if b <= len(case.data)]
    if not found:
        most = max(len(case.data) for _, case in cases)
        raise SettingError("inverted-batch-too-large", batches=list(plan.batches), site=site.name, images=most)
    return found


def moments_of(run: Replay, plan: InversionPlan) -> dict[int, Moment]:
    """The rounds that are attacked; of a run with differential privacy by default only the stored one."""
    default = (run.rounds,) if run.protected else (0, run.rounds)
    return {t: run.at(t) for t in sorted(set(plan.rounds or default))}


def site_of(run: Replay, name: str) -> Site:
    return run.federation.by_name[chosen_site(run.federation, name)]


def _cases(run: Replay, moment: Moment, site: Site, t: int) -> Iterator[Case]:
    yield Case("real", "FedAvg on real images", t, site.train)
    state = moment.sites[site.name]
    if state.virtual:
        yield Case("virtual", "FedAvg on virtual images", t, state.virtual.data)
    for u in run.next_rounds(t):
        seen = training_of(run, moment, site, u)
        moved = seen.state.virtual is not None and seen.state.virtual is not state.virtual
        if seen.terms or seen.anchors_in_loss or moved or seen.criterion:
            parts = {"with known anchors": seen.anchors_in_loss is not None, "after refinement": moved}
            words = " and ".join(text for text, there in parts.items() if there) or "with its own loss"
            title = f"{run.config.method.label}, {words}"
            data = training_set(seen.state, site)
            added = seen.terms, seen.anchors_in_loss, seen.criterion
            yield Case("refined" if moved else "own", title, t, data, *added)


def estimate_seconds(run: Replay, plan: InversionPlan, cells: Sequence[InversionCell]) -> float:
    """Seconds of these cells, from a few iterations of each kind after a warm-up, which is not counted.

    The first step of all takes seconds, because torch loads parts of itself; thousands of others do not.
    """
    begin, tried = (
        replace(plan, attack=replace(plan.attack, iterations=n, restarts=1)) for n in (1, TRIAL_ITERATIONS)
    )
    seconds, measured = 0.0, dict[tuple[str, int], float]()
    for cell in cells:
        key = cell.case.kind, cell.batch
        if key not in measured:
            _reconstructed(run, begin, cell, 0)
            begun = time.perf_counter()
            _reconstructed(run, tried, cell, 0)
            measured[key] = (time.perf_counter() - begun) / TRIAL_ITERATIONS
        seconds += measured[key] * plan.attack.iterations * plan.attack.restarts * plan.targets
    return seconds


def _reconstructed(run: Replay, plan: InversionPlan, cell: InversionCell, i: int) -> tuple[Tensor, Reconstruction]:
    """The indices of a batch and its reconstruction. With anchors, a batch has them in the ratio of the sets."""
    case, b, site = cell.case, cell.batch, site_of(run, plan.site)
    rng = Stream(plan.seed).at("invert", site.name, case.kind, b, i)
    chosen = torch.randperm(len(case.data), generator=rng.generator("batch"))[:b]
    index = torch.arange(b)
    if case.anchors_in_loss and case.anchors_in_loss.in_loss:
        anchors = len(case.anchors_in_loss.images)
        drawn = torch.randperm(anchors, generator=rng.generator("anchors"))[: max(1, b * anchors // len(case.data))]
        index = torch.cat([index, b + drawn])
    part = case.data.take(chosen)
    step = Step(
        net=run.net,
        params=cell.moment.server.params,
        labels=part.y,
        index=index,
        terms=case.terms,
        anchors_in_loss=case.anchors_in_loss,
        criterion=case.criterion,
    )
    target = step.update(part.x, local_of(run.config.method).lr)
    shape, scale = tuple(part.x.shape), site.train.scale
    return chosen, invert(step.gradient, target, shape, scale, plan.attack, rng.at("attack"))


def attack_cell(run: Replay, plan: InversionPlan, cell: InversionCell, folder: Path, label: str) -> dict[str, Any]:
    """Invert all targets of a cell, write their pictures to the folder, and describe how near they came.

    label: its name while it is in progress.
    """
    tick(label, 0, plan.targets)
    site, indices, images, costs = site_of(run, plan.site), list[Tensor](), list[Tensor](), list[float]()
    scale, data = site.train.scale, replace(cell.case.data, scale=site.train.scale)
    for i in range(plan.targets):
        chosen, found = _reconstructed(run, plan, cell, i)
        order = similarity.best_order(found.images, data.take(chosen).x, data.y[chosen])
        indices.append(chosen)
        images.append(found.images[order])
        costs.append(found.cost)
        tick(label, i + 1, plan.targets)
    index = torch.cat(indices)
    found_pixels, true_pixels = scale.to_pixels(torch.cat(images)), data.pixels(index)
    near = neighbours(found_pixels, data.y[index], site.train, site.test)
    file = folder / f"{cell.name}.png"
    rows = (true_pixels[near.rows], found_pixels[near.rows], site.train.pixels(near.training))
    write_rows(file, [*rows, site.test.pixels(near.held_out)])
    about = {"case": cell.case.kind, "title": cell.case.title, "round": cell.case.round, "batch": cell.batch}
    ranks = _ranks(found_pixels, data, index, Stream(plan.seed).at("candidates"))
    scores = _scores(found_pixels.double() / 255, true_pixels.double() / 255)
    picture = f"{folder.name}/{file.name}"
    return {**about, **_identified(ranks), **scores, **nearness(near), "cost": fmean(costs), "picture": picture}


def _ranks(found: Tensor, data: LabelledSet, index: Tensor, rng: Stream) -> list[tuple[int, int]]:
    """The rank of each true image among images of its class at the site, and the number of these images."""
    ranks = []
    for row, true in zip(found, index.tolist(), strict=True):
        members = data.of_class(int(data.y[true]))
        others = members[members != true]
        drawn = others[torch.randperm(len(others), generator=rng.generator(true))[: MAX_CANDIDATES - 1]]
        candidates = torch.cat([torch.tensor([true]), drawn])
        ranks.append((similarity.rank(row, data.pixels(candidates)), len(candidates)))
    return ranks


def _identified(ranks: list[tuple[int, int]]) -> dict[str, Any]:
    hits = sum(first == 1 for first, _ in ranks)
    return {
        "images": len(ranks),
        "identified": hits / len(ranks),
        "interval": list(clopper_pearson(hits, len(ranks))),
        "chance": fmean(1 / among for _, among in ranks),
        "rank": fmean(first for first, _ in ranks),
        "candidates": max(among for _, among in ranks),
    }


def _scores(found: Tensor, true: Tensor) -> dict[str, float]:
    measures = [similarity.psnr, similarity.psnr_aligned, similarity.feature_distance]
    if min(found.shape[2:]) >= similarity.SSIM_WINDOW:
        measures.append(similarity.ssim)
    return {each.__name__: float(each(found, true).clamp(max=100).mean()) for each in measures}


def nearness(near: Neighbours) -> dict[str, Any]:
    """How often pictures are nearer to training images, the rate of guessing, and their mean distances."""
    if not len(near.rows):
        return {"nearer_training": None}
    return {
        "nearer_training": near.share,
        "expected": float(near.expected.mean()),
        "p_value": near.p_value,
        "distance_training": float(near.near.mean()),
        "distance_held_out": float(near.far.mean()),
    }


def write_rows(file: Path, rows: Sequence[Tensor]) -> None:
    """One row of pictures for each tensor of pixels."""
    shown = torch.stack([row[:PICTURES_PER_ROW] for row in rows])
    if shown.shape[1]:
        write_sheet(file.parent, file, shown.flatten(0, 1), range(len(rows)))


def memorisation(run: Replay, moments: Mapping[int, Moment], folder: Path) -> Iterator[dict[str, Any]]:
    """Are virtual images and anchors nearer to training images than to held-out ones? At every site.

    folder: of the pictures of the closest pairs.
    """
    seen = set[tuple[str, str, int]]()
    for moment in moments.values():
        for site in run.federation.sites:
            sets = {"virtual set": moment.sites[site.name].virtual, "anchors": moment.server.anchors}
            for what, virtual in sets.items():
                if virtual and (key := (what, site.name, virtual.round)) not in seen:
                    seen.add(key)
                    yield from _memorised(site, what, virtual, folder)


def _memorised(site: Site, what: str, virtual: VirtualSet, folder: Path) -> Iterator[dict[str, Any]]:
    pictures = virtual.data  # the tiles of an image one by one
    near = neighbours(pictures.x, pictures.y, site.train, site.test)
    if not len(near.rows):
        return
    closest = near.near.argsort()[:PAIRS_SHOWN]
    name = f"memory-{what.partition(' ')[0]}-{files.safe_name(site.name)}-{virtual.round + 1}.png"
    pixels = site.train.scale.to_pixels(pictures.x / (DIVISOR if what == "anchors" else 1))
    rows = (pixels[near.rows[closest]], site.train.pixels(near.training[closest]))
    write_rows(folder / name, [*rows, site.test.pixels(near.held_out[closest])])
    yield {
        "what": what,
        "site": site.name,
        "round": virtual.round,
        "images": len(near.rows),
        **nearness(near),
        "closest": near.near[closest].tolist(),
        "picture": f"{folder.name}/{name}",
    }


@dataclass(frozen=True, eq=False)
class StoredInversion:
    """The results of one `Inversion` of a run, in a file beside those with other settings."""

    file: Path
    content: dict[str, Any]

    @property
    def pictures(self) -> Path:
        return self.file.with_suffix("")

    def left(self, cells: Sequence[InversionCell]) -> list[InversionCell]:
        """The cells that are not attacked yet."""
        return [cell for cell in cells if cell.name not in self.content["cells"]]

    def write(self) -> None:
        files.write_json(self.file, self.content, private=True)


def attack_cells(
    run: Replay, plan: InversionPlan, cells: Sequence[InversionCell], moments: dict[int, Moment]
) -> StoredInversion:
    """Attack all cells that are not yet stored, and store each."""
    stored = stored_in(run, plan)
    left = stored.left(cells)
    for number, cell in enumerate(left, 1 + len(cells) - len(left)):
        label = f"[{number}/{len(cells)}] {cell.label}"
        stored.content["cells"][cell.name] = attack_cell(run, plan, cell, stored.pictures, label)
        stored.write()
        tick("attacks", number, len(cells))
    stored.content["memorisation"] = list(memorisation(run, moments, stored.pictures))
    stored.write()
    return stored


def stored_in(run: Replay, plan: InversionPlan) -> StoredInversion:
    """The stored file with these settings and this state of the run, or a new name. The same attack may be
    shown or not."""
    settings = asdict(replace(plan, site=site_of(run, plan.site).name)) | {"of": run.rounds}
    settings = json.loads(json.dumps(settings))  # as it is read back, with lists for tuples
    show = {"show": plan.show or run.federation.public}
    for file in results_of(run.folder, INVERSION_KIND):
        old = files.read_json(file)
        if old.get("format") != INVERSION_FORMAT:
            raise RunError("inversion-format", path=str(file))
        if old["settings"] | show == settings | show:
            return StoredInversion(file, old | {"settings": settings | show})
    budget = run.config.method.budget
    promise = budget.statement if budget else ""
    fresh = {"format": INVERSION_FORMAT, "settings": settings | show, "promise": promise, "cells": {}}
    return StoredInversion(unused_file(run.folder, INVERSION_KIND), fresh)
