"""Mode and precision of a run are decided once, written down, and compared when the run is resumed."""

import warnings

import pytest
import torch
from torch._dynamo.exc import TorchDynamoException

from fedlgd.core.compile import CompileWarning
from fedlgd.core.device import Place
from fedlgd.engines.registry import Loop, Pool
from fedlgd.rundir.manifest import read_manifest
from fedlgd.runs import place as deciding
from fedlgd.runs.config import resolve
from fedlgd.runs.run import execute
from tests import tiny
from tests.core.test_compile import needs_compiler

SETTINGS = {"net.width": 4, "net.depth": 1, "analysis": False, "real_samples": 0}


@pytest.fixture(scope="module")
def data():
    return tiny.federation()


def run(data, out, mode, rounds=1, engine=Loop, precision="float32", **more):
    values = {**SETTINGS, "method": "fedavg", "rounds": rounds, **more}
    place = Place(compile=mode, precision=precision)
    return execute(resolve({}, values), data, out, engine=engine(place=place))


@pytest.fixture
def broken(monkeypatch):
    """A compiler that is found and fails."""

    def fails(*given):
        raise TorchDynamoException("no such header\nline 2")

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fails)
    monkeypatch.setattr(deciding, "find_compiler", lambda: "g++")


def test_without_a_compiler_a_run_has_the_bits_of_one_that_was_not_compiled(data, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    with pytest.warns(UserWarning, match=r"not compiled: there is no C\+\+ compiler"):
        found = run(data, tmp_path / "on", "on")
    assert tiny.equal(found.model.state_dict(), run(data, tmp_path / "off", "off").model.state_dict())
    assert not read_manifest(tmp_path / "on").engine.compile


def test_a_compiler_that_fails_is_named_in_one_line(data, tmp_path, broken):
    with pytest.warns(UserWarning, match="not compiled: no such header$"):
        run(data, tmp_path / "on", "on")
    assert not read_manifest(tmp_path / "on").engine.compile


def test_auto_compiles_a_long_run_and_no_short_one(data, tmp_path, monkeypatch, broken):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(data, tmp_path / "short", "auto")
    monkeypatch.setattr(deciding, "COMPILE_FLOPS", 1e3)
    with pytest.warns(UserWarning, match="not compiled"):
        run(data, tmp_path / "long", "auto")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(data, tmp_path / "long", "auto", rounds=2)  # it has started without


def test_a_resume_in_another_mode_says_what_changes(data, tmp_path, broken):
    run(data, tmp_path / "run", "off")
    with pytest.warns(UserWarning, match="compile") as said:
        run(data, tmp_path / "run", "on", rounds=2)
    first, second = (str(each.message) for each in said)
    assert ["compile=off" in first, "compile=on" in first, "not compiled" in second] == [True] * 3


def test_a_compiler_that_fails_later_leaves_the_work_to_eager_mode(broken):
    net, data = tiny.net(), tiny.federation().sites[0].test.take(slice(0, 4))
    params = tiny.params(net)
    with pytest.warns(CompileWarning, match="^no such header$") as said:
        found = [Place(compile="on").do(lambda given: net(given, data.x).logits, params) for _ in range(2)]
    assert len(said) == 1
    for each in found:
        torch.testing.assert_close(each, net(params, data.x).logits)


def test_a_resume_in_another_precision_says_what_changes(data, tmp_path):
    run(data, tmp_path / "run", "off")
    with pytest.warns(UserWarning, match="precision=float32.*precision=bf16"):
        run(data, tmp_path / "run", "off", rounds=2, precision="bf16")


@pytest.mark.parametrize(("slower", "lines"), [(torch.bfloat16, 1), (torch.float32, 0)])
def test_bfloat16_that_is_measured_slower_gives_one_line(data, tmp_path, monkeypatch, slower, lines):
    clock, convolution = [0.0], torch.nn.functional.conv2d

    def takes(x, *given, **more):
        clock[0] += 3.0 if x.dtype == slower else 1.0
        return convolution(x, *given, **more)

    monkeypatch.setattr(deciding, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(deciding.F, "conv2d", takes)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        run(data, tmp_path / "run", "off", precision="bf16")
    assert len([each for each in said if "3.0 times as long" in str(each.message)]) == lines


@needs_compiler
@pytest.mark.slow
def test_compiled_runs_have_the_same_bits_in_one_process_in_several_and_resumed(data, tmp_path):
    method = {**tiny.SETTINGS, **tiny.FEDLGD, "method": "fedlgd"}
    whole = run(data, tmp_path / "loop", "on", 3, **method)
    pool = run(data, tmp_path / "pool", "on", 3, Pool, **method)
    run(data, tmp_path / "later", "on", 2, **method)
    resumed = run(data, tmp_path / "later", "auto", 3, **method)
    plain = run(data, tmp_path / "plain", "off", 3, **method)
    weights = whole.model.state_dict()
    assert tiny.equal(weights, pool.model.state_dict())
    assert tiny.equal(weights, resumed.model.state_dict())
    assert read_manifest(tmp_path / "later").engine.compile
    assert not tiny.equal(weights, plain.model.state_dict())
    for name, value in plain.model.state_dict().items():
        assert weights[name].sub(value).norm() <= 1e-3 * value.norm() + 1e-6
