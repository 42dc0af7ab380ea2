"""A run folder opens as the result it was, predicts, and gets more rounds."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedlgd
from fedlgd.core import files
from fedlgd.core.errors import DataError, FedlgdError
from fedlgd.core.types import Scale
from fedlgd.runs.config import resolve
from fedlgd.runs.parse import read_toml
from fedlgd.runs.result import open_run
from tests import tiny
from tests.errors import refuses
from tests.nets import own
from tests.runs.folder import head
from tests.runs.folder import method as method_of

NET = {"name": "convnet", "depth": 2, "width": 4}


def start(data, method, out, rounds=2, **more):
    chosen = method_of(method) if isinstance(method, str) else method
    return fedlgd.run(data, chosen, rounds=rounds, out=out, **{"net": NET, **more})


@pytest.fixture(scope="module")
def data():
    return tiny.federation()


@pytest.fixture
def images():
    return np.random.default_rng(0).integers(0, 256, (3, 20, 12, 3), dtype=np.uint8)


@pytest.mark.parametrize(
    "method", ["fedavg", "fedlgd", "fedbn", "fedproto-local", "local-only", "pooled", "vhl", "moon"]
)
def test_an_opened_run_is_the_result_that_the_run_returned(method, data, tmp_path, images):
    made = start(data, method, tmp_path / "run")
    opened = open_run(tmp_path / "run")
    assert opened.accuracy == made.accuracy
    assert [r.round for r in opened.records] == [r.round for r in made.records]
    assert opened.virtual.keys() == made.virtual.keys()
    site = "bee" if made.personal else ""
    ours, theirs = made.predict(images, site), opened.predict(images, site)
    assert torch.equal(ours.probabilities, theirs.probabilities)
    assert ours.classes == data.classes
    assert torch.allclose(ours.probabilities.sum(1), torch.ones(3))


def test_an_unfinished_run_opens_and_a_run_without_rounds_says_so(data, tmp_path):
    def stop(record):
        if record.round == 0:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(data, "fedavg", tmp_path / "run", rounds=30, on_round=stop)
    opened = open_run(tmp_path / "run")
    assert (opened.rounds, opened.planned) == (1, 30)
    assert opened.accuracy == {}
    assert "1 of 30 rounds, not evaluated yet" in repr(opened)
    (tmp_path / "run/state/head.json").unlink()
    for file in (tmp_path / "run/state").glob("server-*"):
        file.unlink()
    with refuses("no-finished-round"):
        open_run(tmp_path / "run")


def test_what_is_no_run_is_named_with_the_runs_inside(data, tmp_path):
    start(data, "fedavg", tmp_path / "a", rounds=1)
    with refuses("folder-of-runs"):
        open_run(tmp_path)
    with refuses("no-such-run"):
        open_run(tmp_path / "none")


def test_a_run_of_an_older_version_is_refused_with_a_way_out(data, tmp_path):
    start(data, "fedavg", tmp_path / "run", rounds=1)
    file = tmp_path / "run/manifest.json"
    old = files.read_json(file)
    del old["data"]["prepare"]
    files.write_json(file, old)
    with refuses("preparation-unknown"):
        open_run(tmp_path / "run")


def test_a_test_image_gets_the_class_that_the_evaluation_gave_it(data, tmp_path):
    """The stored preprocessing is that of the run: predictions on the test images give its accuracy."""
    sites = tuple(
        replace(
            site,
            train=replace(site.train, scale=scale),
            test=replace(site.test, scale=scale),
        )
        for site, scale in zip(
            data.sites,
            (Scale(), Scale((0.2, 0.3, 0.4), (0.1, 0.2, 0.3)), Scale((0.6, 0.5, 0.4), (0.3, 0.2, 0.1))),
            strict=True,
        )
    )
    start(replace(data, sites=sites), "fedavg", tmp_path / "run", rounds=3)
    opened = open_run(tmp_path / "run")
    for site in sites:
        pictures = [Image.fromarray(x.permute(1, 2, 0).numpy()) for x in site.test.x]
        labels = opened.predict(pictures, site.name).labels
        right = [site.classes[y] == label for y, label in zip(site.test.y.tolist(), labels, strict=True)]
        assert sum(right) / len(right) == opened.accuracy[site.name]


def test_paths_arrays_and_pictures_of_an_image_give_the_same(data, tmp_path, images):
    result = start(data, "fedavg", None, rounds=1)
    for i, image in enumerate(images):
        Image.fromarray(image).save(tmp_path / f"{i}.png")
    (tmp_path / "notes.txt").write_text("not an image")
    expected = result.predict(images).probabilities
    floats = torch.from_numpy(images).double() / 255
    for given in (
        [tmp_path / f"{i}.png" for i in range(3)],
        tmp_path,
        str(tmp_path),
        list(images),
        [Image.fromarray(image) for image in images],
        floats,
    ):
        assert torch.equal(result.predict(given).probabilities, expected)
    assert result.predict(tmp_path / "1.png").names == [str(tmp_path / "1.png")]
    grey = result.predict(images[0, ..., 0])
    assert torch.equal(grey.probabilities, result.predict(images[:1, ..., :1].repeat(3, 3)).probabilities)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "no image in"),
        ("missing.png", "missing.png.*cannot be opened"),
        (3, "an image is given as int"),
        (np.zeros((2, 2, 2, 2, 3)), r"shape \(2, 2, 2, 2, 3\)"),
        (np.full((4, 4), 7.5), "not from 0 to 1"),
        (np.zeros((4, 4), np.int32), "int32"),
    ],
)
def test_what_is_no_image_is_named(given, words, data):
    result = start(data, "fedavg", None, rounds=1)
    with pytest.raises(DataError, match=words):
        result.predict(given)


def test_a_personalised_model_needs_its_site(data, images):
    result = start(data, "fedbn", None, rounds=1)
    with refuses("site-not-given", known=["ape", "bee", "cat"]):
        result.predict(images)
    with refuses("unknown-site", site="beee", hint="; did you mean 'bee'?"):
        result.predict(images, "beee")


def test_a_net_of_ones_own_is_found_again_and_an_edited_one_refused(data, tmp_path, images, monkeypatch):
    start(data, "fedavg", tmp_path / "run", net=own.LogitsOnly)
    assert open_run(tmp_path / "run").predict(images).probabilities.shape == (3, 3)
    monkeypatch.setattr(own, "LogitsOnly", own.Idle)
    with refuses("other-net"):
        open_run(tmp_path / "run")


def test_a_net_without_a_name_is_given_again(data, tmp_path, images):
    class Local(own.LogitsOnly):
        pass

    made = start(data, "fedavg", tmp_path / "run", net=Local)
    with pytest.raises(FedlgdError, match="pass it again with net="):
        open_run(tmp_path / "run")
    opened = open_run(tmp_path / "run", net=Local)
    assert torch.equal(opened.predict(images).probabilities, made.predict(images).probabilities)


def same(a, b):
    return all(torch.equal(a.params[k], b.params[k]) for k in b.params)


@pytest.mark.parametrize("method", ["fedlgd", "scaffold"])
def test_an_extended_run_has_the_bits_of_a_longer_one(method, data, tmp_path):
    first = start(data, method, tmp_path / "run", rounds=2)
    longer = start(data, method, tmp_path / "run", rounds=5)
    fresh = start(data, method, tmp_path / "fresh", rounds=5)
    assert same(longer, fresh)
    assert longer.accuracy == fresh.accuracy
    assert len(longer.records) == len(first.records) + 3
    (entry,) = files.read_json(tmp_path / "run/manifest.json")["extended"]
    assert (entry["rounds_before"], entry["rounds"], entry["after_round"]) == (2, 5, 2)
    assert files.read_json(tmp_path / "fresh/manifest.json")["extended"] == []
    assert (tmp_path / "run/config.toml").read_bytes() == (tmp_path / "fresh/config.toml").read_bytes()
    assert (
        files.read_json(tmp_path / "run/manifest.json")["variant"]
        == (files.read_json(tmp_path / "fresh/manifest.json")["variant"])
    )
    with refuses("more-rounds-done", before=5, rounds=2):
        start(data, method, tmp_path / "run", rounds=2)


def test_a_crash_while_a_run_is_extended_costs_nothing(data, tmp_path, monkeypatch):
    start(data, "fedavg", tmp_path / "run", rounds=1)
    write = files.write_atomic

    def crash(path, *args, **kwargs):
        if Path(path).name == "config.toml":
            raise KeyboardInterrupt
        write(path, *args, **kwargs)

    monkeypatch.setattr(files, "write_atomic", crash)
    with pytest.raises(KeyboardInterrupt):
        start(data, "fedavg", tmp_path / "run", rounds=3)
    monkeypatch.setattr(files, "write_atomic", write)
    start(data, "fedavg", tmp_path / "run", rounds=3)
    assert head(tmp_path / "run")["round"] == 3
    assert len(json.loads((tmp_path / "run/manifest.json").read_text())["extended"]) == 1


def test_costs_are_the_sums_of_the_records(data, tmp_path):
    made = start(data, "fedavg", tmp_path / "run")
    spent = open_run(tmp_path / "run").spent
    assert spent.rounds == 2
    assert spent.bytes_up == sum(record.bytes_up for record in made.records)
    assert spent.cpu["train"] == pytest.approx(sum(record.cpu.get("train", 0) for record in made.records))


def test_another_configuration_of_a_run_with_a_cosine_is_named(data, tmp_path):
    cosine = tiny.fedavg(local__schedule="cosine")
    start(data, cosine, tmp_path / "out")
    with refuses("other-configuration", differences="seed is 0 there and 1 here"):
        start(data, cosine, tmp_path / "out", seed=1)
    with refuses("other-restarts", restarts=[1]):
        start(data, tiny.fedavg(local__schedule="cosine", local__restarts=(1,)), tmp_path / "out", rounds=4)


def test_more_rounds_of_a_cosine_are_those_of_a_run_with_a_restart_from_the_start(data, tmp_path):
    cosine = tiny.fedavg(local__schedule="cosine", local__lr=0.1)
    for rounds in (2, 3, 3, 6):
        extended = start(data, cosine, tmp_path / "run", rounds=rounds)
    stated = replace(cosine, local=replace(cosine.local, restarts=(2, 3)))
    fresh, longer = (
        start(data, stated, tmp_path / "fresh", rounds=6),
        start(data, cosine, tmp_path / "one", rounds=6),
    )
    assert same(extended, fresh)
    assert not same(extended, longer)
    assert (tmp_path / "run/config.toml").read_bytes() == (tmp_path / "fresh/config.toml").read_bytes()
    assert [e["rounds"] for e in files.read_json(tmp_path / "run/manifest.json")["extended"]] == [3, 6]


def test_a_run_of_a_cosine_is_extended_by_its_own_configuration_file(data, tmp_path):
    """As `fedlgd open` says it: the file has the restarts of the extensions before."""
    stored = tiny.fedavg(local__schedule="cosine")
    for rounds in (1, 2, 3):
        start(data, stored, tmp_path / "run", rounds=rounds)
        local = resolve(
            {k: v for k, v in read_toml(tmp_path / "run/config.toml").items() if k not in ("data", "net")}
        )
        stored = local.method
    assert stored.local.restarts == (1, 2)


def test_an_extension_of_a_cosine_that_is_interrupted_is_resumed(data, tmp_path):
    cosine = tiny.fedavg(local__schedule="cosine", local__lr=0.1)
    start(data, cosine, tmp_path / "run", rounds=1)
    start(data, cosine, tmp_path / "straight", rounds=1)
    straight = start(data, cosine, tmp_path / "straight", rounds=4)

    def interrupt(record):
        if record.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        start(data, cosine, tmp_path / "run", rounds=4, on_round=interrupt)
    assert same(start(data, cosine, tmp_path / "run", rounds=4), straight)


def test_a_run_folder_without_states_is_refused_in_words(data, tmp_path):
    start(data, "fedavg", tmp_path / "out")
    shutil.rmtree(tmp_path / "out/state")
    with refuses("no-server-state"):
        open_run(tmp_path / "out")
