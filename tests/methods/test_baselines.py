"""The two ends of the scale: every site for itself, and all images in one place."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from fedlgd.core.train import batches
from fedlgd.core.types import Params, Stream
from fedlgd.data.federation import Federation
from fedlgd.methods.baselines import LocalOnly, Pooled
from fedlgd.runs.config import Config, RunSettings
from fedlgd.runs.run import Result, execute
from tests import tiny

NET = {"name": "convnet", "depth": 2, "width": tiny.WIDTH}


def _tiny(cls, **values):
    return tiny.settings(cls(), tiny.SETTINGS | {k.replace("__", "."): v for k, v in values.items()})


def _epochs(x, y, start: Params, local, address: Stream, rounds: int) -> Params:
    """Plain SGD, shuffled anew in every round."""
    net = tiny.net()
    w = {k: v.clone().requires_grad_() for k, v in start.items()}
    optimiser = torch.optim.SGD(w.values(), lr=local.lr)
    for t in range(rounds):
        for index in batches(len(y), local, address.at(t).generator("shuffle")):
            optimiser.zero_grad()
            F.cross_entropy(net(w, x[index]).logits, y[index]).backward()
            optimiser.step()
    return {k: v.detach() for k, v in w.items()}


# Every site for itself


def test_a_site_for_itself_is_plain_sgd_on_its_own_images_bit_for_bit():
    data = tiny.federation()
    method = _tiny(LocalOnly)
    run = tiny.Run(method, data, RunSettings(rounds=3, seed=4))
    first = tiny.net().init(Stream(4).at("init"))
    for name, site in data.by_name.items():
        part = site.train.take(slice(None))
        wanted = _epochs(part.x, part.y, first, method.local, Stream(4).at("site", name), 3)
        assert tiny.equal(run.memory.site(name).trees["model"], wanted)


def test_nothing_is_sent_in_any_round():
    """But for the class counts of enrolment, which every method asks for."""
    run = tiny.Run(_tiny(LocalOnly), tiny.federation(), RunSettings(rounds=3))
    assert [(r.bytes_up, r.bytes_down) for r in run.records[1:]] == [(0, 0)] * 3
    assert run.records[0].bytes_up == 3 * 8 * 3
    assert all(tiny.equal(s.params, run.states[0].params) for s in run.states)


def test_other_sites_make_no_difference():
    alone, together = (
        tiny.Run(_tiny(LocalOnly), tiny.federation(names=names), RunSettings(rounds=2))
        for names in (("bee",), tiny.NAMES)
    )
    assert tiny.equal(alone.memory.site("bee").trees["model"], together.memory.site("bee").trees["model"])
    assert alone.records[-1].scores["bee"] == together.records[-1].scores["bee"]


def test_one_site_for_itself_is_fedavg_of_one_site_bit_for_bit():
    data, plan = tiny.federation(names=("ape",)), RunSettings(rounds=3)
    a, b = tiny.Run(_tiny(LocalOnly), data, plan), tiny.Run(tiny.fedavg(train_on="real"), data, plan)
    assert tiny.equal(a.memory.site("ape").trees["model"], b.states[-1].params)


def test_a_site_that_never_took_part_is_scored_with_the_first_model():
    data = tiny.federation()
    run = tiny.Run(_tiny(LocalOnly), data, RunSettings(rounds=1, ratio=0.34))
    net, first = tiny.net(), run.states[0].params
    away = [name for name in tiny.NAMES if name not in run.records[1].sampled]
    assert len(away) == 2
    for name in away:
        site = data.by_name[name]
        logits = net.frozen(first, site.test.take(slice(None)).x).logits
        assert run.records[-1].scores[name].loss == pytest.approx(F.cross_entropy(logits, site.test.y).item())


# All images in one place


def _pooled(data: Federation, rounds: int = 3, seed: int = 4, **values) -> Result:
    method = _tiny(Pooled, **values)
    return execute(Config(method=method, plan=RunSettings(rounds=rounds, seed=seed), net=NET), data)


def test_pooled_training_is_plain_sgd_on_the_union_bit_for_bit():
    data = tiny.federation()
    result = _pooled(data)
    parts = [site.train.take(slice(None)) for site in data.sites]
    x, y = torch.cat([p.x for p in parts]), torch.cat([p.y for p in parts])
    assert len(y) == 54
    first = tiny.net().init(Stream(4).at("init"))
    address = Stream(4).at("site", "all sites together")
    wanted = _epochs(x, y, first, _tiny(Pooled).local, address, 3)
    assert tiny.equal(result.params, wanted)


def test_pooled_training_on_virtual_sets_takes_the_very_sets_that_other_methods_train_on():
    data = tiny.federation()
    result = _pooled(data, 2, train_on="virtual")
    run = tiny.Run(tiny.fedavg(), data, RunSettings(rounds=1, seed=4))
    sets = [run.memory.site(site.name).virtual for site in data.sites]
    x, y = torch.cat([s.images for s in sets]), torch.cat([s.labels for s in sets])
    first = tiny.net().init(Stream(4).at("init"))
    address = Stream(4).at("site", "all sites together")
    wanted = _epochs(x, y, first, _tiny(Pooled).local, address, 2)
    assert tiny.equal(result.params, wanted)


def test_the_pooled_model_is_scored_at_every_original_site():
    data = tiny.federation()
    result = _pooled(data)
    assert set(result.accuracy) == set(tiny.NAMES)
    for name, site in data.by_name.items():
        logits = result.model(site.test.take(slice(None)).x)[1]
        record = result.records[-1].scores[name]
        assert record.accuracy == (logits.argmax(1) == site.test.y).double().mean()
        assert record.loss == pytest.approx(F.cross_entropy(logits, site.test.y).item(), rel=1e-5)
    assert len({s.loss for s in result.records[-1].scores.values()}) == 3


def test_one_site_pooled_trains_on_its_own_images():
    data = tiny.federation(names=("ape",))
    result = _pooled(data, 1)
    part = data.by_name["ape"].train.take(slice(None))
    first = tiny.net().init(Stream(4).at("init"))
    wanted = _epochs(part.x, part.y, first, _tiny(Pooled).local, Stream(4).at("site", "all sites together"), 1)
    assert tiny.equal(result.params, wanted)


def test_sites_with_images_in_different_scales_are_pooled_as_network_input():
    data = tiny.federation(names=("ape", "bee"))
    bee = data.by_name["bee"]
    other = replace(bee.train, scale=replace(bee.train.scale, mean=(0.2, 0.2, 0.2)))
    mixed = replace(data, sites=(data.by_name["ape"], replace(bee, train=other)))
    result = _pooled(mixed, 1)
    x = torch.cat([s.train.take(slice(None)).x for s in mixed.sites])
    y = torch.cat([s.train.y for s in mixed.sites])
    first = tiny.net().init(Stream(4).at("init"))
    wanted = _epochs(x, y, first, _tiny(Pooled).local, Stream(4).at("site", "all sites together"), 1)
    assert tiny.equal(result.params, wanted)
