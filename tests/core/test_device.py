"""Work on a device is right by construction: what goes there comes back, and nothing is mixed on the way."""

from contextlib import contextmanager

import pytest
import torch
from torch import nn

from fedlgd.core import device
from fedlgd.core.device import Place, moved, to_cpu, to_device
from fedlgd.core.errors import SettingError
from fedlgd.core.net import Net, Output
from fedlgd.core.train import score
from fedlgd.core.types import Broadcast, Stream, VirtualSet
from fedlgd.engines.registry import Loop, choose, engine
from fedlgd.runs.config import resolve
from fedlgd.runs.estimate import estimate
from fedlgd.runs.folder import shared_cache
from fedlgd.runs.resume import engine_info
from fedlgd.runs.run import execute
from tests import tiny
from tests.contract import battery
from tests.core.pretend import GPU, MixedError, Pretend, is_there, tensors
from tests.errors import refuses


@pytest.fixture
def gpu(monkeypatch):
    """A machine with one GPU. The autograd engine does not ask the mode, so its results are marked here."""
    grad = torch.autograd.grad

    def marked(outputs, inputs, *args, **kwargs):
        wanted = [inputs] if isinstance(inputs, torch.Tensor) else list(inputs)
        got = grad(outputs, inputs, *args, **kwargs)
        for one, gradient in zip(wanted, got, strict=True):
            if gradient is not None:
                gradient._there = is_there(one)
        return got

    monkeypatch.setattr(torch.autograd, "grad", marked)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda *_: None)

    @contextmanager
    def same_noise(seed):
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield

    monkeypatch.setattr("fedlgd.core.train.noise", same_noise)


def played(case, place=Place()):
    of = battery.CASES[case]
    data = tiny.federation()
    net, diary = tiny.net(classes=len(data.classes)), battery.Diary()
    data = battery.prepared(of, data, net, battery.PLAN.seed)
    records = list(tiny.play(of, data, net, battery.PLAN, diary, Loop(place=place)))
    return tiny.without_seconds(records), battery.bits(diary.pages)


UNLOADED = "fedlap-private"  # gradients of single images load weights into a module, which the pretended GPU cannot
CASES = [case for case in battery.CASES if not case.endswith("-real") and case != UNLOADED]


@pytest.mark.parametrize("case", CASES)
def test_every_method_does_its_work_on_the_gpu_and_nothing_is_mixed(gpu, case):
    wanted = played(case)
    with Pretend() as pretend:
        got = played(case, Place(device="cuda"))
    assert got == wanted
    assert pretend.count > 1000


def test_what_a_run_keeps_is_in_memory(gpu):
    run = []
    with Pretend():
        memory, gpu = battery.Diary(), Loop(place=Place(device="cuda"))
        for _ in tiny.play(tiny.fedlgd(), tiny.federation(), tiny.net(), battery.PLAN, memory, gpu):
            run.append([*memory.server().params.values(), memory.server().anchors.images])
            run.append([memory.site(name).virtual.images for name in tiny.NAMES])
    assert len(list(tensors(run))) > 10
    assert not any(is_there(t) for t in tensors(run))


def test_the_pretended_gpu_refuses_what_a_real_one_would():
    x = torch.ones(3)
    with Pretend():
        far = x.to("cuda")
        assert far.device == GPU
        assert x.device.type == "cpu"
        assert (far + torch.tensor(1.0) + 2).device == GPU
        assert far[torch.tensor([0, 1])].device == GPU
        assert torch.equal(far.to("cpu"), x)
        for wrong in (
            lambda: far + x,
            lambda: torch.cat([far, x]),
            lambda: x[far.long()],
            lambda: nn.functional.cross_entropy(far[None], torch.tensor([1])),
            lambda: far.masked_fill(x > 0, 0.0),
            lambda: far.numpy(),
        ):
            with pytest.raises(MixedError):
                wrong()


class Shifted(nn.Module):
    """It has a constant that no state dict knows."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.head = nn.Linear(4, outputs)
        self.register_buffer("shift", torch.full((4,), 2.0), persistent=False)

    def forward(self, x):
        features = x.flatten(1) + self.shift
        return Output(features, self.head(features))


def test_constants_of_a_network_go_along(gpu):
    net = Net(Shifted, (1, 2, 2), 3, "shifted")
    params, x = net.init(Stream(0)), torch.randn(5, 1, 2, 2)
    wanted = net(params, x).logits
    with Pretend():
        got = Place(device="cuda").do(lambda given: net(*given).logits, (params, x))
    assert torch.equal(got, wanted)


def test_dropout_draws_on_the_gpu_and_leaves_its_state(gpu, monkeypatch):
    class Generator:
        seeds: list[int] = []

        def manual_seed(self, seed):
            self.seeds.append(seed)

    forked = []

    @contextmanager
    def fork(devices):
        forked.append(devices)
        yield

    monkeypatch.setattr(torch.cuda, "default_generators", [Generator(), Generator()])
    monkeypatch.setattr(torch.random, "fork_rng", fork)
    before = torch.default_generator.get_state()

    def work(_):
        with device.noise(7):
            pass

    Place(device="cuda").do(work, None)
    torch.default_generator.set_state(before)
    assert forked == [[torch.device("cuda")]]
    assert Generator.seeds == [7]


def test_in_memory_nothing_is_copied():
    message = Broadcast(round=0, params=tiny.params(tiny.net()))
    assert Place().do(lambda given: given, message) is message
    kept = Place(precision="bf16").do(lambda given: given, message)
    assert all(kept.params[name] is value for name, value in message.params.items())


def test_a_message_moves_whole_and_else_nothing():
    virtual = VirtualSet(images=torch.ones(2, 1, 2, 2), labels=torch.tensor([0, 1]), origin="ape", round=3)
    found = moved(virtual, torch.device("meta"))
    assert (found.images.device.type, found.labels.device.type) == ("meta", "meta")
    assert (found.origin, found.round) == (virtual.origin, virtual.round)
    assert moved(({"a": torch.ones(1)}, 3, None), torch.device("meta"))[0]["a"].is_meta
    assert to_device(virtual) is virtual
    assert to_cpu(virtual) is virtual


@pytest.mark.parametrize("wrong", ["gpu", "cuda:x", "cpu:1", "", "mps"])
def test_a_device_there_is_no_such_thing_as(wrong):
    with refuses("device-unknown", SettingError):
        Place(device=wrong)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refuses("no-gpu", SettingError):
        Place(device="cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert not Place(device="cuda:1").in_memory
    with refuses("no-such-gpu", SettingError, count=2):
        Place(device="cuda:2")


def test_a_gpu_is_not_shared_by_processes(gpu):
    place = Place(device="cuda")
    assert choose(None, 0, tiny.federation(), 1, place).name == "loop"
    with refuses("pool-needs-memory", SettingError):
        engine("pool", place=place)
    assert engine(place=place).describe(tiny.federation()).endswith("device cuda")
    assert engine_info(engine(place=place), tiny.federation()).device == "cuda"


def test_virtual_sets_of_another_device_are_other_sets(gpu, monkeypatch, tmp_path):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path))
    places = Place(), Place(precision="bf16"), Place(device="cuda"), Place(device="cuda:0", precision="bf16")
    assert len({str(shared_cache(place)._path) for place in places}) == 4


def test_an_estimate_tries_the_gpu(gpu):
    data = tiny.federation()
    config = resolve({}, {"method": "fedavg", "rounds": 2, "net.width": 4})
    with Pretend() as pretend:
        found = estimate(config, data, tiny.net(), place=Place(device="cuda"))
    assert found is not None
    assert found.seconds["train"] > 0
    assert pretend.count > 100


def test_bfloat16_is_near_and_its_sums_are_not_in_bfloat16():
    def after(place):
        memory = battery.Diary()
        list(tiny.play(tiny.fedavg(), tiny.federation(), tiny.net(), battery.PLAN, memory, Loop(place=place)))
        return memory.server()

    plain, rough = (after(at) for at in (Place(), Place(precision="bf16")))
    for name, value in plain.params.items():
        assert rough.params[name].dtype == value.dtype
        torch.testing.assert_close(rough.params[name], value, rtol=0.1, atol=0.02)
    assert not tiny.equal(plain.params, rough.params)


def test_passes_are_in_bfloat16_and_come_out_as_they_went_in():
    net = tiny.net()
    params, data = tiny.params(net), tiny.federation().sites[0].test
    seen = []
    hook = net._module.blocks[0].register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    found = Place(precision="bf16").do(lambda p: score(net, p, data, net.classes), params)
    hook.remove()
    assert set(seen) == {torch.bfloat16}
    assert found.loss == pytest.approx(score(net, params, data, net.classes).loss, rel=0.05)


def test_a_run_says_where_it_was_done(tmp_path):
    data = tiny.federation()
    config = resolve({}, {"method": "fedavg", "rounds": 1, "net.width": 4, "analysis": False})
    execute(config, data, tmp_path / "run", engine=Loop(place=Place(precision="bf16")))
    assert '"precision": "bf16"' in (tmp_path / "run" / "manifest.json").read_text()
