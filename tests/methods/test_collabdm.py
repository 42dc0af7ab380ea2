"""CollabDM: means of features add up over images and sites, and the server matches them."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlgd.core.errors import SettingError
from fedlgd.core.guard import sealed
from fedlgd.core.types import LabelledSet, Site, SiteState, Stream
from fedlgd.distill.distribution import match, random_networks
from fedlgd.distill.init import from_noise
from fedlgd.distill.settings import Distil, Private
from fedlgd.dp.budget import noise_levels, spent_epsilon
from fedlgd.dp.distil import open_releases
from fedlgd.dp.ledger import PrivacyLedger
from fedlgd.engines.settings import RoundSettings
from fedlgd.methods.collabdm import CollabDM, joined_means, public_draw, site_means
from fedlgd.nets.registry import build_net
from tests import tiny
from tests.errors import refuses

NET = tiny.net()
ALL = 1000


def collabdm(**values: Any) -> CollabDM:
    own = {name.replace("__", "."): value for name, value in values.items()}
    return tiny.settings(CollabDM(), tiny.SETTINGS | {"distil.steps": 4, "distil.real_per_class": ALL} | own)


def hellos(method: CollabDM, sites: list[Site]) -> list[Any]:
    return [method.enrol(site, NET, Stream(5).at("enrol", site.name))[1] for site in sites]


def server_after(method: CollabDM, sites: list[Site], rounds: int = 1) -> Any:
    state = method.start(tiny.params(NET), hellos(method, sites), NET, Stream(5).at("start"))
    for t in range(rounds):
        state = method.server(state, [], NET, Stream(5).at("server", t))
    return state


def split(data: LabelledSet, parts: list[int]) -> list[Site]:
    """The images at sites 0, 1, ...: `parts` says where each of them is."""
    found = [torch.tensor([i for i, part in enumerate(parts) if part == c]) for c in range(max(parts) + 1)]
    return [tiny.site_of(data.take(own), f"s{c}") for c, own in enumerate(found) if len(own)]


@given(st.lists(st.integers(0, 3), min_size=9, max_size=9))
@settings(max_examples=10)
def test_means_weighted_by_counts_are_those_of_all_images_in_one_place_however_they_are_split(parts):
    data, method = tiny.labelled(NET, per_class=3), collabdm(distil__steps=2)
    sites = split(data, parts)
    counts = torch.stack([site.train.counts(3) for site in sites])
    own = [site_means(site, NET, method.distil, Stream(5)) for site in sites]
    whole = site_means(tiny.site_of(data), NET, method.distil, Stream(5))
    torch.testing.assert_close(joined_means(own, counts), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("parts", [[0] * 9, [0, 1, 1, 0, 0, 1, 2, 2, 2], [2, 0, 0, 1, 1, 1, 0, 2, 2]])
def test_virtual_images_do_not_depend_on_how_the_images_are_split(parts):
    data = tiny.labelled(NET, per_class=3)
    one, several = server_after(collabdm(), [tiny.site_of(data)]), server_after(collabdm(), split(data, parts))
    torch.testing.assert_close(one.anchors.images, several.anchors.images, rtol=1e-4, atol=1e-4)


BANK = {"distil.plan": "bank", "distil.reuse": 2}


@pytest.mark.parametrize("plan", [{"distil.plan": "exact"}, BANK, BANK | {"distil.per_class": 12}])
def test_one_site_is_distribution_matching_at_that_site_bit_for_bit(plan):
    """From noise, with whole classes and the same networks."""
    method = tiny.settings(collabdm(), plan)
    site = tiny.federation().by_name["ape"]
    state = server_after(method, [site])
    random, scaled = random_networks(NET, method.distil)
    labels, rng = torch.arange(3).repeat_interleave(method.distil.per_class), Stream(5).at("collab")
    start = from_noise(len(labels), NET.shape, Stream(5).at("start").generator("images"))
    images = match(start, labels, site.train, random, lambda i: random.init(rng.at("net", i)), scaled, rng)
    assert torch.equal(state.anchors.images, images)
    assert torch.equal(state.anchors.labels, labels)


def test_without_steps_the_images_are_the_noise_that_they_start_from():
    state = server_after(collabdm(distil__steps=0), list(tiny.federation().sites), rounds=2)
    assert torch.equal(state.anchors.images, from_noise(6, NET.shape, Stream(5).at("start").generator("images")))


def test_later_rounds_go_on_with_the_same_means():
    method, sites = collabdm(), list(tiny.federation().sites)
    one, two = server_after(method, sites), server_after(method, sites, rounds=2)
    assert torch.equal(one.trees["means"]["means"], two.trees["means"]["means"])
    again = method.matched(one.anchors, one.trees["means"]["means"], NET, 5)
    assert torch.equal(two.anchors.images, again)


@given(st.permutations(range(3)))
@settings(max_examples=6)
def test_the_order_of_the_sites_does_not_matter(order):
    method, sites = collabdm(), list(tiny.federation().sites)
    one, other = server_after(method, sites), server_after(method, [sites[i] for i in order])
    torch.testing.assert_close(one.anchors.images, other.anchors.images, rtol=1e-5, atol=1e-6)


def test_sites_of_equal_weight_count_once_for_each_class_that_they_have():
    means = [torch.tensor([[[1.0], [5.0]]]), torch.tensor([[[4.0], [0.0]]])]
    counts = torch.tensor([[1, 2], [3, 0]])
    assert joined_means(means, counts).flatten().tolist() == [13 / 4, 5.0]
    assert joined_means(means, counts.clamp(max=1)).flatten().tolist() == [2.5, 5.0]
    sites = [tiny.federation().by_name["ape"], tiny.federation(train=2).by_name["bee"]]
    a, b = (server_after(collabdm(weigh=weigh), sites).anchors.images for weigh in ("counts", "sites"))
    assert not torch.equal(a, b)


def test_a_class_that_no_site_has_gets_no_images():
    sites = tiny.federation(missing=dict.fromkeys(tiny.NAMES, 1)).sites
    state = server_after(collabdm(), list(sites))
    assert state.anchors.labels.tolist() == [0, 0, 2, 2]
    assert bool(state.anchors.images.isfinite().all())


def test_sites_send_means_once_and_nothing_in_any_round():
    """R draws of K means of d numbers at the enrolment: 4 bytes each, and 8 for the count of a class."""
    method = collabdm(distil__plan="bank", distil__reuse=2)
    run = tiny.Run(method, tiny.federation(), RoundSettings(rounds=2))
    numbers = 2 * 3 * NET.features
    assert run.records[0].bytes_up == 3 * (4 * numbers + 8 * 3)
    assert [record.bytes_up + record.bytes_down for record in run.records[1:]] == [0, 0]


@pytest.mark.parametrize(("side", "published", "bank"), [(28, 18_475_000, 115_000), (32, 32_850_000, 205_000)])
def test_the_traffic_of_the_published_plan_and_of_a_bank(side, published, bank):
    net = build_net("convnet", (3, side, side), 10, {})
    paper = tiny.settings(CollabDM(), CollabDM.presets["paper"]).expects_hello(net)
    few = tiny.settings(CollabDM(), {"distil.steps": 10, "distil.reuse": 1}).expects_hello(net)
    assert 4 * paper.trees["means"]["means"].numel() == pytest.approx(published, rel=0.01)
    assert 4 * few.trees["means"]["means"].numel() == pytest.approx(bank, rel=0.01)


@pytest.mark.parametrize("start", ["real", "statistics", "made/earlier.npz"])
def test_a_start_that_the_server_does_not_have_is_refused(start):
    with refuses("collab-start", SettingError, start=start):
        CollabDM(distil=Distil(start=start))


# Differential privacy


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_STATE", str(tmp_path / "home"))


HIDDEN = {"distil.plan": "bank", "distil.reuse": 2, "distil.private.epsilon": 8.0, "distil.steps": 6}


def hidden(**values: Any) -> CollabDM:
    return tiny.settings(CollabDM(), tiny.SETTINGS | HIDDEN | {k.replace("__", "."): v for k, v in values.items()})


def test_the_budget_is_spent_on_one_release_for_each_draw_and_the_counts():
    """mu^2 = 1 / sigma_counts^2 + R / sigma^2, exactly that of epsilon; steps and rounds are free."""
    for steps in (6, 60):
        method = hidden(distil__steps=steps, distil__reuse=steps // 3)
        private = method.distil.private
        assert (private.releases, private.refine) == (3, 0.0)
        levels = noise_levels(private, method.distil.start)
        assert {name: level.releases for name, level in levels.items()} == {"counts": 1, "distil": 3}
        assert spent_epsilon(levels.values(), private.delta) == pytest.approx(8.0, rel=1e-6)


@pytest.mark.usefixtures("home")
def test_a_ledger_has_what_was_promised_after_any_number_of_rounds_and_runs():
    site, method = tiny.federation(train=60).sites[0], hidden()
    shut = sealed(site, "collabdm")  # nothing but releases reads it
    first = method.enrol(shut, NET, Stream(5).at("enrol", site.name))[1]
    ledger = PrivacyLedger(site.name, method.distil.private)
    assert ledger.spent() == pytest.approx(8.0, rel=1e-6)
    again = method.enrol(shut, NET, Stream(5).at("enrol", site.name))[1]
    assert torch.equal(first.trees["means"]["means"], again.trees["means"]["means"])
    assert ledger.spent() == pytest.approx(8.0, rel=1e-6)
    update, _ = method.site(
        method.broadcast(server_after(method, [shut]), site.name), SiteState(), shut, NET, Stream(5)
    )
    assert (update.params, update.trees, update.metrics) == ({}, {}, {})


@pytest.mark.usefixtures("home")
def test_its_releases_are_not_those_of_private_virtual_sets_with_the_same_settings():
    site, distil = (
        tiny.federation(train=60).sites[0],
        replace(hidden().distil, private=Private(epsilon=8.0, total=99)),
    )
    one, other = (open_releases(site, NET, distil, 5, 0, kind=kind).account for kind in ("distil", "collab"))
    assert one != other


@pytest.mark.usefixtures("home")
def test_without_noise_and_clipping_the_released_means_are_the_means():
    """`released_means` without noise and with a bound that no feature reaches."""
    site = tiny.federation(train=60).sites[0]
    method = hidden(distil__private__epsilon=100.0, distil__private__clip=100.0, distil__private__test_key="open")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedlgd.dp.release.gaussian", lambda _, shape: torch.zeros(shape, dtype=torch.float64))
        hello = method.enrol(site, NET, Stream(5).at("enrol", site.name))[1]
    clean = collabdm(distil__plan="bank", distil__reuse=2, distil__steps=6)
    plain = clean.enrol(site, NET, Stream(5).at("enrol", site.name))[1]
    torch.testing.assert_close(hello.trees["means"]["means"], plain.trees["means"]["means"], rtol=1e-4, atol=1e-5)
    assert torch.equal(hello.counts, plain.counts)


def test_networks_are_the_same_at_all_sites_and_differ_between_draws_and_seeds():
    distil = collabdm().distil
    (a, _), (b, _), (c, _), (d, _) = (public_draw(NET, distil, *at) for at in ((5, 0), (5, 0), (5, 1), (6, 0)))
    assert tiny.equal(a, b)
    assert not tiny.equal(a, c)
    assert not tiny.equal(a, d)
