"""What servers do against plain numpy, in float64, with buffers and counters, under sampling."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlgd.core.net import Net
from fedlgd.core.types import Params, ServerState, Stream, Update, VirtualSet
from fedlgd.methods.baselines import Pooled
from fedlgd.methods.fedavg import FedAvg
from fedlgd.methods.fedbn import FedBN
from fedlgd.methods.fednova import FedNova
from fedlgd.methods.fedproto import FedProtoAvg, FedProtoLocal
from fedlgd.methods.fedprox import FedProx
from fedlgd.methods.moon import Moon
from fedlgd.methods.scaffold import Scaffold
from fedlgd.methods.vhl import VHL
from fedlgd.nets.registry import build_net
from tests.oracle import aggregation as slow

NET = build_net("tests.nets.own:Normed", (2, 3, 3), 3)
SITES = 5

rounds = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 10**6),
        "weights": st.lists(st.floats(0.5, 500), min_size=1, max_size=SITES),
    }
)
examples = settings(deadline=None, max_examples=15)


def _model(net: Net, seed: int, i: int) -> Params:
    """Random float64 weights and statistics, and a random counter."""
    generator = Stream(seed).generator("model", i)
    return {
        name: torch.randn(value.shape, generator=generator, dtype=torch.float64)
        if value.is_floating_point()
        else torch.randint(100, value.shape, generator=generator)
        for name, value in net.init(Stream(0)).items()
    }


def _arrays(tree: Params) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in tree.items()}


def _same(got: Params, wanted: dict[str, np.ndarray]) -> None:
    assert got.keys() == wanted.keys()
    for name, value in got.items():
        assert value.dtype == (torch.float64 if value.is_floating_point() else torch.int64)
        np.testing.assert_allclose(value.numpy(), wanted[name], rtol=1e-9, atol=1e-9)


def _updates(models: list[Params], weights: list[float], trees: list[dict] | None = None) -> list[Update]:
    trees = trees or [{}] * len(models)
    return [
        Update(site=f"s{i}", params=m, weight=w, trees=t)
        for i, (m, w, t) in enumerate(zip(models, weights, trees, strict=True))
    ]


@pytest.mark.parametrize("cls", [FedAvg, FedProx, Moon, VHL, Pooled])
@examples
@given(case=rounds)
def test_the_mean_of_methods_that_average(cls, case):
    before = _model(NET, case["seed"], -1)
    models = [_model(NET, case["seed"], i) for i in range(len(case["weights"]))]
    virtual = VirtualSet(images=torch.zeros(1, 2, 3, 3), labels=torch.zeros(1), origin="server", round=-1)
    state = ServerState(params=before, anchors=virtual if cls is VHL else None)
    got = cls().server(state, iter(_updates(models, case["weights"])), NET, Stream(0))
    _same(got.params, slow.fedavg([_arrays(m) for m in models], case["weights"]))


@examples
@given(case=rounds, data=st.data())
def test_fednova(case, data):
    n = len(case["weights"])
    work = data.draw(st.lists(st.floats(0.5, 400), min_size=n, max_size=n))
    before = _model(NET, case["seed"], -1)
    models = [_model(NET, case["seed"], i) for i in range(n)]
    trees = [{"nova": {"work": torch.tensor(a, dtype=torch.float64)}} for a in work]
    updates = _updates(models, case["weights"], trees)
    got = FedNova().server(ServerState(params=before), iter(updates), NET, Stream(0))
    arrays = [_arrays(m) for m in models]
    _same(got.params, slow.fednova(_arrays(before), arrays, case["weights"], work, set(NET.trainable)))


def _scaffold(seed: int, n: int, server_lr: float, net: Net) -> None:
    before = _model(net, seed, -1)
    models = [_model(net, seed, i) for i in range(n)]
    variates = [{k: v for k, v in _model(net, seed, 100 + i).items() if k in net.trainable} for i in range(n + 1)]
    c, changes = variates[0], variates[1:]
    state = ServerState(params=before, trees={"variate": c, "federation": {"sites": torch.tensor(SITES)}})
    updates = _updates(models, [float(i + 1) for i in range(n)], [{"variate": change} for change in changes])
    got = Scaffold(server_lr=server_lr).server(state, iter(updates), net, Stream(0))
    wanted = slow.scaffold(
        _arrays(before),
        _arrays(c),
        [_arrays(m) for m in models],
        [_arrays(d) for d in changes],
        SITES,
        server_lr,
        set(net.trainable),
    )
    _same(got.params, wanted[0])
    _same(got.trees["variate"], wanted[1])


@examples
@given(seed=st.integers(0, 10**6), n=st.integers(1, SITES), server_lr=st.sampled_from([0.3, 1.0, 1.5]))
def test_scaffold(seed, n, server_lr):
    _scaffold(seed, n, server_lr, NET)


@pytest.mark.parametrize("cls", [FedProtoAvg, FedProtoLocal])
@pytest.mark.parametrize("weigh", ["counts", "uniform"])
@examples
@given(seed=st.integers(0, 10**6), n=st.integers(1, SITES), known=st.booleans(), data=st.data())
def test_prototypes(cls, weigh, seed, n, known, data):
    classes, dimensions = 4, 3
    few = st.lists(st.integers(0, 3), min_size=classes, max_size=classes)
    counts = [np.array(data.draw(few), dtype=np.float64) for _ in range(n)]
    random = np.random.default_rng(seed)
    means = [np.where(c[:, None] > 0, random.normal(size=(classes, dimensions)), 0.0) for c in counts]
    old = random.normal(size=(classes, dimensions)) if known else None
    model = _model(NET, seed, 0)
    uploads = [
        {"prototypes": {"means": torch.tensor(m), "counts": torch.tensor(c)}}
        for m, c in zip(means, counts, strict=True)
    ]
    params = [model] * n if cls is FedProtoAvg else [{}] * n
    trees = {"prototypes": {"means": torch.tensor(old)}} if known else {}
    state = ServerState(params=model, trees=trees)
    got = cls(weigh=weigh).server(state, iter(_updates(params, [1.0] * n, uploads)), NET, Stream(0))
    wanted = slow.prototypes(old, means, counts, weigh)
    np.testing.assert_allclose(got.trees["prototypes"]["means"].numpy(), wanted, rtol=1e-9, atol=1e-9)
    _same(got.params, _arrays(model))


@examples
@given(case=rounds)
def test_fedproto_averages_models_as_fedavg(case):
    models = [_model(NET, case["seed"], i) for i in range(len(case["weights"]))]
    trees = [{"prototypes": {"means": torch.zeros(3, 2), "counts": torch.ones(3)}}] * len(models)
    state = ServerState(params=models[0])
    got = FedProtoAvg().server(state, iter(_updates(models, case["weights"], trees)), NET, Stream(0))
    _same(got.params, slow.fedavg([_arrays(m) for m in models], case["weights"]))


@examples
@given(case=rounds)
def test_fedbn(case):
    models = [_model(NET, case["seed"], i) for i in range(len(case["weights"]))]
    own = {"norm.weight", "norm.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    shared = [{k: v for k, v in m.items() if k not in own} for m in models]
    method = FedBN()
    state = method.start(models[0], [], NET, Stream(0))
    got = method.server(state, iter(_updates(shared, case["weights"])), NET, Stream(0))
    _same(got.params, slow.fedbn([_arrays(m) for m in models], case["weights"], own))
