"""Private distillation: the clipping bound, the level of the noise, how often it is drawn, and what is refused."""

import math
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.attacks.membership import audited_epsilon
from fedlgd.core.errors import PrivacyError
from fedlgd.core.meter import metered, phase
from fedlgd.core.train import Local
from fedlgd.core.types import LabelledSet, Scale, Site, SiteState, Stream
from fedlgd.distill.distribution import real_means
from fedlgd.distill.settings import Distil, Private
from fedlgd.dp import accounting, distil, ledger, release
from fedlgd.dp.budget import Level
from fedlgd.dp.distil import first_private_set, open_releases, planned_refinements, refine_privately
from fedlgd.dp.ledger import PrivacyLedger, generator_for
from fedlgd.dp.release import add_noise, check_protected, class_sums, clip_rows, clipped_sums
from fedlgd.dp.training import Dp, training_account
from fedlgd.methods.fedavg import FedAvg
from tests import tiny
from tests.errors import refuses

NET = tiny.net()
PARAMS = tiny.params(NET)
SITE = tiny.federation(train=12).sites[0]
HOW = Distil(
    per_class=2, steps=6, width=0, augment=("crop", "color"), private=Private(epsilon=50, releases=4, blocks=2)
)


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_STATE", str(tmp_path / "home"))


def private(**values: Any) -> Distil:
    """`HOW` with other settings of `distil.private`."""
    return replace(HOW, private=replace(HOW.private, **values))


def first(how: Distil = HOW, site: Site = SITE, seed: int = 0, refinements: int = 0) -> SiteState:
    return first_private_set(site, NET, how, Stream(seed).at("enrol", site.name, "distil"), refinements)


def same(a: SiteState, b: SiteState) -> bool:
    return a.virtual is not None and b.virtual is not None and torch.equal(a.virtual.images, b.virtual.images)


# The clipping bound


@st.composite
def neighbours(draw):
    """Images, labels, and the place of one image that is removed; a centre and a bound."""
    seed, n = draw(st.integers(0, 10_000)), draw(st.integers(1, 12))
    generator = torch.Generator().manual_seed(seed)
    x = draw(st.sampled_from([0.01, 1.0, 100.0])) * torch.randn(n, *NET.shape, generator=generator)
    y = torch.randint(tiny.CLASSES, (n,), generator=generator)
    centre = draw(st.sampled_from([0.0, 3.0])) * torch.randn(tiny.CLASSES, NET.features, generator=generator)
    return LabelledSet(x, y), draw(st.integers(0, n - 1)), centre, draw(st.floats(0.01, 10))


def sums(data: LabelledSet, centre, bound):
    members = [data.of_class(k) for k in range(tiny.CLASSES)]
    return clipped_sums(NET, PARAMS, data, members, [lambda x: x] * tiny.CLASSES, centre, bound)


@given(neighbours(), st.integers(0, tiny.CLASSES - 1))
def test_one_image_moves_all_class_sums_together_by_at_most_the_bound(drawn, label):
    data, out, centre, bound = drawn
    keep = torch.arange(len(data)) != out
    whole, without = sums(data, centre, bound), sums(LabelledSet(data.x[keep], data.y[keep]), centre, bound)
    assert float((whole - without).norm()) <= bound * (1 + 1e-5)
    other = LabelledSet(data.x.clone(), data.y.clone())
    other.x[out], other.y[out] = torch.randn(NET.shape), label
    assert float((whole - sums(other, centre, bound)).norm()) <= 2 * bound * (1 + 1e-5)


def test_an_adversarial_image_moves_a_sum_by_the_whole_bound_and_its_replacement_by_twice_as_much():
    """The bound is exact: with less noise than for C, or than for 2 C, the promise would be broken."""
    centre, bound = torch.zeros(tiny.CLASSES, NET.features), 1e-3
    x = torch.randn(2, *NET.shape, generator=torch.Generator().manual_seed(0))
    ones, others = (NET.by_batch(PARAMS, image[None]).features[0] for image in x)
    centre[1] = (ones + others) / 2  # between the two images: what they add to the sum has opposite directions
    alone, instead = (sums(LabelledSet(image[None], torch.tensor([1])), centre, bound) for image in x)
    assert float(alone.norm()) == pytest.approx(bound, rel=1e-3)
    assert float((alone - instead).norm()) == pytest.approx(2 * bound, rel=1e-3)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=5))
def test_whatever_the_features_are_a_clipped_row_has_at_most_the_bound(row):
    assert float(clip_rows(torch.tensor([row]), 1.0).norm()) <= 1 + 1e-9


def test_without_bound_and_noise_the_targets_are_the_means_of_the_bank_plan():
    members = [SITE.train.of_class(k) for k in range(tiny.CLASSES)]
    transforms = [lambda x: x.flip(3)] * tiny.CLASSES
    wanted = real_means(NET, PARAMS, SITE.train, members, transforms)
    centre = torch.randn(wanted.shape)
    clean = clipped_sums(NET, PARAMS, SITE.train, members, transforms, centre, math.inf)
    torch.testing.assert_close((centre + clean / 12).float(), wanted, rtol=1e-5, atol=1e-5)


def test_the_features_of_an_image_do_not_depend_on_its_batch():
    x = SITE.train.take(slice(None)).x
    alone = torch.cat([NET.by_batch(PARAMS, image[None]).features for image in x])
    torch.testing.assert_close(NET.by_batch(PARAMS, x).features, alone, rtol=1e-4, atol=1e-5)
    check_protected(SITE, NET, "distil.private.epsilon")


def test_a_large_class_is_summed_in_parts(monkeypatch):
    members = [SITE.train.of_class(k) for k in range(tiny.CLASSES)]
    whole = class_sums(SITE.train, members, 3, lambda _, x: x.mean((2, 3)))
    monkeypatch.setattr(release, "MAX_IMAGES_IN_MEMORY", 5)
    torch.testing.assert_close(class_sums(SITE.train, members, 3, lambda _, x: x.mean((2, 3))), whole)


# The level of the noise


def released(site: Site, how: Distil, number: int, images: torch.Tensor) -> torch.Tensor:
    """One target by the whole way, from a key of its own."""
    level = Level(2.0)
    book = ledger.Simulation(f"key {number}", site.name)
    desk = release.Releases(
        site=site,
        book=book,
        account="a",
        levels={"distil": level},
        clip=how.private.clip,
        classes=[0, 1, 2],
        sizes=torch.full((3,), 12.0),
    )
    return desk.target("distil", "0", NET, PARAMS, [lambda x: x] * 3, images)


def test_a_target_has_noise_of_sigma_times_the_bound_over_the_size_of_the_class():
    """A forgotten factor 2, or a second draw (factor 1.41), is far outside of the 5 standard errors."""
    images = torch.randn(6, *NET.shape)
    targets = torch.stack([released(SITE, HOW, i, images) for i in range(60)]).double()
    wanted = 2.0 * HOW.private.clip * release.noise_norm(NET, PARAMS) / 12
    samples = targets.numel() - targets[0].numel()
    measured = float(targets.var(0).mean().sqrt())
    assert measured == pytest.approx(wanted, rel=5 / math.sqrt(2 * samples))


def test_counts_and_initial_images_have_the_noise_of_their_part():
    level, zero = Level(3.0), torch.zeros(12, 5)
    counts, sums = [], []
    for i in range(400):
        book = ledger.Simulation(f"key {i}", SITE.name)
        counts.append(release.noisy_counts(book, "a", level, SITE.train, tiny.CLASSES))
        desk = release.Releases(
            site=SITE, book=book, account="a", levels={"start": level}, clip=1.0, classes=[0, 1, 2]
        )
        sums.append(desk.sums(5, 2.0, lambda x: zero[: len(x)]))
    for found, wanted in ((counts, 3.0), (sums, 3.0 * 2.0)):
        values = torch.stack(found)
        error = 5 / math.sqrt(2 * (values.numel() - values[0].numel()))
        assert float(values.var(0).mean().sqrt()) == pytest.approx(wanted, rel=error)


def test_an_attacker_tells_neighbours_apart_by_one_over_sigma():
    """The mechanism on a toy with and without a record of norm C: (difference of means) / std = 1 / sigma."""
    sigma, bound, draws = 3.0, 2.0, 20_000
    record = torch.zeros(1, 4, dtype=torch.float64)
    record[0, 1] = 50.0
    moved = clip_rows(record, bound)[0]
    sides = [
        add_noise(value.expand(draws, 4), sigma * bound, generator_for(b"k", side))[:, 1].numpy()
        for side, value in (("in", moved), ("out", torch.zeros(4)))
    ]
    gap = (sides[0].mean() - sides[1].mean()) / np.concatenate([s - s.mean() for s in sides]).std()
    assert gap == pytest.approx(1 / sigma, abs=3 * math.sqrt(2 / draws))


CANARIES = 768  # 3 classes of 256 features


def dirac_audit(monkeypatch, epsilon: float, too_little: float = 1.0, uses: int = 1) -> float:
    """A one-run audit of private distillation: canary i, in with probability 1/2, is C e_i in every sum.

    The attacker adds up what all releases say about each canary, and guesses about the surest tenth on both ends.
    too_little: by what the noise is divided; uses: how often a sum is used, with new noise each time.
    """
    net = tiny.net(width=64)
    members = np.random.default_rng(7).random(CANARIES) < 0.5
    inside = torch.from_numpy(members).double().view(3, -1)
    scores, real, honest = torch.zeros(3, 256, dtype=torch.float64), release.clipped_sums, release.add_noise

    def with_canaries(*given):
        return real(*given) + given[-1] * inside

    def add_noise(value, scale, generator):
        draws = [honest(value, scale / too_little, generator) for _ in range(uses)]
        return torch.stack(draws).mean(0)

    monkeypatch.setattr(release, "clipped_sums", with_canaries)
    monkeypatch.setattr(release, "add_noise", add_noise)
    how = replace(
        HOW, steps=16, start="noise", private=Private(epsilon=epsilon, releases=16, test_key="k", counts=0.3)
    )
    heard = replace(
        tiny.federation(train=80).sites[0],
        on_release=lambda told: scores.add_(told.sums / (told.level.sigma**2 * told.bound)),
    )
    first_private_set(heard, net, how, Stream(0).at("enrol", "ape", "distil"))
    return audited_epsilon(scores.flatten().numpy(), members, 1e-5)


@pytest.mark.parametrize("epsilon", [4.0, 10.0])
def test_a_one_run_audit_with_dirac_canaries_does_not_refute_the_promise(monkeypatch, epsilon):
    """It sees a part of a true epsilon: with 1 000 canaries about 1.4 of 4, and 3.5 of 10."""
    assert 0.05 * epsilon < dirac_audit(monkeypatch, epsilon) < epsilon


@pytest.mark.parametrize("wrong", [{"too_little": 16.0}, {"uses": 256}])
def test_a_one_run_audit_refutes_forgotten_noise_and_noise_that_is_averaged_away(monkeypatch, wrong):
    assert dirac_audit(monkeypatch, 1.0, **wrong) > 1.0


# How often noise is drawn


@pytest.fixture
def draws(monkeypatch):
    """Shapes of the noise that was drawn."""
    shapes: list[tuple[int, ...]] = []

    def counted(generator, shape, wrapped=ledger.gaussian):
        shapes.append(shape)
        return wrapped(generator, shape)

    monkeypatch.setattr(release, "gaussian", counted)
    return shapes


def test_noise_is_drawn_once_for_each_release_however_many_steps_use_it(draws):
    state = first(replace(HOW, steps=40))
    assert draws == [(3,), (3, 6)] + [(3, NET.features)] * 4
    assert state.trees["released"]["targets"].shape == (4, 3, NET.features)
    assert same(state, first(replace(HOW, steps=40)))
    assert len(draws) == 6


def test_there_are_no_more_releases_than_steps_because_each_adds_to_the_noise_of_all(draws):
    many = private(releases=100)
    assert many.private.releases == many.steps == 6
    assert first(many).trees["released"]["targets"].shape[0] == 6
    assert replace(many, steps=0).private.releases == 6
    assert Distil(steps=6, private=Private()).private == Private()


def test_refinement_draws_once_per_pair_and_round_and_never_again(draws):
    later = replace(HOW, pairs=3, steps=5)
    count = planned_refinements(later, 2)
    assert count == 6
    state = first(refinements=count)
    before = len(draws)

    def go(t, params=PARAMS):
        return refine_privately(state, SITE, NET, params, later, HOW, count, t, Stream(0).at("site", "ape", t))

    one = go(0)
    assert len(draws) == before + 3
    assert same(one, go(0))
    assert len(draws) == before + 3
    assert not same(one, state)
    assert one.virtual.round == 0
    go(1)
    with refuses("budget-exceeded", PrivacyError):
        go(1, tiny.params(NET, 9))


def test_refinement_without_augmentation_needs_one_release_a_round():
    assert planned_refinements(replace(HOW, pairs=3, augment=()), 2) == 2


def test_the_same_run_again_releases_the_same_and_other_data_something_else():
    one = first()
    assert same(one, first())
    assert same(one, first(private(total=90)))
    x = SITE.train.x.clone()
    x[0, 0, 0, 0] ^= 1
    changed = replace(SITE, train=replace(SITE.train, x=x))
    other = first(private(total=90), changed)
    gap = (one.trees["released"]["counts"] - other.trees["released"]["counts"]).abs()
    assert (gap > 1e-6).all()


def test_a_second_run_with_the_same_images_is_free_and_one_with_other_settings_is_added(tmp_path):
    """Without refinement a run spends 70 % of mu^2; two runs spend twice as much."""
    how = replace(private(epsilon=4, counts=0.2, total=90), per_class=1)
    file = tmp_path / "home" / "privacy" / "ape" / "ledger.json"
    first(how)
    before, once = file.read_bytes(), PrivacyLedger("ape", how.private).spent()
    first(how)
    assert file.read_bytes() == before
    mu2 = 0.7 * accounting.mu_for(4, 1e-5) ** 2
    assert once == pytest.approx(accounting.epsilon(math.sqrt(mu2), 1e-5), rel=1e-9)
    first(replace(how, lr=2.0))
    twice = PrivacyLedger("ape", how.private).spent()
    assert twice == pytest.approx(accounting.epsilon(math.sqrt(2 * mu2), 1e-5), rel=1e-9)


def test_accounts_of_earlier_versions_are_found_again():
    """Another name for the same releases would make them a second time."""
    how = Distil(per_class=2, steps=3, private=Private(epsilon=4, scores=1.0, total=9.0, test_key="k"))
    assert open_releases(SITE, NET, how, 7, 3).account == "distil, seed 7, e2cbbee59326e91cf1b18788077d7729"
    sgd = Dp(epsilon=4, rounds=3, test_key="k")
    _, account = training_account(sgd, Local(batch=8), SITE, NET, 7)
    assert account == "dp-sgd, seed 7, 379fa5b64884eb5b2798b967d621992c"


def test_another_seed_is_refused_beyond_the_total():
    first()
    with refuses("budget-exceeded", PrivacyError, site="ape", section="distil.private"):
        first(seed=1)
    first(private(total=100), seed=1)


def test_secrets_differ_between_sites_and_homes(tmp_path, monkeypatch):
    one = first()
    monkeypatch.setenv("FEDLGD_STATE", str(tmp_path / "other"))
    assert not same(one, first())


def test_a_random_part_of_the_images_is_another_one_in_each_release():
    how = private(rate=0.5, epsilon=20, counts=0.2)
    assert first(how).trees["released"]["targets"].isfinite().all()
    desk = release.Releases(site=SITE, book=None, account="", levels={}, clip=1.0, classes=[0, 1, 2])
    sizes = [sum(map(len, desk.members(0.5, generator_for(b"k", str(i))))) for i in range(200)]
    assert np.mean(sizes) == pytest.approx(18, abs=1)
    assert np.var(sizes) == pytest.approx(9, rel=0.4)


# The result


@pytest.mark.parametrize("start", ["noise", "statistics", "mean-image"])
def test_with_little_noise_virtual_images_come_near_the_real_means(start):
    how = replace(private(epsilon=100, clip=3.0, test_key="k"), steps=40, start=start, augment=(), lr=0.1)
    data = tiny.federation(train=60).sites[0]
    state = first(how, data)
    means = [
        torch.stack([NET.by_batch(PARAMS, s.take(s.of_class(k)).x).features.mean(0) for k in range(3)])
        for s in (data.train, state.virtual.data, first(replace(how, steps=0), data, seed=0).virtual.data)
    ]
    near, far = ((means[0] - other).norm() for other in means[1:])
    assert near < far


def test_off_changes_nothing():
    made = []
    for epsilon in (0.0, math.inf):
        distil = replace(HOW, private=Private(epsilon=epsilon))
        state, _ = FedAvg(train_on="virtual", distil=distil).enrol(SITE, NET, Stream(0).at("enrol", "ape"))
        made.append(state.virtual.images)
        assert state.trees == {}
    assert torch.equal(*made)


def test_the_cost_does_not_tell_the_number_of_images():
    spent = []
    for n in (12, 13):
        site = replace(SITE, train=LabelledSet(SITE.train.x[:n], SITE.train.y[:n]))
        with metered() as meter, phase("distil"):
            released(site, HOW, 0, torch.zeros(6, *NET.shape))
        spent.append(meter.flops["distil"])
    assert spent[0] == spent[1]


# What is refused


def scaled() -> Site:
    return replace(SITE, train=replace(SITE.train, scale=Scale((0.4,) * 3, (0.2,) * 3)))


def test_scaling_by_private_pixels_is_refused():
    with refuses("scaled-by-private-pixels", PrivacyError):
        first(site=scaled())


def test_batch_norm_is_refused():
    with refuses("batch-norm-with-privacy", PrivacyError):
        first_private_set(SITE, tiny.net(norm="batch"), HOW, Stream(0))


def test_a_network_that_mixes_images_is_refused_whatever_it_says():
    net = tiny.net()
    inner = net._module.forward

    def mixing(x):
        features, logits = inner(x)
        return features - features.mean(0), logits

    net._module.forward = mixing
    with refuses("batch-norm-with-privacy", PrivacyError):
        first_private_set(SITE, net, HOW, Stream(0))


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"start": "real"}, r"distil\.start=noise"),
        ({"start": "kmeans"}, r"distil\.start=noise"),
        ({"start": "sets/a.npz"}, r"distil\.start=noise"),
        ({"plan": "exact"}, r"distil\.plan=bank"),
    ],
)
def test_what_asks_for_images_too_often_is_refused(values, words):
    with pytest.raises(PrivacyError, match=words):
        replace(HOW, **values)
    assert replace(HOW, private=Private(), **values)


@pytest.fixture
def wide_margin(monkeypatch):
    """Noise from a random secret must not make a class look large enough."""
    monkeypatch.setattr("fedlgd.dp.distil.COUNT_MARGIN", 10.0)


@pytest.mark.usefixtures("wide_margin")
def test_a_site_without_a_large_class_is_refused_by_noisy_counts_alone():
    with refuses("no-class-large-enough", PrivacyError):
        first(private(epsilon=1))


def test_the_advice_to_a_refused_site_holds_for_counts_that_are_drawn_anew():
    """As many virtual images as advised are refused for none of the counts that other noise makes of 100 images."""
    sigma, random = 2.0, np.random.default_rng(0)
    for _ in range(200):
        seen, later = (torch.tensor([100 + sigma * random.standard_normal()]) for _ in range(2))
        with pytest.raises(PrivacyError) as refused:
            distil._large_enough(seen, 110, sigma, "ape")
        advised = int(re.search(r"per_class=(\d+)", str(refused.value.values["smaller"]))[1])
        assert distil._large_enough(later, advised, sigma, "ape") == [0]


@pytest.mark.usefixtures("wide_margin")
@pytest.mark.parametrize("refinements", [0, 2])
def test_a_refused_site_is_charged_for_its_counts_alone(refinements):
    with refuses("no-class-large-enough", PrivacyError):
        first(private(epsilon=1), refinements=refinements)
    assert 0 < PrivacyLedger(SITE.name, Private(epsilon=1)).spent() < 0.2


def test_what_cannot_be_afforded_in_the_end_is_refused_before_the_counts():
    first(private(epsilon=50))
    before = PrivacyLedger(SITE.name, Private(epsilon=50)).spent()
    with refuses("budget-exceeded", PrivacyError):
        first(private(epsilon=50), seed=1)
    assert PrivacyLedger(SITE.name, Private(epsilon=50)).spent() == before


def test_small_classes_are_left_out_without_an_error():
    y = SITE.train.y.clone()
    y[y == 1] = 0
    y[0] = 1
    state = first(site=replace(SITE, train=replace(SITE.train, y=y)))
    assert state.virtual.labels.unique().tolist() == [0, 2]


def test_a_delta_of_one_image_is_refused():
    with pytest.raises(
        PrivacyError, match=r"distil\.private\.delta is 0\.05.*distil\.private\.delta=0\.01 or less"
    ):
        first(private(delta=0.05))
