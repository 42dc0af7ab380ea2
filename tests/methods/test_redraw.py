"""`+redraw`: in selected rounds a site makes new means of its similar images, then does what its method does."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedlgd.core.errors import PrivacyError, SettingError
from fedlgd.core.types import Broadcast, LabelledSet, SiteState, Stream, VirtualSet
from fedlgd.distill.distribution import refine_set
from fedlgd.distill.init import from_neighbours
from fedlgd.methods.redraw import Redraw, Redrawn
from fedlgd.methods.refine import Refined
from fedlgd.runs.config import configure
from tests import tiny
from tests.errors import refuses

NET = tiny.net()
PARAMS = tiny.params(NET)
SITE = tiny.federation(train=10).by_name["ape"]
MADE = tiny.labelled(NET, 2, 1)
VIRTUAL = VirtualSet(images=MADE.x, labels=MADE.y, origin="ape", round=-1)


def play(method: Any, t: int = 0, seed: int = 3) -> tuple[Any, SiteState]:
    return method.site(Broadcast(round=t, params=PARAMS), SiteState(virtual=VIRTUAL), SITE, NET, Stream(seed))


def of_neighbours(seed: int = 3) -> VirtualSet:
    """By the address of the random numbers that stored runs have used."""
    images = from_neighbours(SITE.train, [0, 1, 2], [2, 2, 2], Stream(seed).generator("neighbours"))
    return replace(VIRTUAL, images=images)


def test_a_site_trains_on_new_images_with_the_same_labels():
    update, state = play(Redrawn(method=tiny.fedavg()))
    assert torch.equal(state.virtual.images, of_neighbours().images)
    assert torch.equal(state.virtual.labels, VIRTUAL.labels)
    assert state.virtual.round == 0
    message, drawn = Broadcast(round=0, params=PARAMS), SiteState(virtual=of_neighbours())
    alone, _ = tiny.fedavg().site(message, drawn, SITE, NET, Stream(3))
    assert tiny.equal(update.params, alone.params)


def test_another_round_has_other_images_of_the_site():
    one, other = (play(Redrawn(method=tiny.fedavg()), seed=seed)[1].virtual.images for seed in (3, 4))
    assert not torch.equal(one, other)
    low, high = SITE.train.take(slice(None)).x.aminmax()
    assert low <= one.min() <= one.max() <= high


def test_rounds_that_are_not_selected_keep_the_images():
    every_second = Redrawn(method=tiny.fedavg(), redraw=Redraw(selected=replace(Redraw().selected, every=2)))
    assert every_second.schedule["redraw"][:2] == range(0, 4, 2)
    assert play(every_second, 1)[1].virtual is VIRTUAL
    assert play(every_second, 2)[1].virtual.round == 2


@pytest.mark.parametrize("inner", [tiny.fedlgd(), Refined(method=tiny.fedavg(), refine=tiny.fedlgd().refine)])
def test_new_images_are_refined_in_the_same_round(inner):
    how = inner.refine.settings(inner.distil)
    wanted = refine_set(of_neighbours(), SITE.train, NET, PARAMS, how, 0, Stream(3).at("refine"))
    assert torch.equal(play(Redrawn(method=inner))[1].virtual.images, wanted.images)


def test_redrawing_in_no_round_is_the_method_itself():
    never = Redraw(selected=replace(Redraw().selected, count=0))
    for inner in (tiny.fedlgd(), tiny.fedavg()):
        update, state = play(Redrawn(method=inner, redraw=never))
        alone, kept = play(inner)
        assert tiny.equal(update.params, alone.params)
        assert torch.equal(state.virtual.images, kept.virtual.images)
        part = Redrawn(method=inner, redraw=never)
        assert (part.schedule, part.reads) == (inner.schedule, inner.reads)


def test_it_reads_private_images_in_selected_rounds():
    assert Redrawn(method=tiny.fedavg()).reads == ("enrolment", "selected")
    assert Redrawn(method=tiny.fedlgd()).reads == ("enrolment", "selected")


def test_tiles_are_made_of_as_many_means():
    tiled = replace(VIRTUAL, tiles=2)
    _, state = Redrawn(method=tiny.fedavg(distil__tiles=2)).site(
        Broadcast(round=0, params=PARAMS), SiteState(virtual=tiled), SITE, NET, Stream(3)
    )
    assert state.virtual.tiles == 2
    assert len(state.virtual.data) == 24
    quarters = {tuple(image.flatten().tolist()) for image in state.virtual.images.unfold(2, 4, 4).unfold(3, 4, 4)}
    assert len(quarters) == 6


def test_a_mean_has_eight_private_images_or_all_of_a_small_class():
    one = SITE.train.of_class(0)[:3]
    few = replace(SITE, train=LabelledSet(SITE.train.x[one], SITE.train.y[one], SITE.train.scale))
    virtual = replace(VIRTUAL, images=VIRTUAL.images[:2], labels=VIRTUAL.labels[:2])
    _, state = Redrawn(method=tiny.fedavg()).site(
        Broadcast(round=0, params=PARAMS), SiteState(virtual=virtual), few, NET, Stream(3)
    )
    mean = few.train.take(slice(None)).x.mean(0)
    torch.testing.assert_close(state.virtual.images, mean.expand(2, *mean.shape))


def test_redrawing_is_refused_with_real_images_and_with_privacy():
    with refuses("redraw-without-virtual", SettingError, method="fedavg", data="real"):
        Redrawn(method=tiny.fedavg(train_on="real"))
    with refuses("private-redraw", PrivacyError):
        private = {"distil__private__epsilon": 4.0, "distil__private__test_key": "x"}
        configure("fedlgd+redraw", "", **private)


def test_refinement_comes_after_redrawing():
    assert configure("fedavg+refine+redraw").name == "fedavg+refine+redraw"
    with refuses("part-not-accepted", SettingError, part="refine"):
        configure("fedavg+redraw+refine")


def test_strong_makes_no_first_sets_that_the_first_round_replaces():
    assert configure("fedavg+redraw", "strong").distil.steps == 0
    assert configure("fedavg", "strong").distil.steps > 0
