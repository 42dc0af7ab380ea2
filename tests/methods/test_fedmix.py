"""FedMix and NaiveMix: what a site shares once, how the pool reaches sites, and what is mixed with what."""

from collections.abc import Iterator

import pytest
import torch

from fedlgd.core.device import Place
from fedlgd.core.errors import PrivacyError
from fedlgd.core.types import Broadcast, Params, SiteState, Stream
from fedlgd.engines.server import Server
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import Answer, Sites, Task
from fedlgd.methods import fedmix, registry
from tests import tiny
from tests.errors import refuses

IMAGE = 3 * tiny.SIDE**2
ONE_ROUND = RoundSettings(rounds=1)


def mix(name: str = "fedmix", **values) -> fedmix.MeanAugmented:
    given = {"train_on": "real", "share": 0.2} | values
    return tiny.settings(registry.find_method(name)(), tiny.SETTINGS | given)


def enrolled(method: fedmix.MeanAugmented, names=tiny.NAMES, **data) -> tuple[list, tiny.Federation]:
    federation = tiny.federation(names, **data)
    hellos = [method.enrol(site, tiny.net(), Stream(0).at("enrol", site.name))[1] for site in federation.sites]
    return hellos, federation


def test_a_site_sends_the_mean_of_all_its_images_and_the_share_of_each_class():
    hellos, federation = enrolled(mix(), missing={"bee": 1})
    for hello in hellos:
        means, train = hello.trees["means"], federation.by_name[hello.site].train
        torch.testing.assert_close(means["images"], train.take(slice(None)).x.mean(0, keepdim=True))
        torch.testing.assert_close(means["labels"][0], train.counts(3) / len(train))


def test_a_mean_has_at_least_so_many_images_and_a_site_with_fewer_sends_none():
    """18 images: two groups of 9, not five of 8 images or fewer; empty rows keep the form."""
    method = mix(means=5)
    (hello,), federation = enrolled(method, ("ape",))
    means = hello.trees["means"]
    assert means["labels"].sum(1).tolist() == pytest.approx([1, 1, 0, 0, 0])
    whole = federation.sites[0].train.take(slice(None)).x
    torch.testing.assert_close(means["images"][:2].mean(0), whole.mean(0))
    assert not torch.allclose(means["images"][0], means["images"][1])
    (small,), _ = enrolled(method, ("ape",), train=2)
    assert not any(part.any() for part in small.trees["means"].values())
    assert {name: part.shape for name, part in small.trees["means"].items()} == {
        name: part.shape for name, part in method.expects_hello(tiny.net()).trees["means"].items()
    }


def test_means_of_few_images_are_refused_unless_copies_are_allowed():
    with refuses("means-of-few-images", PrivacyError, per_mean=7, least=8):
        mix(per_mean=7)
    hellos, federation = enrolled(mix(allow_copies=True, per_mean=1, means=18), ("ape",))
    sent, own = hellos[0].trees["means"]["images"], federation.sites[0].train.take(slice(None)).x
    assert all(any(torch.allclose(image, each) for each in own) for image in sent)


@pytest.mark.parametrize(("own", "others"), [(False, 2), (True, 3)])
def test_the_pool_has_the_means_of_the_other_sites_and_if_asked_those_of_the_site(own, others):
    method = mix(own=own, means=2)
    hellos, _ = enrolled(method)
    state = method.start(tiny.params(tiny.net()), hellos, tiny.net(), Stream(0))
    pool = method.broadcast(state, "bee").trees["pool"]
    wanted = [hello.trees["means"]["images"] for hello in hellos if own or hello.site != "bee"]
    assert torch.equal(pool["images"], torch.cat(wanted))
    assert pool["labels"].shape == (2 * others, 3)


def test_means_go_up_once_and_the_pool_goes_down_once_to_each_site():
    """G (C H W + K) 4 bytes up at enrolment; as much of every other site down with the first model."""
    plan = RoundSettings(rounds=4, ratio=0.67, seed=3)
    run = tiny.Run(mix(means=2), tiny.federation(), plan)
    means, model = 4 * 2 * (IMAGE + 3), 4 * tiny.param_count()
    assert run.records[0].bytes_up == 3 * (means + 8 * 3)
    had: set[str] = set()
    for record in run.records[1:]:
        new = {*record.sampled} - had
        had |= new
        assert record.bytes_down == len(record.sampled) * model + len(new) * 2 * means
        assert record.bytes_up == len(record.sampled) * model
    assert had == {*tiny.NAMES}
    assert all(set(run.memory.site(name).trees) == {"pool"} for name in tiny.NAMES)


def test_a_site_that_joins_late_gets_the_pool_and_one_that_forgets_its_state_gets_it_again():
    """Bee does not answer its enrolment and has no mean in the pool; it forgets all after the second round."""
    sent: list[tuple[int, str, int]] = []
    memory, plan, method = tiny.Kept(), RoundSettings(rounds=4, quorum=0.6), mix()
    data, net = tiny.federation(), tiny.net()
    sites, names = Sites(method, data, net, plan, memory.states, Place()), list(data.by_name)

    def work(tasks: Iterator[Task]) -> Iterator[Answer]:
        for task in tasks:
            if task.what == "train" and "pool" in task.message.trees:
                sent.append((task.round, task.site, len(task.message.trees["pool"]["images"])))
            if (task.what, task.round, task.site, task.after) == ("train", 2, "bee", 0):
                yield sites(Task(what="enrol", site="bee"))
            elif (task.what, task.site) != ("enrol", "bee"):
                yield sites(task)

    records = list(Server(method, names, names, net, plan, memory, work).run())
    assert [record.joined for record in records[1:]] == [("bee",), (), ("bee",), ()]
    late = [(0, "ape", 1), (0, "bee", 2), (0, "cat", 1), (0, "bee", 2)]
    assert sent == [*late, (2, "bee", 2)]
    assert all("pool" in memory.site(name).trees for name in names)


class Caught(Exception):  # noqa: N818 (carries the criterion out of `site`)
    pass


def criterion_of(method: fedmix.MeanAugmented, pool: Params, rng: Stream):
    """What the method hands to local training at a site that holds this pool."""
    seen = []

    def fit(*_, criterion=None, **__):
        seen.append(criterion)
        raise Caught

    site, net = tiny.federation().sites[0], tiny.net()
    message = Broadcast(round=0, params=tiny.params(net))
    with pytest.raises(Caught):
        method.site(message, SiteState(trees={"pool": pool}), site, net, rng, fit)
    return seen[0]


@pytest.mark.parametrize(("name", "mixup"), [("fedmix", fedmix.taylor_mixup), ("fedmix-naive", fedmix.naive_mixup)])
def test_every_batch_is_mixed_with_one_mean_drawn_from_the_whole_pool(name, mixup):
    net, data = tiny.net(), tiny.labelled(tiny.net(), 2, 3)
    pool = {
        "images": torch.randn(3, *net.shape, generator=torch.Generator().manual_seed(1)),
        "labels": torch.eye(3),
    }
    criterion, params = criterion_of(mix(name), pool, Stream(4)), tiny.params(net)
    by_mean = [mixup(net, params, data, pool["images"][g], pool["labels"][g], 0.2)[0].item() for g in range(3)]
    values = [criterion(net, params, data)[0].item() for _ in range(30)]
    assert {*values} == {*by_mean}


@pytest.mark.parametrize("name", ["fedmix", "fedmix-naive"])
def test_without_a_mean_of_another_site_it_is_fedavg_bit_for_bit(name):
    """One site alone, and sites that are too small for a mean."""
    for names, train in ((("ape",), 6), (tiny.NAMES, 2)):
        data, plan = tiny.federation(names, train=train), RoundSettings(rounds=2)
        alone = tiny.Run(mix(name), data, plan)
        plain = tiny.Run(tiny.settings(registry.find_method("fedavg")(), tiny.SETTINGS), data, plan)
        assert tiny.equal(alone.states[-1].params, plain.states[-1].params)
        assert alone.records[1].bytes_down == plain.records[1].bytes_down


def test_on_virtual_sets_the_means_are_those_of_virtual_images():
    method = mix(train_on="virtual", **{"distil.per_class": 3})
    site = tiny.federation().sites[0]
    state, hello = method.enrol(site, tiny.net(), Stream(0).at("enrol", "ape"))
    torch.testing.assert_close(hello.trees["means"]["images"][0], state.virtual.images.mean(0))


def test_with_a_budget_the_means_are_those_of_a_private_set_and_no_image_is_read():
    """The site is sealed: a read of an image that is not a release would raise."""
    values = {"train_on": "virtual", "distil.plan": "bank", "distil.private.epsilon": 50.0}
    private = {"distil.private.test_key": "t", "distil.private.delta": 1e-3, "distil.per_class": 8}
    run = tiny.Run(mix(**values | private), tiny.federation(names=("ape", "bee"), train=60), ONE_ROUND)
    assert run.records[1].bytes_down == 2 * 4 * (tiny.param_count() + IMAGE + 3)


@pytest.mark.parametrize("name", ["fedmix", "fedmix-naive"])
def test_a_mean_of_share_zero_changes_nothing_and_a_small_share_changes_little(name):
    data = tiny.federation()
    last = [tiny.Run(mix(name, share=share), data, ONE_ROUND).states[-1].params for share in (0.0, 1e-4, 0.3)]
    gaps = [max(float((part[key] - last[0][key]).abs().max()) for key in last[0]) for part in last[1:]]
    assert 0 < gaps[0] < 1e-4 < gaps[1]
