"""`fedlgd run` and `fedlgd demo`: what is printed where, exit codes, and stopping and going on."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from fedlgd.cli import run, terminal
from fedlgd.core.errors import RunError
from fedlgd.core.score import Score
from fedlgd.data.suites import DataChoice, load
from fedlgd.engines.site import Sites
from fedlgd.report.groups import group_runs
from fedlgd.report.summary import headline
from fedlgd.rundir.read import read_runs, run_folders
from fedlgd.runs.config import Config, resolve
from fedlgd.runs.entries import Entry, plan_jobs
from fedlgd.runs.parse import read_toml
from fedlgd.runs.run import execute
from tests import PATIENCE
from tests.cli.conftest import TINY, tiny_run
from tests.report.fake import write_run
from tests.runs.folder import everything, head, leftovers, records, snapshot

SITES = {"mnist", "scans", "photos", "fonts", "street"}
ESCAPE = "\x1b"


def test_the_command_from_start_to_report(digits_home, tmp_path):
    """The real command, as a script would run it: plain lines, time left, a table, a page."""
    environment = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "TTY_COMPATIBLE")}
    command = [sys.executable, "-m", "fedlgd", *tiny_run(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=environment)
    assert done.returncode == 0, done.stderr
    assert ESCAPE not in done.stdout + done.stderr
    first, *lines = done.stderr.splitlines()
    assert re.fullmatch(r"engine (loop: one process|pool: worker processes: \d+), .*", first)
    assert [re.match(r"setup|round \d/3", line).group() for line in lines] == [
        "setup",
        "round 1/3",
        "round 2/3",
        "round 3/3",
    ]
    assert "mean " in lines[1]
    assert all(site in lines[1] for site in SITES)
    assert re.search(r"about \d+ s left$", lines[2])
    assert "left" not in lines[3]
    assert all(site in done.stdout for site in SITES)
    assert f"Report: {tmp_path / 'out' / 'report.html'}" in done.stdout
    assert "<html" in (tmp_path / "out" / "report.html").read_text()
    assert head(tmp_path / "out")["round"] == 3
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert shlex.split(manifest["command"]) == ["fedlgd", *tiny_run(tmp_path / "out")]
    assert manifest["threads"] == 1


def test_json_is_all_there_is_on_stdout(fedlgd, tmp_path):
    done = fedlgd(*tiny_run(tmp_path / "out", "--json", rounds=2))
    assert done.code == 0
    assert done.err == ""
    summary = json.loads(done.out)
    assert set(summary["accuracy"]) == SITES
    assert summary["mean"] == pytest.approx(sum(summary["accuracy"].values()) / 5)
    assert summary["rounds"] == 2
    assert summary["folder"] == str(tmp_path / "out")
    assert Path(summary["report"]).exists()
    last = records(tmp_path / "out")[-1]["scores"]
    assert summary["accuracy"] == {site: score["accuracy"] for site, score in last.items()}


def test_where_it_is_computed_is_said_and_kept(fedlgd, tmp_path):
    done = fedlgd(*tiny_run(tmp_path / "out", "--precision=bf16", rounds=1))
    assert done.code == 0
    assert "; bfloat16" in done.err.splitlines()[0]
    engine = json.loads((tmp_path / "out" / "manifest.json").read_text())["engine"]
    assert (engine["device"], engine["precision"]) == ("cpu", "bf16")


@pytest.mark.filterwarnings("always")
def test_a_run_that_cannot_be_compiled_is_not_said_to_be(fedlgd, tmp_path, monkeypatch):
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    done = fedlgd(*tiny_run(tmp_path / "out", "--compile=on", rounds=1))
    assert done.code == 0
    assert "not compiled" in done.err
    assert "; compiled" not in done.err


def test_quiet_prints_the_result_alone_and_a_complete_run_says_so(fedlgd, tmp_path):
    quiet = fedlgd(*tiny_run(tmp_path / "out", "--quiet", rounds=1))
    assert quiet.code == 0
    assert quiet.err == ""
    assert "Report: " in quiet.out
    assert "round 1" not in quiet.out
    before = snapshot(tmp_path / "out")
    again = fedlgd(*tiny_run(tmp_path / "out", rounds=1))
    assert again.code == 0
    assert again.out == quiet.out
    assert again.err == f"{tmp_path / 'out'} is already complete; nothing to run\n"
    assert {k: v for k, v in snapshot(tmp_path / "out").items() if k != "report.html"} == {
        k: v for k, v in before.items() if k != "report.html"
    }
    assert fedlgd(*tiny_run(tmp_path / "out", "--quiet", rounds=1)).err == ""


def test_in_a_terminal_progress_stays_off_stdout(fedlgd, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    done = fedlgd(*tiny_run(tmp_path / "out", rounds=2))
    assert done.code == 0
    assert ESCAPE in done.err
    assert "round 2/2" in done.err
    assert not re.search(r"round \d|rounds|distil", done.out)
    assert ESCAPE not in done.out


def test_a_config_file_flags_and_set_meet_in_the_run(fedlgd, tmp_path):
    file = tmp_path / "my.toml"
    file.write_text('rounds = 9\nseed = 4\nmethod = "fedlgd"\n[net]\nwidth = 3\n[data]\nlimit = 30\n')
    words = ["run", "--config", str(file), "--preset=quick", "--rounds=1", "--quiet", "-o", str(tmp_path / "out")]
    words += [f"--set={k}={v}" for k, v in TINY.items() if k not in ("data.limit", "net.width")]
    assert fedlgd(*words).code == 0
    config = resolve(read_toml(tmp_path / "out" / "config.toml"))
    assert (config.plan.rounds, config.plan.seed, config.data.limit) == (1, 4, 30)
    assert (config.net["width"], config.net["depth"]) == (3, 2)
    assert (config.method.distil.steps, config.method.distil.real_per_class) == (1, 32)


def test_the_written_configuration_is_a_config_file_for_the_same_run(fedlgd, tmp_path):
    assert fedlgd(*tiny_run(tmp_path / "one", "--quiet", rounds=1)).code == 0
    done = fedlgd("run", "-c", str(tmp_path / "one" / "config.toml"), "-o", str(tmp_path / "two"), "--quiet")
    assert done.code == 0
    assert everything(tmp_path / "one") == everything(tmp_path / "two")


def test_without_out_a_run_has_a_folder_of_its_own_below_runs(fedlgd, tmp_path):
    words = [word for word in tiny_run(Path("unused"), "--json", rounds=1) if word not in ("-o", "unused")]
    first, second = (json.loads(fedlgd(*words, f"--seed={seed}").out)["folder"] for seed in (0, 1))
    assert first != second
    assert Path(first).parts[:2] == ("runs", "builtin-digits")
    assert (tmp_path / first / "report.html").exists()
    assert json.loads(fedlgd(*words, "--seed=0").out)["folder"] == first


@pytest.mark.parametrize(
    ("words", "method"), [(["--method", "fedavg"], "fedavg+anchors"), (["-c", "my.toml"], "scaffold+anchors")]
)
def test_the_option_anchors_adds_them_to_the_method(words, method, fedlgd, tmp_path, monkeypatch):
    def see(config: Config, *_: object) -> None:
        raise RunError(config.plain()["method"])

    (tmp_path / "my.toml").write_text('method = "scaffold"')
    monkeypatch.setattr(run, "_prepared", see)
    assert fedlgd("run", "--anchors", *words).err == f"fedlgd: {method}\n"


# Something to put right: one line, exit code 2, no traceback


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bultin-digits"], "did you mean 'builtin-digits'"),
        (["--method", "fedlg"], "did you mean 'fedlgd'"),
        (["--net", "connet"], "did you mean 'convnet'"),
        (["--net", "no.such.module:Net"], "cannot import net 'no.such.module:Net'"),
        (["--method", "no.such:Method"], "cannot import method 'no.such:Method'"),
        (["--rounds", "0"], "rounds is 0"),
        (["--ratio", "1.5"], "ratio is 1.5"),
        (["--preset", "slow"], "no preset 'slow'; available: paper"),
        (["--set", "distil.perclass=3"], "did you mean 'distil.per_class'"),
        (["--set", "rounds"], "key=value"),
        (["--set", "net.width=wide"], "net"),
        (["--set", "data.limit=-3"], "data.limit is -3"),
        (["--set", "distil.net=connet", "--rounds", "1"], "did you mean 'convnet'"),
        (["--device", "tpu"], "device is 'tpu'; use cpu, cuda, or cuda:1"),
        (["--config", "missing.toml"], "cannot read config 'missing.toml'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words, said, fedlgd, tmp_path):
    small = ["--set=data.limit=40", "--set=net.width=4", "-o", str(tmp_path / "out")]
    done = fedlgd("run", *small, *words)
    assert done.code == 2
    assert done.out == ""
    assert done.err.startswith("fedlgd: ")
    assert done.err.count("\n") == 1
    assert said in done.err


@pytest.mark.parametrize("engine", ["loop", "pool"])
def test_a_run_that_diverges_names_a_site_and_the_setting_and_is_no_success(engine, fedlgd, tmp_path):
    done = fedlgd(*tiny_run(tmp_path / "out", "--set=local.lr=1e38", f"--engine={engine}", "--quiet", rounds=1))
    assert done.code == 2
    assert done.out == ""
    assert re.match(r"fedlgd: round 1: .*'\w+'.*training diverged.*lower local\.lr", done.err)
    assert done.err.count("\n") == 1


def test_a_folder_of_another_run_is_exit_code_2(fedlgd, tmp_path):
    assert fedlgd(*tiny_run(tmp_path / "out", "--quiet", rounds=1)).code == 0
    before = snapshot(tmp_path / "out")
    done = fedlgd(*tiny_run(tmp_path / "out", "--set=local.lr=0.5", rounds=1))
    assert done.code == 2
    assert "there and 0.5 here" in done.err
    assert done.err.count("\n") == 1
    assert snapshot(tmp_path / "out") == before


def test_the_real_command_shows_no_traceback(tmp_path):
    command = [sys.executable, "-m", "fedlgd", "run", "--method", "fedlg", "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 2
    assert done.stdout == ""
    assert re.fullmatch(r"fedlgd: no method is called 'fedlg'; did you mean 'fedlgd'\?.*\n", done.stderr)


@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_line_too(fedlgd, tmp_path):
    assert fedlgd(*tiny_run(tmp_path / "out", "--quiet", rounds=1)).code == 0
    done = fedlgd(*tiny_run(tmp_path / "out", "--quiet", "--threads=2", rounds=1))
    assert done.code == 0
    assert re.fullmatch(r"fedlgd: .* was started with 1 thread and is resumed with 2: .*\n", done.err)


# Stopping and going on


def test_ctrl_c_saves_says_how_to_resume_and_going_on_works(fedlgd, digits_home, tmp_path):
    words = tiny_run(tmp_path / "stopped", rounds=12)
    config, data = resolve({}, TINY | {"rounds": 12}), load("builtin-digits", 40, 20)
    process = subprocess.Popen(
        [sys.executable, "-m", "fedlgd", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        heard = ""
        while "round 1/12" not in heard:
            line = process.stderr.readline()
            assert line, heard
            heard += line
        process.send_signal(signal.SIGSTOP)  # a slow test must not let the run end
        with pytest.raises(RunError, match="another process uses"):
            execute(config, data, tmp_path / "stopped")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert str(tmp_path / "stopped") in err
    resume = shlex.split(re.search(r"To resume: (.*)$", err, re.M).group(1))
    assert resume == ["fedlgd", *words]
    assert 1 <= head(tmp_path / "stopped")["round"] < 12
    rest = fedlgd(*resume[1:])
    assert rest.code == 0
    assert "round 1/12" not in rest.err
    assert "round 12/12" in rest.err
    assert fedlgd(*tiny_run(tmp_path / "straight", "--quiet", rounds=12)).code == 0
    assert everything(tmp_path / "stopped") == everything(tmp_path / "straight")
    assert leftovers(tmp_path / "stopped") == []


@pytest.mark.parametrize("more", [["--json"], ["--quiet"], []])
def test_an_interrupt_leaves_stdout_empty(more, fedlgd, tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "execute", interrupted)
    done = fedlgd(*tiny_run(tmp_path / "out", *more))
    assert done.code == 130
    assert done.out == ""
    assert "To resume: fedlgd run builtin-digits" in done.err


def test_an_interrupt_before_the_run_is_exit_code_130_too(fedlgd, tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(DataChoice, "open", interrupted)
    done = fedlgd(*tiny_run(tmp_path / "out"))
    assert done.code == 130
    assert "Traceback" not in done.err


# The demo


@pytest.fixture
def small_demo(monkeypatch):
    """The demo with everything but its methods and seeds turned down."""
    small = {
        "data.limit": 40,
        "data.test_limit": 20,
        "net.width": 4,
        "net.depth": 2,
        "distil.steps": 1,
        "distil.per_class": 2,
        "distil.tiles": 1,
        "distil.real_per_class": 4,
        "fedlgd.refine.steps": 1,
        "fedlgd.anchors.steps": 1,
        "fedlgd.local.steps": 20,
        "fedavg.local.steps": 1,  # the costs must differ, also on a busy machine
    }
    monkeypatch.setattr(run, "DEMO_SETTINGS", {**run.DEMO_SETTINGS, **small})


def test_the_demo_ends_with_a_table_its_headline_a_page_and_what_to_try_next(fedlgd, small_demo, tmp_path):
    done = fedlgd("demo", "--rounds", "1", "--jobs", "1")
    assert done.code == 0
    groups = group_runs(read_runs(run_folders(tmp_path / "runs" / "demo"))[0])
    assert [group.label for group in groups] == ["FedAvg on virtual data", "FedLGD"]
    assert [len(group.counted) for group in groups] == [3, 3]
    assert "Report: runs/demo/report.html" in done.out
    page = (tmp_path / "runs" / "demo" / "report.html").read_text()
    for said in (" ".join(done.out.split()), page):
        assert re.search(r"do not cost the same: .*\(FedAvg on virtual data\) to .* \(FedLGD\)", said)
        assert headline(groups).short in said
    opening, exporting, running = re.findall(r"^  \S*fedlgd (.*)$", done.out.partition("Next:")[2], re.M)
    assert fedlgd(*shlex.split(opening)).code == 0
    for command in (exporting, running):
        assert fedlgd(*shlex.split(command), "--help").code == 0
    again = fedlgd("demo", "--rounds", "1", "--jobs", "1")
    assert again.code == 0
    assert again.out.count("(finished)") + again.err.count("(finished)") == 6


def test_the_demo_as_json_names_a_winner_only_if_the_interval_does(fedlgd, small_demo, tmp_path):
    done = fedlgd("demo", "--rounds", "1", "--seeds", "2", "--json", "-o", "elsewhere")
    assert done.code == 0
    assert done.err == ""
    result = json.loads(done.out)
    each = [(run["method"], run["seed"]) for run in result["runs"]]
    assert each == [(name, seed) for name in ("FedAvg on virtual data", "FedLGD") for seed in (0, 1)]
    assert all(set(run["accuracy"]) == SITES for run in result["runs"])
    assert (result["difference"]["seeds"], result["failed"]) == (2, {})
    assert result["difference"]["interval"] is None  # two seeds have none
    assert result["winner"] == ""
    assert (tmp_path / result["report"]).exists()


def test_the_methods_of_the_demo_share_their_virtual_sets(fedlgd, small_demo, digits_home):
    assert fedlgd("demo", "--rounds", "1", "--seeds", "1", "--quiet").code == 0
    assert len(list(digits_home.glob("distilled/*/*.safetensors"))) == 5


def test_the_demo_runs_fedlgd_itself_and_both_methods_alike():
    """No part of FedLGD is off; sets, steps, network and training are the same."""
    entries = [Entry("fedavg", "fedavg", {"train_on": "virtual"}), Entry("fedlgd", "fedlgd")]
    fedavg, ours = (job.config for job in plan_jobs(entries, 1, None, run.DEMO_SETTINGS, run.DEMO_PRESET))
    assert ours.method.label == "FedLGD"
    assert (fedavg.method.distil, fedavg.method.local) == (ours.method.distil, ours.method.local)
    assert (fedavg.net, fedavg.plan, fedavg.data) == (ours.net, ours.plan, ours.data)
    assert ours.method.local.steps > 0  # per round, whatever the number of images


# The table at the end


def test_a_site_that_lacks_classes_in_its_test_set_is_named(fedlgd, monkeypatch):
    whole = Score(0.5, 1.0, (1,) * 10, (2,) * 10)
    scored = Sites._score

    def lacking(sites, task):
        without = replace(whole, correct=(0, 0, *whole.correct[2:]), total=(0, 0, *whole.total[2:]))
        return scored(sites, task) | {"score": without if task.site == "fonts" else whole}

    monkeypatch.setattr(Sites, "_score", lacking)
    done = fedlgd(*tiny_run(Path("out"), "--engine", "loop", rounds=1))
    assert done.code == 0, done.err
    assert "fonts†" in done.out
    assert "† No test images: fonts of classes '0', '1'." in done.out


@pytest.mark.parametrize("sites", [3, 57])
def test_the_table_has_a_line_for_each_site_and_the_mean(sites, capsys, tmp_path):
    accuracy = {f"s{i}": i / 100 for i in range(sites)}
    runs = [write_run(tmp_path / label, label=label, final=accuracy) for label in ("FedLGD", "a")]
    terminal.print_accuracy(group_runs(read_runs(runs)[0]))
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if line[0] != "─"]
    assert lines[1] == ["site", "FedLGD", "a"]
    assert lines[2:-1] == [[site, f"{100 * value:.1f}", f"{100 * value:.1f}"] for site, value in accuracy.items()]
    assert lines[-1] == ["mean", *[f"{100 * sum(accuracy.values()) / sites:.1f}"] * 2]


def test_help_shows_the_defaults(fedlgd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    config, help = resolve({}), fedlgd("run", "--help").out
    values = {"--rounds": config.plan.rounds, "--ratio": config.plan.ratio, "--seed": config.plan.seed}
    values |= {"--method": config.method.name, "--net": config.net["name"], "Federation (fedlgd": config.data.name}
    for option, value in values.items():
        line = next(line for line in help.splitlines() if option in line)
        assert f"[default: ({value})]" in line


def test_sites_have_the_order_of_the_federation_everywhere(fedlgd, tmp_path):
    order = ["mnist", "scans", "photos", "fonts", "street"]
    run = fedlgd(*tiny_run(tmp_path / "run", rounds=1))
    round_line = next(line for line in run.err.splitlines() if line.startswith("round 1/1"))
    assert [word for word in round_line.split() if word in order] == order
    again = fedlgd(*tiny_run(tmp_path / "run", "--json", rounds=1))
    assert list(json.loads(again.out)["accuracy"]) == order


def test_enrolment_is_called_setup_and_rounds_count_from_1(fedlgd, tmp_path):
    lines = fedlgd(*tiny_run(tmp_path / "run", "--engine=loop", rounds=2)).err.splitlines()
    assert [line.split()[0] for line in lines] == ["engine", "setup:", "round", "round"]
    assert [line.split()[1] for line in lines[2:]] == ["1/2", "2/2"]
