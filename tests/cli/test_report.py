"""`fedlgd report` and `fedlgd watch`: both start without torch."""

import json
import re
import signal
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from fedlgd.cli import report
from fedlgd.core.errors import message
from fedlgd.report.watch import Watcher, WatchServer
from tests import PATIENCE
from tests.cli.conftest import TINY, tiny_run
from tests.report.fake import write_run

CODE = """
import sys
from fedlgd.cli import main
sys.argv = ["fedlgd", "watch", "--port=0", *sys.argv[1:]]
try:
    main()
finally:
    print("heavy:", sorted({"torch", "sklearn", "matplotlib", "fedlgd.runs"} & set(sys.modules)))
"""


@pytest.mark.enable_socket
def test_the_command_starts_at_once_says_where_and_ctrl_c_ends_it_with_exit_code_0(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CODE, str(tmp_path / "later")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/", said).group()
        with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
            assert 'data-kind="waiting"' in answer.read().decode()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    assert process.returncode == 0
    assert said.startswith(f"Watching {tmp_path / 'later'} at http")
    assert f"{tmp_path / 'later'} yet" in err
    assert "Stopped watching" in err
    assert out.strip() == "heavy: []"


@pytest.mark.enable_socket
def test_a_port_that_is_taken_is_said(fedlgd, tmp_path: Path) -> None:
    with WatchServer(Watcher([tmp_path]), 0) as other:
        done = fedlgd("watch", str(tmp_path), "--port", str(other.server_port))
    assert done.code == 2
    assert done.out == ""
    wanted = {"port": other.server_port, "host": "127.0.0.1", "reason": "Address already in use"}
    assert done.err == f"fedlgd: {message('port-taken', **wanted)}\n"


def test_a_file_is_no_run(fedlgd, tmp_path: Path) -> None:
    (tmp_path / "report.html").write_text("")
    done = fedlgd("watch", str(tmp_path / "report.html"))
    assert done.code == 2
    assert message("run-folder-is-file", path=str(tmp_path / "report.html")) in done.err


@pytest.mark.enable_socket
@pytest.mark.parametrize("opened", [True, False])
def test_open_shows_the_page_in_a_browser(
    opened: bool, fedlgd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[str] = []
    asked = threading.Event()
    monkeypatch.setattr(report.webbrowser, "open", lambda url: (shown.append(url), asked.set()))

    def interrupted(_: WatchServer) -> None:
        asked.wait(10 if opened else 0)
        raise KeyboardInterrupt

    monkeypatch.setattr(WatchServer, "serve_forever", interrupted)
    done = fedlgd("watch", str(tmp_path), "--port=0", *(["--open"] if opened else []))
    assert done.code == 0
    assert shown == ([re.search(r"http://\S+", done.out).group()] if opened else [])


# The report


def tiny_fedavg(out: Path) -> list[str]:
    words = tiny_run(out, "--method=fedavg", "--quiet", rounds=1)
    return [word for word in words if not word.startswith(("--set=refine", "--set=anchors"))]


@pytest.mark.drawn
def test_report_makes_one_page_of_all_runs_below_a_folder(fedlgd, tmp_path):
    assert fedlgd(*tiny_fedavg(tmp_path / "runs" / "fedavg")).code == 0
    assert fedlgd(*tiny_run(tmp_path / "runs" / "fedlgd", "--quiet", rounds=1)).code == 0
    done = fedlgd("report", str(tmp_path / "runs"), "--json")
    assert done.code == 0
    assert json.loads(done.out) == {
        "report": str(tmp_path / "runs" / "report.html"),
        "runs": 2,
        "figures": [],
    }
    page = (tmp_path / "runs" / "report.html").read_text()
    assert "FedLGD" in page
    assert "FedAvg" in page
    again = fedlgd("report", str(tmp_path / "runs" / "fedlgd"), "-o", str(tmp_path / "one.html"))
    assert again.out.strip() == f"Report: {tmp_path / 'one.html'}"
    assert "FedAvg" not in (tmp_path / "one.html").read_text()


def test_report_without_a_run_says_so(fedlgd, tmp_path):
    (tmp_path / "empty").mkdir()
    hint = f"; did you mean {str(tmp_path / 'empty')!r}?"
    for place, code, more in (("empty", "no-run-in-folder", {}), ("empti", "no-run-folder", {"hint": hint})):
        done = fedlgd("report", str(tmp_path / place))
        assert done.code == 2
        assert done.err == f"fedlgd: {message(code, folders=[tmp_path / place], **more)}\n"
    (tmp_path / "empty" / "manifest.json").write_text("{}")
    done = fedlgd("report", str(tmp_path / "empty"))
    assert done.code == 2
    assert "config.toml" in done.err
    assert done.err.count("\n") == 1


def test_a_report_that_cannot_be_written_is_said(fedlgd, tmp_path):
    assert fedlgd(*tiny_fedavg(tmp_path / "run")).code == 0
    (tmp_path / "file").write_text("")
    done = fedlgd("report", str(tmp_path / "run"), "-o", str(tmp_path / "file" / "report.html"))
    assert done.code == 2
    assert str(tmp_path / "file" / "report.html") in done.err


TWO_CLASS_HEAD = "method,site,images," + ",".join(
    f"{rate},{rate} low,{rate} high"
    for rate in ("accuracy", "balanced accuracy", "sensitivity", "specificity", "AUC")
)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        (["--csv"], "method,seeds,rounds,mnist,svhn,usps,mean,spread"),
        (["--latex", "--table=cost"], r"\begin{tabular}{lrrrrrrrrr}"),
        (["--markdown"], "| method | seeds | rounds | mnist | svhn | usps | mean | spread |"),
        (["--table=curves"], "round,method,seed,site,accuracy,loss"),
        (["--csv", "--table=two-classes"], TWO_CLASS_HEAD),
    ],
)
def test_a_table_is_printed_and_no_page_is_written(fedlgd, tmp_path, words, first):
    write_run(tmp_path / "runs" / "a", classes=("no", "yes"), auc=0.9)
    done = fedlgd("report", str(tmp_path / "runs"), *words)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == first
    assert [file.name for file in (tmp_path / "runs").iterdir()] == ["a"]


def test_a_table_that_the_runs_do_not_have_is_said(fedlgd, tmp_path):
    write_run(tmp_path / "a")
    done = fedlgd("report", str(tmp_path), "--csv", "--table", "two-classes")
    assert done.code == 2
    assert message("no-such-table", table="two-classes") in done.err


@pytest.mark.parametrize("more", ["--latex", "--json", "--out=x.html", "--figures=x"])
def test_a_printed_table_stands_alone(fedlgd, tmp_path, more):
    write_run(tmp_path / "a")
    done = fedlgd("report", str(tmp_path), "--csv", more)
    assert (done.code, done.out) == (2, "")
    assert message("table-alone", form="csv") in done.err


def test_a_latex_table_has_marks_against_a_named_method(fedlgd, tmp_path):
    for label, accuracy in (("low", 0.5), ("high", 0.8)):
        for seed in range(3):
            write_run(tmp_path / f"{label}{seed}", label=label, seed=seed, final={"a": accuracy + seed / 100})
    done = fedlgd("report", str(tmp_path), "--latex", "--baseline", "low")
    assert done.code == 0
    assert r"\textbf{81.0 $\pm$ 1.0$^{*}$}" in done.out
    assert "differs from low" in done.out
    assert (
        message("baseline-without-latex", baseline="low") in fedlgd("report", str(tmp_path), "--baseline=low").err
    )


def test_a_folder_that_does_not_exist_is_named(fedlgd):
    done = fedlgd("report", "watch", "nothere")
    assert done.code == 2
    assert message("no-run-folder", folders=["watch", "nothere"], hint="; ") in done.err


def test_what_a_method_does_not_declare_is_said_at_the_end_of_a_run_and_when_it_is_opened(fedlgd):
    lying = ("--method", "tests.report.test_claims:Lying")
    settings = [f"--set={path}={value}" for path, value in TINY.items() if path.startswith(("data", "net"))]
    run = ["run", "builtin-digits", "--rounds", "1", "-o", "out", *settings, *lying]
    done = fedlgd(*run)
    assert done.code == 0, done.err
    opened = fedlgd("open", "out")
    sentence = "Lying on virtual data sent trees/virtual and read private images first in round 1"
    for said in (done.out, opened.out):
        assert sentence in " ".join(said.split())
    found = [json.loads(fedlgd(*words, "--json").out)["mismatches"] for words in (run, ("open", "out"))]
    codes = {"sent-undeclared": "trees/virtual", "read-undeclared": "1", "declared-unsent": "params"}
    assert found == [[{"code": code, "what": what} for code, what in codes.items()]] * 2
