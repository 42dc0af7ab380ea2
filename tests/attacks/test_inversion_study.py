"""The numbers of an inversion of a run, recomputed by brute force: identified images, ranks and memorisation."""

from dataclasses import replace
from statistics import fmean
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedlgd.attacks import inversion
from fedlgd.attacks.gradient_inversion import Attack, Reconstruction
from fedlgd.attacks.inversion import (
    Case,
    InversionCell,
    InversionPlan,
    attack_cell,
    cells_of,
    memorisation,
    stored_in,
)
from fedlgd.attacks.membership import clopper_pearson
from fedlgd.attacks.target import Moment
from fedlgd.core.files import write_json
from fedlgd.core.types import LabelledSet, ServerState, SiteState, Stream, VirtualSet
from tests import tiny
from tests.errors import refuses

PLAN = InversionPlan(attack=Attack(iterations=1), targets=6, batches=(2,), rounds=(0,), site="ape")


@pytest.fixture
def data():
    return tiny.federation(train=20, test=12)


def replay(data, folder=None):
    """What the study reads of a run."""
    method = tiny.fedavg(train_on="real")
    config = SimpleNamespace(method=method)
    return SimpleNamespace(folder=folder, federation=data, rounds=0, config=config, next_rounds=lambda _: ())


def correlation_distance(a, b) -> float:
    """1 - mean over channels of Pearson's correlation, by numpy."""
    a, b = (np.asarray(each, dtype=float).reshape(len(each), -1) for each in (a, b))
    return 1 - fmean(float(np.corrcoef(x, y)[0, 1]) for x, y in zip(a, b, strict=True))


def noisy(x: torch.Tensor, level: float, seed: int) -> torch.Tensor:
    return x + level * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))


def attacked(data, monkeypatch, folder, level: float) -> tuple[dict, torch.Tensor, torch.Tensor]:
    """The description of a cell whose reconstructions are true images with noise, their pixels and true indices."""
    site, indices, images = data.by_name["ape"], [], []

    def reconstructed(run, plan, cell, i):
        chosen = torch.randperm(len(cell.case.data), generator=torch.Generator().manual_seed(i))[: cell.batch]
        chosen = chosen[cell.case.data.y[chosen].argsort()]
        found = noisy(cell.case.data.take(chosen).x, level, i).clamp(-1, 1)
        indices.append(chosen)
        images.append(found)
        return chosen, Reconstruction(found, float(i))

    monkeypatch.setattr(inversion, "_reconstructed", reconstructed)
    monkeypatch.setattr(inversion.similarity, "best_order", lambda *given: torch.arange(len(given[-1])))
    cell = InversionCell(Case("real", "x", 0, site.train), Moment(None, {}), 2)
    about = attack_cell(replay(data), PLAN, cell, folder, "x")
    return about, site.train.scale.to_pixels(torch.cat(images)), torch.cat(indices)


@pytest.mark.parametrize("level", [0.0, 0.5, 3.0])
def test_identified_images_and_ranks_are_those_of_brute_force(data, monkeypatch, tmp_path, level):
    about, found, true = attacked(data, monkeypatch, tmp_path, level)
    train = data.by_name["ape"].train
    ranks = []
    for picture, index in zip(found, true.tolist(), strict=True):
        mates = [i for i in range(len(train)) if train.y[i] == train.y[index]]
        distances = {i: correlation_distance(picture, train.x[i]) for i in mates}
        ranks.append(1 + sum(distances[i] < distances[index] for i in mates))
    hits = sum(rank == 1 for rank in ranks)
    assert about["images"] == len(ranks) == 12
    assert about["identified"] == hits / 12
    assert tuple(about["interval"]) == clopper_pearson(hits, 12)
    assert about["rank"] == pytest.approx(fmean(ranks))
    assert (about["candidates"], about["chance"]) == (20, pytest.approx(1 / 20))
    assert about["cost"] == fmean(range(6))
    assert (hits == 12) == (level < 1)


def test_reconstructions_are_compared_with_training_and_held_out_images_of_their_class(data, monkeypatch, tmp_path):
    about, found, true = attacked(data, monkeypatch, tmp_path, 0.5)
    site = data.by_name["ape"]
    near, far = [], []
    for picture, label in zip(found, site.train.y[true], strict=True):
        for least, part in ((near, site.train), (far, site.test)):
            least.append(min(correlation_distance(picture, x) for x in part.x[part.y == label]))
    assert about["nearer_training"] == np.mean(np.array(near) < np.array(far)) == 1
    assert about["distance_training"] == pytest.approx(fmean(near))
    assert about["distance_held_out"] == pytest.approx(fmean(far))
    assert about["expected"] == pytest.approx(20 / 32)
    assert about["p_value"] == pytest.approx((20 / 32) ** 12)
    assert (tmp_path / "real-round0-batch2.png").exists()


@pytest.mark.parametrize("copies", [True, False])
def test_a_virtual_set_of_copies_is_memorised_and_one_of_new_images_is_not(data, tmp_path, copies):
    site = data.by_name["ape"]
    source = site.train if copies else tiny.federation(names=("new",), train=20).by_name["new"].train
    images, labels = source.take(torch.arange(0, 60, 3)).x, source.y[::3]
    if not copies:
        images = noisy(torch.zeros_like(images), 0.3, 0)
    state = SiteState(virtual=VirtualSet(images=images, labels=labels, origin="ape", round=0))
    states = {name: SiteState() for name in data.by_name} | {"ape": state}
    moments = {0: Moment(ServerState(params={}), states)}
    (found,) = memorisation(replay(data), moments | {1: moments[0]}, tmp_path)  # the same set is asked once
    assert (found["what"], found["site"], found["images"]) == ("virtual set", "ape", 20)
    assert found["expected"] == pytest.approx(20 / 32)
    assert (tmp_path.parent / found["picture"]).exists()
    assert found["closest"] == sorted(found["closest"])
    if copies:
        assert found["nearer_training"] == 1
        assert found["p_value"] == pytest.approx((20 / 32) ** 20)
        assert max(found["closest"]) < 1e-9
    else:
        assert found["p_value"] > 0.01


def test_batches_larger_than_the_data_are_left_out_and_refused_if_none_is_left(data):
    moments = {0: Moment(ServerState(params={}), {name: SiteState() for name in data.by_name})}
    run = replay(data)
    cells = cells_of(run, replace(PLAN, batches=(1, 60, 61)), moments)
    assert [cell.name for cell in cells] == ["real-round0-batch1", "real-round0-batch60"]
    with refuses("inverted-batch-too-large", batches=[61, 100], site="ape", images=60):
        cells_of(run, replace(PLAN, batches=(61, 100)), moments)


def test_the_candidates_of_a_large_class_are_a_hundred_with_the_true_image():
    count = 130
    x = torch.randint(256, (count, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    data = LabelledSet(x, torch.zeros(count, dtype=torch.int64))
    index = torch.tensor([5, 77])
    assert inversion._ranks(x[index], data, index, Stream(0)) == [(1, 100), (1, 100)]
    (first,) = inversion._ranks(x[[6]], data, torch.tensor([5]), Stream(0))
    assert first[0] > 1


def test_results_of_another_version_are_refused(data, tmp_path):
    write_json(tmp_path / "invert.json", {"format": 0})
    with refuses("inversion-format", path=str(tmp_path / "invert.json")):
        stored_in(replay(data, tmp_path), PLAN)
