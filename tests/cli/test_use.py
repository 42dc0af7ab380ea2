"""`fedlgd open`, `predict`, `export` and `distil`, and more rounds for a run, as a user types them."""

import json
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from fedlgd.core.text import duration
from fedlgd.runs.result import open_run
from fedlgd.runs.run import execute
from tests.cli.conftest import TINY, tiny_run

SETTINGS = [f"--set={path}={value}" for path, value in TINY.items()]


@pytest.fixture
def picture(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (40, 30, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    return "one.png"


def test_from_a_run_to_predictions_and_more_rounds(fedlgd, tmp_path, picture):
    assert fedlgd(*tiny_run(tmp_path / "out", rounds=1)).code == 0
    shown = fedlgd("open", "out")
    assert shown.code == 0
    for words in ("FedLGD on builtin-digits: 1 of 1 round\n", "mnist", "CPU time: ", "Sent: ", "--rounds 2"):
        assert words in shown.out
    more = next(line for line in shown.out.replace("\n", " ").split("fedlgd ") if line.startswith("run --config"))
    done = fedlgd(*more.split("Predict:")[0].split())
    assert done.code == 0, done.err
    assert "from 1 to 2 rounds" in done.err
    assert "keep their own spacing" in done.err
    opened = json.loads(fedlgd("open", "out", "--json").out)
    assert (opened["rounds"], opened["extended"][0]["rounds_before"]) == (2, 1)
    assert opened["cost"]["bytes_up"] > 0
    stored = open_run(tmp_path / "out")
    assert opened["cost"]["wall"] == sum(record.wall for record in stored.records)
    assert f"Wall time: {duration(stored.spent.wall)}\n" in fedlgd("open", "out").out
    older = replace(stored, records=[replace(record, wall=0.0) for record in stored.records])
    assert older.spent.wall is None
    table = fedlgd("predict", "out", picture)
    assert table.code == 0
    assert "one.png" in table.out
    (one,) = json.loads(fedlgd("predict", "out", picture, "--json", "--site", "mnist").out)
    assert sum(one["probabilities"].values()) == pytest.approx(1)
    assert one["probabilities"][one["class"]] == max(one["probabilities"].values())
    exported = fedlgd("export", "out", "--no-onnx", "-o", "model")
    assert exported.code == 0
    assert "belongs to its site" in exported.out
    assert (tmp_path / "model/virtual/mnist/3-0.png").exists()
    assert (tmp_path / "model/anchors/3-0.png").exists()


def test_the_round_of_the_accuracy_is_told_where_it_is_not_the_last(fedlgd, tmp_path, monkeypatch):
    def stop_after(rounds):
        def stopping(config, federation, folder, listen, *more):
            def heard(record):
                listen(record)
                if record.round + 1 == rounds:
                    raise KeyboardInterrupt

            return execute(config, federation, folder, heard, *more)

        monkeypatch.setattr("fedlgd.cli.run.execute", stopping)
        assert fedlgd(*tiny_run(tmp_path / "out", "--set=evaluate_every=2", "--quiet", rounds=4)).code == 130
        return fedlgd("open", "out").out, json.loads(fedlgd("open", "out", "--json").out)["evaluated"]

    for rounds, evaluated, words in (
        (1, 0, "No round has been evaluated yet"),
        (2, 2, "Accuracy (%)"),
        (3, 2, "The accuracy is that after round 2"),
    ):
        shown, number = stop_after(rounds)
        assert number == evaluated
        assert words in shown
        assert ("after round" in shown) == (rounds == 3)
    assert "% after round 2, 5 virtual sets" in repr(open_run(tmp_path / "out"))


def test_the_same_command_with_more_rounds_extends_the_run_in_the_default_folder(fedlgd, tmp_path):
    command = ["run", "builtin-digits", *SETTINGS, "--quiet", "--rounds"]
    for rounds in ("1", "2", "2"):
        assert fedlgd(*command, rounds).code == 0
    (folder,) = (tmp_path / "runs/builtin-digits/fedlgd").iterdir()
    assert json.loads(fedlgd("open", str(folder), "--json").out)["rounds"] == 2
    less = fedlgd(*command, "1")
    assert less.code == 2
    assert "a run of 2 rounds, more than 1" in less.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["open", "nowhere"], "there is no run folder 'nowhere'"),
        (["predict", "nowhere", "one.png"], "there is no run folder 'nowhere'"),
        (["export", "nowhere"], "there is no run folder 'nowhere'"),
        (["distil", "nodata"], "no data suite and no folder is called 'nodata'"),
        (["distil", "--set", "local.lr=1"], "does not change a virtual set"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, words, fedlgd):
    done = fedlgd(*arguments)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_bad_images_are_named(fedlgd, tmp_path, picture):
    fedlgd(*tiny_run(tmp_path / "out", rounds=1))
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    for arguments, words in (
        (["missing.png"], "missing.png"),
        (["broken.png"], "broken.png is not an image of a known format"),
        ([picture, "--site", "mnits"], "did you mean 'mnist'"),
    ):
        done = fedlgd("predict", "out", *arguments)
        assert done.code == 2
        assert words in done.err


def test_open_says_what_a_private_run_promises(fedlgd, tmp_path):
    private = [f"--set=distil.private.{each}" for each in ("epsilon=100", "counts=0.4", "releases=2")]
    assert fedlgd(*tiny_run(tmp_path / "out", *private, rounds=1)).code == 0
    said = " ".join(fedlgd("open", "out").out.split())
    assert "Privacy: Each training image of each site: (epsilon, delta) = (100, 1e-05)" in said
    assert json.loads(fedlgd("open", "out", "--json").out)["promise"]["epsilon"] == 100


def test_of_three_files_the_good_two_are_classified_and_the_bad_one_is_named(fedlgd, tmp_path, picture):
    fedlgd(*tiny_run(tmp_path / "out", rounds=1))
    (tmp_path / "broken.png").write_bytes(b"not a picture")
    done = fedlgd("predict", "out", picture, "broken.png", picture, "--json")
    assert done.code == 2
    assert [each["image"] for each in json.loads(done.out)] == [picture, picture]
    assert "broken.png is not an image of a known format" in done.err
    assert picture not in done.err


def test_distil_writes_sets_scores_them_and_goes_on(fedlgd, tmp_path):
    settings = [each for each in SETTINGS if "distil" in each or "data" in each or "net" in each]
    command = ["distil", "builtin-digits", *settings, "--per-class", "2", "--score-steps", "2", "--out", "sets"]
    estimate = fedlgd(*command, "--estimate")
    assert "about" in estimate.out
    assert not (tmp_path / "sets").exists()
    done = fedlgd(*command)
    assert done.code == 0, done.err
    for words in ("as many real", "mnist", "mean", "distil.start=./sets/"):
        assert words in done.out
    with np.load(tmp_path / "sets/mnist.npz") as stored:
        assert stored["images"].shape == (20, 3, 28, 28)
    with Image.open(tmp_path / "sets/mnist.png") as sheet:
        assert sheet.size == (2 * 28, 10 * 28)
    assert (tmp_path / "sets/mnist.npz").stat().st_mode & 0o077 == 0
    first = json.loads((tmp_path / "sets/distilled.json").read_text())
    again = json.loads(fedlgd(*command, "--json").out)
    assert {each["site"]: each["scores"] for each in again} == {
        site: each["scores"] for site, each in first["sites"].items()
    }
    assert [each["site"] for each in again] == ["mnist", "scans", "photos", "fonts", "street"]
    other = fedlgd(*command, "--seed", "1")
    assert other.code == 2
    assert "other images or settings" in other.err
    run = tiny_run(tmp_path / "out", "--set=distil.start=./sets/", "--set=distil.steps=0", rounds=1)
    assert fedlgd(*run).code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run", "site"], "no folder and no federation 'site'; did you mean the folder 'sites'?"),
        (["compare", "site"], "no folder and no federation 'site'; did you mean the folder 'sites'?"),
        (["data", "show", "builtin-digit"], "did you mean 'builtin-digits'?"),
        (["run", "./site"], "did you mean '{here}/sites'?"),
        (["run", "--data", "sits"], "did you mean '{here}/sites'?"),
        (["data", "check", "sits"], "did you mean '{here}/sites'?"),
        (["open", "runs/min"], "there is no run folder 'runs/min'; did you mean 'runs/mine'?"),
        (["report", "runs/min"], "there is no folder runs/min; did you mean 'runs/mine'?"),
        (["audit", "runs/min"], "there is no folder runs/min; did you mean 'runs/mine'?"),
        (["invert", "runs/min"], "there is no run folder 'runs/min'; did you mean 'runs/mine'?"),
    ],
)
def test_a_misspelled_folder_is_an_error_that_names_the_one_there(arguments, words, fedlgd, tmp_path):
    for folder in ("sites", "runs/mine"):
        (tmp_path / folder).mkdir(parents=True)
    done = fedlgd(*arguments)
    assert done.code == 2
    assert words.format(here=tmp_path) in done.err
