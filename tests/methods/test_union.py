"""Virtual sets as messages: what a site has arrives, whoever else uploads and in whatever order."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.core.errors import DataError, PrivacyError, RunError
from fedlgd.core.meter import metered, phase
from fedlgd.core.train import Local
from fedlgd.core.types import LabelledSet, SiteState, Update, VirtualSet, cut
from fedlgd.distill.distribution import first_set
from fedlgd.distill.settings import STARTS
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods import common
from fedlgd.methods.common import fit_on
from fedlgd.methods.union import (
    SAFE_STARTS,
    Condensing,
    expected_upload,
    images_before,
    union_of,
    upload_of,
)
from tests import tiny
from tests.errors import refuses

CLASSES, PER_CLASS, SHAPE = 4, 2, (1, 4, 4)


def virtual_set(seed: int, classes: list[int]) -> VirtualSet:
    labels = torch.tensor(classes, dtype=torch.int64).repeat_interleave(PER_CLASS)
    images = torch.randn(len(labels), *SHAPE, generator=torch.Generator().manual_seed(seed))
    return VirtualSet(images=images, labels=labels, origin=f"site {seed}", round=-1)


def uploaded(virtual: VirtualSet) -> Update:
    tree = upload_of(virtual, CLASSES, PER_CLASS)
    return Update(site=virtual.origin, params={}, weight=1.0, trees={"virtual": tree})


def rows(data: LabelledSet) -> list[tuple[int, tuple[float, ...]]]:
    return [(int(y), tuple(x.flatten().tolist())) for x, y in zip(data.x, data.y, strict=True)]


present = st.lists(st.integers(0, CLASSES - 1), unique=True).map(sorted)
some_present = present.filter(bool)


@given(some_present)
def test_the_union_of_one_upload_is_the_set_itself(classes):
    virtual = virtual_set(0, classes)
    again = union_of([uploaded(virtual)])
    assert torch.equal(again.x, virtual.images)
    assert torch.equal(again.y, virtual.labels)


@given(st.lists(present, min_size=1, max_size=5).filter(any))
def test_a_union_has_every_image_once_sorted_by_class_and_no_absent_class(each):
    sets = [virtual_set(seed, classes) for seed, classes in enumerate(each)]
    union = union_of(map(uploaded, sets))
    assert sorted(rows(union)) == sorted(row for virtual in sets for row in rows(virtual.data))
    assert union.y.tolist() == sorted(union.y.tolist())


@given(st.lists(some_present, min_size=2, max_size=5), st.randoms(use_true_random=False))
def test_another_order_of_the_sites_changes_only_the_order_within_a_class(each, random):
    updates = [uploaded(virtual_set(seed, classes)) for seed, classes in enumerate(each)]
    other = random.sample(updates, len(updates))
    assert sorted(rows(union_of(updates))) == sorted(rows(union_of(other)))
    assert torch.equal(union_of(updates).y, union_of(other).y)


@given(some_present)
def test_uploads_of_all_sites_have_the_expected_form_and_are_finite(classes):
    net = tiny.net((3, 8, 8), CLASSES)
    virtual = replace(virtual_set(0, classes), images=torch.randn(len(classes) * PER_CLASS, 3, 8, 8))
    sent, expected = upload_of(virtual, CLASSES, PER_CLASS), expected_upload(net, PER_CLASS)
    form = expected.trees["virtual"]
    assert {k: (v.shape, v.dtype) for k, v in sent.items()} == {k: (v.shape, v.dtype) for k, v in form.items()}
    assert expected.params == {}
    assert sent["present"].nonzero().flatten().tolist() == classes
    absent = (sent["present"] == 0).repeat_interleave(PER_CLASS)
    assert not bool(sent["images"][absent].any())
    assert all(least <= float(sent["present"].min()) for least in expected.least.values())


def test_images_of_an_upload_are_in_the_order_of_the_classes():
    virtual = virtual_set(0, [0, 2])
    turned = replace(virtual, images=virtual.images.flip(0), labels=virtual.labels.flip(0))
    assert rows(union_of([uploaded(turned)])) == [
        rows(virtual.data)[i]
        for i in (1, 0, 3, 2)  # the order within a class is that of the set
    ]


def test_an_image_of_several_tiles_is_sent_whole_and_cut_by_the_server():
    virtual = replace(virtual_set(3, [1, 3]), tiles=2)
    update = uploaded(virtual)
    assert update.trees["virtual"]["images"].shape == (CLASSES * PER_CLASS, *SHAPE)
    union = union_of([update], tiles=2)
    assert torch.equal(union.x, cut(virtual.images, 2))
    assert torch.equal(union.y, virtual.data.y)


def test_a_class_with_fewer_images_is_padded_in_the_upload_and_not_in_the_union():
    virtual = virtual_set(0, [0, 1, 3])
    few = replace(virtual, images=virtual.images[1:-1], labels=virtual.labels[1:-1])
    update = uploaded(few)
    assert update.trees["virtual"]["present"].tolist() == [1, 2, 0, 1]
    assert update.trees["virtual"]["images"].shape == (CLASSES * PER_CLASS, *SHAPE)
    assert rows(union_of([update])) == rows(few.data)


def test_a_set_with_more_images_is_refused():
    virtual = virtual_set(0, [0, 1])
    with refuses("upload-uneven", DataError, site="site 0", per_class=1, counts=[2, 2, 0, 0]):
        upload_of(virtual, CLASSES, 1)
    with refuses("upload-uneven", DataError, counts=[2, 2]):
        upload_of(virtual, 1, PER_CLASS)


def test_a_union_of_nothing_is_refused():
    with refuses("union-empty", RunError):
        union_of([uploaded(virtual_set(0, []))])


# Images before they are sent


@dataclass(frozen=True, kw_only=True)
class Uploads(Condensing):
    name: ClassVar[str] = "uploads"


@pytest.mark.parametrize("start", [*STARTS, "made/earlier.npz"])
def test_images_that_begin_as_private_ones_or_in_a_file_are_sent_only_if_that_is_said(start):
    distil = tiny.settings(Uploads().distil, {"start": start})
    assert Uploads(distil=distil, allow_copies=True).distil.start == start
    if start in SAFE_STARTS:
        assert Uploads(distil=distil).distil.start == start
    else:
        with refuses("upload-of-copies", PrivacyError, method="uploads", start=start):
            Uploads(distil=distil)


def test_a_round_begins_with_the_images_that_were_kept_or_with_initial_ones():
    site, net, rng = tiny.federation(missing={"bee": 1}).by_name["bee"], tiny.net(), tiny.Stream(1)
    distil = tiny.settings(Uploads(allow_copies=True), tiny.SETTINGS | {"distil.start": "real"}).distil
    made = images_before(SiteState(), site, net, distil, 4, rng)
    assert (made.labels.tolist(), made.round, made.origin) == ([0, 0, 2, 2], 4, "bee")
    real = site.train.take(slice(None)).x
    assert all(any(torch.equal(image, each) for each in real) for image in made.images)
    assert images_before(SiteState(virtual=made), site, net, distil, 5, rng) is made


def test_a_site_that_uploads_tells_how_many_images_it_will_send_and_not_how_many_it_has():
    site = tiny.federation(missing={"bee": 1}).by_name["bee"]
    method = tiny.settings(Uploads(), tiny.SETTINGS)
    state, hello = method.enrol(site, tiny.net(), tiny.Stream(1))
    assert state.virtual is None
    assert site.train.counts(3).tolist() == [6, 0, 6]
    assert hello.counts.tolist() == [2, 0, 2]


# A server that trains


@dataclass(frozen=True, kw_only=True)
class TrainsAtServer(common.Training):
    """Sites upload their virtual sets, once distilled; the server trains on the union."""

    name: ClassVar[str] = "trains-at-server"
    train_on: ClassVar[str] = "nothing"
    sends: ClassVar[dict[str, str]] = {"trees/virtual": "images"}
    server_local: Local = Local(steps=3, batch=4, lr=0.05)

    start, broadcast = common.start, common.broadcast

    def enrol(self, site, net, rng):
        virtual = first_set(site, net, self.distil, rng)
        return SiteState(virtual=virtual), common.Hello(site=site.name, counts=virtual.data.counts(net.classes))

    def expects(self, msg, net, hello):
        return expected_upload(net, self.distil.per_class)

    def site(self, msg, state, site, net, rng, fit=common.fit):
        tree = upload_of(state.virtual, net.classes, self.distil.per_class)
        return Update(site=site.name, params={}, weight=1.0, trees={"virtual": tree}), state

    def server(self, state, updates, net, rng):
        trained = fit_on(net, state.params, union_of(updates), self.server_local, rng)
        return replace(state, params=trained.params, round=state.round + 1)


def run_at_server() -> tuple[tiny.Run, TrainsAtServer]:
    method = tiny.settings(TrainsAtServer(), tiny.SETTINGS)
    return tiny.Run(method, tiny.federation(missing={"bee": 1}), RoundSettings(rounds=2)), method


def test_what_a_server_trains_is_booked_as_the_work_of_the_server():
    run, _ = run_at_server()
    one_step = 3 * 4 * tiny.forward_flops()  # forward and backward for a batch of 4
    for record in run.records[1:]:
        assert set(record.seconds) - {"evaluate"} == {"server", "train"}
        assert record.flops["server"] == 3 * one_step
        assert record.flops.get("train", 0) == record.flops.get("distil", 0) == 0
        assert record.seconds["server"] > 0


def test_the_server_trains_on_the_images_of_all_sites():
    run, method = run_at_server()
    sites = [run.memory.site(name).virtual for name in run.names]
    assert [virtual.labels.unique().tolist() for virtual in sites] == [[0, 1, 2], [0, 2], [0, 1, 2]]
    x = torch.cat([v.images[v.labels == k] for k in range(3) for v in sites])
    y = torch.cat([v.labels[v.labels == k] for k in range(3) for v in sites])
    rng = tiny.Stream(0).at("server", 0)
    expected = fit_on(tiny.net(), run.states[0].params, LabelledSet(x, y), method.server_local, rng)
    assert tiny.equal(run.states[1].params, expected.params)


def test_training_on_a_set_is_what_a_site_does_with_it():
    net, data, method = (
        tiny.net(),
        tiny.labelled(tiny.net()),
        tiny.fedavg(train_on="real", local__augment=("shift",)),
    )
    start, rng, site = tiny.params(net), tiny.Stream(4), tiny.site_of(data)
    with metered() as meter, phase("site"):
        there = fit_on(net, start, data, method.local, rng)
    assert tiny.equal(there.params, common.fit(method, start, SiteState(), site, net, rng).params)
    assert meter.flops["train"] > 0


def test_gradient_matching_of_fedlgd_stays_the_work_of_the_server():
    run = tiny.Run(tiny.fedlgd(), tiny.federation(), RoundSettings(rounds=2))
    selected, other = run.records[1:]
    assert selected.flops["server"] > 0
    assert other.flops.get("server", 0) == 0
    assert selected.flops["distil"] > 0


@pytest.mark.parametrize("tree", [{"images": torch.zeros(6, 3, 8, 8)}, {"present": torch.ones(3)}, {}])
def test_an_upload_that_is_not_complete_is_refused(tree):
    @dataclass(frozen=True, kw_only=True)
    class Forgets(TrainsAtServer):
        def site(self, msg, state, site, net, rng, fit=common.fit):
            update, state = super().site(msg, state, site, net, rng, fit)
            return replace(update, trees={"virtual": tree}), state

    method = tiny.settings(Forgets(), tiny.SETTINGS)
    with refuses("too-few-updates", RunError, valid=0) as refused:
        tiny.Run(method, tiny.federation(), RoundSettings(rounds=1))
    assert "`Forgets.expects`" in refused.value.values["sites"]
