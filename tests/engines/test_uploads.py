"""A method can expect tensors at enrolment, and other tensors of each site."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
import torch

from fedlgd.core.device import Place
from fedlgd.core.errors import RunError
from fedlgd.core.types import Trees
from fedlgd.engines.registry import Loop, Pool
from fedlgd.engines.server import Server, known_hello
from fedlgd.engines.settings import RoundSettings
from fedlgd.engines.site import Answer, Sites, Task
from fedlgd.methods import common
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.protocol import Expected
from fedlgd.runs.run import execute
from tests import tiny
from tests.errors import refuses
from tests.runs.folder import config, run_until

needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="worker processes are forked")
every_engine = pytest.mark.parametrize("engine", ["loop", pytest.param("pool", marks=needs_fork)])

SPOIL: dict[str, Callable[[Trees], Trees]] = {
    "": lambda trees: trees,
    "missing": lambda trees: {name: {} for name in trees},
    "more": lambda trees: {**trees, "more": {"x": torch.zeros(1)}},
    "dtype": lambda trees: {"means": {"images": trees["means"]["images"].double()}},
    "infinite": lambda trees: {"means": {"images": trees["means"]["images"] / 0}},
}


@dataclass(frozen=True, kw_only=True)
class MeanImages(FedAvg):
    """A site sends its mean image at enrolment, and in every round a number for each of its images."""

    spoil: str = ""

    def enrol(self, site, net, rng):
        state, hello = common.enrol(self, site, net, rng)
        trees = {"means": {"images": site.train.take(slice(None)).x.mean(0)}}
        return state, replace(hello, trees=SPOIL[self.spoil if site.name == "bee" else ""](trees))

    def expects_hello(self, net):
        return replace(FedAvg.expects_hello(self, net), trees={"means": {"images": torch.empty(net.shape)}})

    def start(self, params, hellos, net, rng):
        trees = {hello.site: hello.trees["means"] for hello in hellos}
        return replace(common.start(self, params, hellos, net, rng), trees=trees)

    def expects(self, msg, net, hello):
        return Expected(msg.params, {"numbers": {"each": torch.empty(int(hello.counts.sum()))}})

    def site(self, msg, state, site, net, rng, fit=common.fit):
        update, state = FedAvg.site(self, msg, state, site, net, rng, fit)
        return replace(update, trees={"numbers": {"each": torch.zeros(len(site.train))}}), state


class Late(MeanImages):
    """Starts without what the sites sent."""

    start = common.start


def test_tensors_of_the_enrolment_reach_the_server():
    data = tiny.federation()
    run = tiny.Run(MeanImages(), data, RoundSettings(rounds=1))
    means = {site.name: site.train.take(slice(None)).x.mean(0) for site in data.sites}
    assert tiny.equal({name: tree["images"] for name, tree in run.states[-1].trees.items()}, means)
    uploaded = 3 * 4 * 3 * tiny.SIDE**2
    assert (
        run.records[0].bytes_up == tiny.Run(FedAvg(), data, RoundSettings(rounds=1)).records[0].bytes_up + uploaded
    )


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("missing", "'trees/means/images' is missing"),
        ("more", "'trees/more/x' (float32 (1,)) is not expected"),
        ("dtype", "'trees/means/images' is float64 (3, 8, 8), not float32 (3, 8, 8)"),
        ("infinite", "not finite in 'trees/means/images'"),
    ],
)
def test_other_tensors_at_enrolment_are_refused(spoil, said):
    memory = tiny.Kept()
    with refuses("too-few-enrolled", RunError, enrolled=2, asked=3) as refused:
        tiny.Run(MeanImages(spoil=spoil), tiny.federation(), RoundSettings(rounds=1), memory)
    sites = refused.value.values["sites"]
    assert sites.startswith("'bee'")
    assert said in sites
    assert ("`MeanImages.expects_hello`" in sites) == (spoil != "infinite")
    assert memory.server() is None


@every_engine
def test_an_expectation_can_depend_on_the_site_also_after_a_resume(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / "home"))
    data, how = tiny.federation(train=3, test=1, missing={"bee": 1}), config(MeanImages())
    run_until(1, how, data, tmp_path / "run")
    chosen = Loop() if engine == "loop" else Pool(workers=2)
    records = execute(how, data, tmp_path / "run", engine=chosen).records
    assert [record.refused for record in records] == [{}] * 4


def test_a_site_that_joins_late_is_expected_to_send_what_its_new_hello_says():
    """Bee does not answer its enrolment, and enrols in the first round."""
    data, plan, memory, method = tiny.federation(), RoundSettings(rounds=2, quorum=0.6), tiny.Kept(), Late()
    sites = Sites(method, data, tiny.net(), plan, memory.states, Place())
    names = list(data.by_name)

    def work(tasks: Iterator[Task]) -> Iterator[Answer]:
        yield from (sites(task) for task in tasks if (task.what, task.site) != ("enrol", "bee"))

    server = Server(method=method, names=names, tested=names, net=tiny.net(), plan=plan, memory=memory, work=work)
    start, first, second = server.run()
    assert list(start.refused) == ["bee"]
    assert (first.joined, first.refused, second.refused) == (("bee",), {}, {})
    assert memory.enrolment("bee").hello.counts.tolist() == [6, 6, 6]


def test_without_a_valid_enrolment_all_counts_are_zero():
    assert known_hello(tiny.Kept(), "bee", tiny.net()).counts.tolist() == [0, 0, 0]
