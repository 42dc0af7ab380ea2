"""One run from configuration to result: what it returns, where it lives, what it shares, and under which names."""

import errno
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import fedlgd
from fedlgd.core.errors import FedlgdError
from fedlgd.core.files import safe_name
from fedlgd.core.net import Net
from fedlgd.core.types import Cached, Stream
from fedlgd.data.federation import Federation, from_arrays
from fedlgd.data.suites import DataChoice
from fedlgd.distill import distribution
from fedlgd.engines import wire
from fedlgd.engines.wire import read_message
from fedlgd.methods.registry import names
from fedlgd.methods.regularisers import Proximal, Regularised
from fedlgd.nets.registry import build_net
from fedlgd.rundir.records import RoundRecord
from fedlgd.runs.config import resolve
from fedlgd.runs.resume import default_folder
from fedlgd.runs.run import Result, execute, run
from tests import tiny
from tests.runs.folder import FAST_NET, ROUNDS, as_plain, config, everything, head, method, records
from tests.runs.own import Own

VIRTUAL = method("fedavg", train_on="virtual")


@pytest.fixture(scope="module")
def data() -> Federation:
    return tiny.federation(train=3, test=2)


@pytest.fixture(scope="module")
def result(data) -> Result:
    return execute(config(method("fedlgd")), data)


# The result


def test_accuracy_is_that_of_the_last_round_at_each_site(result, data):
    last = result.records[-1]
    assert result.accuracy == {name: last.scores[name].accuracy for name in data.by_name}
    for name, site in data.by_name.items():
        _, logits = result.model(site.test.take(slice(None)).x)
        right = (logits.argmax(1) == site.test.y).float().mean().item()
        assert result.accuracy[name] == pytest.approx(right)


def test_the_model_is_an_ordinary_module_with_the_trained_weights(result, data):
    x = data.sites[0].test.take(slice(None)).x
    model = result.model
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    with torch.no_grad():
        features, logits = model(x)
    net = build_net("convnet", data.shape, 3, {"depth": 2, "width": tiny.WIDTH})
    output = net.frozen(result.params, x)
    assert torch.equal(logits, output.logits)
    assert torch.equal(features, output.features)
    assert not torch.equal(logits, net.frozen(net.init(Stream(0).at("init")), x).logits)


def test_the_result_holds_a_record_of_every_round_and_what_was_distilled(result, data):
    assert [r.round for r in result.records] == list(range(-1, ROUNDS))
    assert all(isinstance(r, RoundRecord) for r in result.records)
    assert result.anchors.images.shape == (3 * 2, *data.shape)
    assert result.anchors.origin == "server"
    assert set(result.virtual) == {"ape", "bee", "cat"}
    for name, virtual in result.virtual.items():
        assert virtual.origin == name
        assert virtual.labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_a_method_without_virtual_data_leaves_none(data):
    plain = execute(config(method("fedavg", train_on="real"), rounds=1), data)
    assert plain.anchors is None
    assert plain.virtual == {}
    assert plain.personal == {}


def test_a_personal_method_leaves_each_sites_own_model(data):
    alone = execute(config(method("local-only"), rounds=2), data)
    assert set(alone.personal) == {"ape", "bee", "cat"}
    site = data.by_name["ape"]
    logits = alone.net.frozen(alone.personal["ape"], site.test.take(slice(None)).x).logits
    assert alone.accuracy["ape"] == pytest.approx((logits.argmax(1) == site.test.y).float().mean().item())


@pytest.mark.parametrize("name", [*names(), "scaffold+anchors+refine", "fedbn+proximal"])
def test_a_run_in_memory_is_a_run_on_disk_bit_for_bit(name, data, tmp_path):
    how = config(method(name), ratio=0.7)
    assert as_plain(execute(how, data)) == as_plain(execute(how, data, tmp_path / "out"))


def test_on_round_hears_the_very_records_that_are_written(data, tmp_path):
    heard: list[RoundRecord] = []
    result = execute(config(VIRTUAL, net=FAST_NET), data, tmp_path / "out", heard.append)
    assert heard == result.records
    written = [json.loads(line) for line in (tmp_path / "out" / "records.jsonl").read_text().splitlines()]
    assert [w["round"] for w in written] == [h.round for h in heard]
    assert [w["seconds"] for w in written] == [dict(h.seconds) for h in heard]
    again = execute(config(VIRTUAL, net=FAST_NET), data, tmp_path / "out").records
    assert [(r, dict(r.seconds)) for r in again] == [(r, dict(r.seconds)) for r in heard]


def test_a_record_is_heard_only_after_its_round_is_safe(data, tmp_path):
    """Whoever hears of a round may be sure that a resume will not repeat it."""
    folder = tmp_path / "out"
    execute(
        config(VIRTUAL, net=FAST_NET),
        data,
        folder,
        lambda record: check(head(folder)["round"] == record.round + 1, len(records(folder)) == record.round + 2),
    )


def check(*facts: bool) -> None:
    assert all(facts)


# The front door


def test_the_front_door_in_six_lines(tmp_path):
    data = tiny.federation(train=3, test=1)
    arrays = {s.name: (*pixels(s.train), *pixels(s.test)) for s in data.sites}
    federation = fedlgd.from_arrays(arrays)
    result = fedlgd.run(federation, VIRTUAL, rounds=2, net={"depth": 2, "width": 4}, out=tmp_path / "out")
    assert set(result.accuracy) == {"ape", "bee", "cat"}
    again = fedlgd.run(federation, VIRTUAL, rounds=2, net={"depth": 2, "width": 4}, out=str(tmp_path / "out"))
    assert as_plain(again) == as_plain(result)


def pixels(part: Any) -> tuple[Any, Any]:
    return part.x.permute(0, 2, 3, 1).numpy(), part.y.numpy()


def test_every_public_name_can_be_had():
    for name in fedlgd.__all__:
        assert getattr(fedlgd, name) is not None
    assert set(dir(fedlgd)) >= set(fedlgd.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = fedlgd.nothing


def test_a_method_and_a_net_by_name_are_those_of_the_class(data, tmp_path):
    settings = {"rounds": 1, "net": FAST_NET["name"]}
    by_name = run(data, "fedavg", **settings)
    by_class = run(data, fedlgd.FedAvg(), **settings)
    assert as_plain(by_name) == as_plain(by_class)


def test_the_command_line_and_python_make_the_same_run(data, tmp_path):
    """A folder begun from a written configuration goes on from Python."""
    how = resolve({"method": "fedavg", "net": FAST_NET, "rounds": 2, "real_samples": 0}, {"local.batch": 4})
    how = replace(how, data=DataChoice(name="tiny"))
    execute(how, data, tmp_path / "out", command="fedlgd run ...")
    result = run(data, fedlgd.FedAvg(local=fedlgd.Local(batch=4)), rounds=2, net=FAST_NET, out=tmp_path / "out")
    assert as_plain(result) == as_plain(execute(how, data))


def test_a_users_own_method_runs_and_resumes(data, tmp_path):
    how = config(Own(clip=None), net=FAST_NET)
    first = execute(how, data, tmp_path / "out")
    assert how.method.label == "Own"
    assert json.loads((tmp_path / "out" / "manifest.json").read_text())["method"]["name"] == "tests.runs.own:Own"
    assert as_plain(execute(how, data, tmp_path / "out")) == as_plain(first)


def test_a_stack_by_name_is_the_stack_made_by_hand(data, tmp_path):
    settings = {"rounds": 2, "net": FAST_NET, "out": tmp_path / "out"}
    by_name = run(data, "fedavg+proximal", **settings)
    by_hand = run(data, Regularised(method=fedlgd.FedAvg(), term=Proximal()), **settings)
    assert as_plain(by_name) == as_plain(by_hand)
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert (manifest["method"]["name"], manifest["label"]) == ("fedavg+proximal", "FedAvg + proximal on real data")
    assert default_folder(resolve({"method": "fedavg+proximal"})).parts[2].startswith("fedavg-")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"method": "fedlgdd"}, "did you mean 'fedlgd'"),
        ({"net": "connet"}, "did you mean 'convnet'"),
        ({"net": {"widht": 3}}, "did you mean 'width'"),
        ({"data": "bultin-digits"}, "did you mean 'builtin-digits'"),
        ({"rounds": 0}, "rounds is 0"),
        ({"ratio": 2.0}, "ratio is 2.0"),
    ],
)
def test_bad_arguments_are_refused_before_a_folder_is_made(settings, words, data, tmp_path):
    with pytest.raises(FedlgdError) as error:
        run(**({"data": data, "out": tmp_path / "out"} | settings))
    assert words in str(error.value)
    assert not (tmp_path / "out").exists()


# Where a run lives


def test_the_default_folder_names_data_method_and_seed_and_differs_by_configuration():
    folders = [
        default_folder(resolve({"method": "fedavg", "seed": 3}, {"local.lr": lr})) for lr in (0.01, 0.01, 0.02)
    ]
    assert folders[0] == folders[1] != folders[2]
    assert folders[0].parts[:2] == ("runs", "builtin-digits")
    assert folders[0].parts[2].startswith("fedavg")
    assert folders[0].name.startswith("seed3-")


@pytest.mark.parametrize("name", ["../../etc", "/etc", "a/b", "", ".", "..", "x" * 300, "Ünïcode", "a\0b\n"])
def test_the_default_folder_stays_below_runs_whatever_the_data_is_called(name):
    folder = default_folder(replace(resolve({}), data=DataChoice(name=name)))
    assert len(folder.parts) == 4
    assert folder.parts[0] == "runs"
    assert not {".", "..", ""} & set(folder.parts)
    assert all(len(part) < 100 and part.isascii() and part.isprintable() for part in folder.parts)


def test_a_run_holds_what_the_readme_says(data, tmp_path):
    folder = tmp_path / "out"
    execute(config(method("fedlgd"), net=FAST_NET), data, folder, command="fedlgd run tiny")
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["command"] == "fedlgd run tiny"
    assert manifest["versions"]["torch"] == torch.__version__
    assert manifest["data"]["digest"] == data.digest
    assert [s["name"] for s in manifest["data"]["sites"]] == ["ape", "bee", "cat"]
    assert {p.name for p in folder.iterdir()} == {
        ".lock",
        "config.toml",
        "manifest.json",
        "records.jsonl",
        "state",
        "virtual",
    }
    assert {p.name for p in (folder / "virtual" / "start").iterdir()} == {
        "ape.png",
        "bee.png",
        "cat.png",
        "anchors.png",
    }


# The cache: methods that are compared share their virtual sets


@pytest.fixture
def distilled(monkeypatch) -> list[str]:
    """The distillations that were really made."""
    made: list[str] = []
    real = distribution.match

    def noted(images: Any, *args: Any) -> Any:
        made.append("match")
        return real(images, *args)

    monkeypatch.setattr(distribution, "match", noted)
    return made


def test_a_second_method_takes_the_virtual_sets_of_the_first_and_pays_the_same(data, tmp_path, distilled):
    first = execute(config(VIRTUAL, rounds=1), data, tmp_path / "first")
    assert len(distilled) == 3
    second_method = method("fedlgd", **{"refine.steps": 0})
    second = execute(config(second_method, rounds=1), data, tmp_path / "second")
    assert len(distilled) == 3
    assert second.records[0].flops["distil"] == first.records[0].flops["distil"] > 0
    assert second.records[0].seconds["distil"] == pytest.approx(first.records[0].seconds["distil"])
    for name in data.by_name:
        assert torch.equal(first.virtual[name].images, second.virtual[name].images)


def test_what_is_in_the_cache_is_what_would_be_made(data, tmp_path, distilled):
    how = config(VIRTUAL, rounds=1)
    fresh = as_plain(execute(how, data))
    execute(how, data, tmp_path / "first")
    count = len(distilled)
    taken = as_plain(execute(how, data, tmp_path / "second"))
    assert len(distilled) == count
    assert taken == fresh


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"of": method("fedavg", train_on="virtual", **{"distil.steps": 3})},
        {"of": method("fedavg", train_on="virtual", **{"distil.lr": 0.5})},
        {"net": FAST_NET},
    ],
    ids=["seed", "steps", "lr", "net"],
)
def test_what_would_be_made_otherwise_is_not_taken(other, data, tmp_path, distilled):
    execute(config(VIRTUAL, rounds=1), data, tmp_path / "first")
    execute(config(**({"of": VIRTUAL, "rounds": 1} | other)), data, tmp_path / "second")
    assert len(distilled) == 6


def test_other_images_are_not_taken(tmp_path, distilled, data):
    execute(config(VIRTUAL, rounds=1), data, tmp_path / "first")
    execute(config(VIRTUAL, rounds=1), tiny.federation(train=4, test=2), tmp_path / "second")
    assert len(distilled) == 6


def cached_items(home: Path) -> list[Path]:
    return sorted(home.glob("distilled/*/*.safetensors"))


@pytest.mark.parametrize("damage", ["cut", "turned", "deleted", "foreign"])
def test_a_damaged_item_is_made_again(damage, data, tmp_path, distilled, home):
    how = config(VIRTUAL, rounds=1)
    first = as_plain(execute(how, data, tmp_path / "first"))
    item, other, _ = cached_items(home)
    content = item.read_bytes()
    if damage == "cut":
        item.write_bytes(content[:-1])
    elif damage == "turned":
        item.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "deleted":
        item.unlink()
    else:
        item.write_bytes(b"not ours")
    assert as_plain(execute(how, data, tmp_path / "second")) == first
    assert len(distilled) == 4
    assert read_message(item, Cached).tensor.shape == (6, *data.shape)
    assert as_plain(execute(how, data, tmp_path / "third")) == first
    assert len(distilled) == 4
    assert other.exists()


def test_a_cache_that_cannot_be_written_costs_time_but_not_the_run(data, tmp_path, monkeypatch, home):
    real = wire.write_atomic

    def full(path: Path, content: bytes, private: bool = False) -> None:
        if home in path.parents:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content, private)

    how = config(VIRTUAL, rounds=1)
    monkeypatch.setattr(wire, "write_atomic", full)
    result = execute(how, data, tmp_path / "out")
    assert as_plain(result) == as_plain(execute(how, data))
    assert cached_items(home) == []


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_cache_that_cannot_be_made_costs_time_but_not_the_run(place, data, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("FEDLGD_CACHE", str(tmp_path / place))
    how = config(VIRTUAL, rounds=1)
    assert as_plain(execute(how, data, tmp_path / "out")) == as_plain(execute(how, data))


# Names of sites

HOSTILE = (
    "../x",
    "../../../../tmp/x",
    "/etc/passwd",
    "a/b",
    "a-b",
    "a b",
    ".",
    "..",
    ".hidden",
    "",
    "anchors",
    "ANCHORS",
    "<script>alert(1)</script>",
    "Ape",
    "ape",
    "APE",
    "ä",
    "ö",
    "日本",
    "x" * 300,
    "x" * 300 + "y",
    "x" * 40,
    "new\nline",
    "nul\0",
    "-rf",
    "head.json",
    "server-0.safetensors",
    "*",
    "?",
    "[a]",
    "ape.part",
    safe_name("a/b"),
    safe_name("Ape"),
)


def test_names_of_files_are_harmless_and_no_two_sites_share_one():
    made = [safe_name(name) for name in HOSTILE]
    assert len({name.lower() for name in made}) == len(HOSTILE)  # some file systems do not tell cases apart
    for name in made:
        assert 0 < len(name) <= 60
        assert all(letter.isascii() and (letter.isalnum() or letter in "_-") for letter in name)
        assert name.lower() != "anchors"


def test_an_ordinary_name_is_its_own_file_name():
    for name in ("mnist", "site_1", "hospital-3", "0"):
        assert safe_name(name) == name


def hostile_federation(names: Sequence[str]) -> Federation:
    base = tiny.federation(train=2, test=1)
    parts = [(*pixels(s.train), *pixels(s.test)) for s in base.sites]
    return from_arrays({name: parts[i % 3] for i, name in enumerate(names)}, name="hostile")


def test_sites_with_hostile_names_stay_inside_the_folder_and_apart(tmp_path):
    data = hostile_federation(HOSTILE)
    root = tmp_path / "root"
    folder = root / "runs" / "out"
    (tmp_path / "witness").write_text("untouched")
    how = config(method("fedlgd"), rounds=2, net=FAST_NET)
    in_memory = as_plain(execute(how, data))
    assert as_plain(execute(how, data, folder)) == in_memory
    assert {p.name for p in tmp_path.iterdir()} == {"root", "witness", "home"}
    assert [p.name for p in root.iterdir()] == ["runs"]
    assert [p.name for p in (root / "runs").iterdir()] == ["out"]
    assert len(list(folder.glob("state/enrolled/*"))) == len(HOSTILE)
    assert set(head(folder)["sites"]) == set(HOSTILE)
    assert len(list(folder.glob("state/sites/*/0001.safetensors"))) == len(HOSTILE)
    assert len(list(folder.glob("virtual/start/*.png"))) == len(HOSTILE) + 1
    assert as_plain(execute(how, data, folder)) == in_memory  # all states are found again
    assert everything(folder)["round"] == 2


def test_the_report_of_hostile_names_is_harmless(tmp_path):
    from fedlgd.report.page import write_report

    names = ("<script>alert(1)</script>", "../x", "a&b", "[/red]", '"quoted"')
    execute(config(VIRTUAL, rounds=1, net=FAST_NET), hostile_federation(names), tmp_path / "out")
    page = write_report([tmp_path / "out"], tmp_path / "report.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)" in page


# Moving house


def test_a_run_may_be_moved_to_another_folder_and_go_on(tmp_path, data):
    from tests.runs.folder import run_until

    how = config(method("fedlgd"), net=FAST_NET)
    run_until(0, how, data, tmp_path / "here")
    shutil.move(tmp_path / "here", tmp_path / "there")
    execute(how, data, tmp_path / "there")
    execute(how, data, tmp_path / "straight")
    assert everything(tmp_path / "there") == everything(tmp_path / "straight")


def test_a_run_does_not_change_the_weights_of_the_caller_or_torchs_randomness(data):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    execute(config(method("fedlgd"), rounds=1, net=FAST_NET), data)
    assert torch.equal(torch.rand(3), expected)


def test_two_results_do_not_share_memory(data):
    how = config(VIRTUAL, rounds=1, net=FAST_NET)
    first, second = execute(how, data), execute(how, data)
    before = as_plain(second)
    with torch.no_grad():
        for parameter in first.model.parameters():
            parameter.zero_()
        for values in first.params.values():
            values.zero_()
    assert as_plain(second) == before
    assert isinstance(second.net, Net)
