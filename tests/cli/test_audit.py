"""`fedlgd audit` as a user types it, and what it refuses."""

import json
import re
import shutil
from dataclasses import replace

import pytest

from fedlgd.attacks.audit import MIN_POOL_SIZE, AuditPlan, AuditRequest
from fedlgd.attacks.target import open_target
from fedlgd.core.errors import message
from fedlgd.core.files import write_json
from tests.cli.conftest import tiny_run

LARGER = ("--set=data.limit=200", "--quiet")
REFUSE = "--set=distil.short=refuse"


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Where the first test of the module that audits a run leaves it to the others."""
    return tmp_path_factory.mktemp("finished") / "out"


@pytest.fixture
def audited(fedlgd, finished, tmp_path):
    """A copy of a finished run, in the test's own folder."""
    if not finished.exists():
        assert fedlgd(*tiny_run(tmp_path / "made", *LARGER, rounds=2)).code == 0
        (tmp_path / "made").rename(finished)
    return shutil.copytree(finished, tmp_path / "out")


@pytest.mark.drawn
def test_an_audit_has_controls_resumes_and_is_shown_in_the_report(fedlgd, audited, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    done = fedlgd("audit", "out", "--jobs", "1", "--site", "scans")
    assert done.code == 0, done.err
    for words in ("14 of 14 federations", "estimated time"):
        assert words in done.err
    for words in (
        "blind",
        "FedAvg on real data, equal steps",
        "FedAvg on virtual data",
        "must leak",
        "not measurable (n =",
    ):
        assert words in done.out
    assert "private" not in done.out
    stored = json.loads((audited / "audit.json").read_text())
    again = fedlgd("audit", "out", "--jobs", "2", "--site", "scans", "--json")
    assert json.loads(again.out)["out"]["findings"] == stored["findings"]
    assert json.loads(again.out)["out"]["verdict"] in " ".join(done.out.split())
    monkeypatch.setenv("COLUMNS", "80")
    resumed = fedlgd("audit", "out", "--site", "scans")
    assert "0 of 14 federations" in resumed.err
    assert max(map(len, resumed.out.splitlines())) <= 80
    assert "cosine with first" in resumed.out
    assert fedlgd("report", "out").code == 0
    page = (audited / "report.html").read_text()
    for words in ("What left each site", "log-log", "TPR at 0.1 % FPR", "absence of evidence"):
        assert words in page or "Leak found" in page or "Nothing can be concluded" in page


def test_audits_with_other_settings_stay_beside_each_other(fedlgd, audited):
    plain = ("audit", "out", "--attack", "paper", "--jobs", "1", "--quiet")
    assert fedlgd(*plain).code == 0
    first = json.loads((audited / "audit.json").read_text())
    done = fedlgd(*plain, "--site", "scans")
    assert "Written: out/audit-2.json (with other settings: audit.json)" in done.out
    assert json.loads((audited / "audit-2.json").read_text())["site"] == "scans"
    assert json.loads((audited / "audit.json").read_text()) == first
    again = fedlgd(*plain, "--site", first["site"], "--json")  # the default site, by its name
    assert json.loads(again.out)["out"]["file"] == "out/audit.json"
    assert fedlgd("report", "out").code == 0
    page = (audited / "report.html").read_text()
    for site in (first["site"], "scans"):
        assert f"Membership inference at site {site}" in page


def test_an_audit_of_an_older_version_or_a_damaged_one_is_not_in_the_way(audited):
    plan = AuditPlan(open_target(audited), AuditRequest(), "scans")
    known = {name: value for name, value in plan.settings.items() if name != "rounds"} | {"site": ""}
    write_json(audited / "audit.json", {"site": "scans", "settings": known})
    assert plan.file == audited / "audit.json"
    (audited / "audit.json").write_text("{")
    assert AuditPlan(plan.target, AuditRequest(), "scans").file == audited / "audit-2.json"


def test_the_time_of_a_federation_is_that_of_the_run_with_one_distillation(audited):
    target = open_target(audited)
    enrolment, *rounds = target.result.records
    spent = {"train": 2.0, "server": 1.0, "evaluate": 9.0}
    known = [replace(enrolment, cpu={"distil": 50.0}), *(replace(each, cpu=spent) for each in rounds)]
    target.result.records[:] = known
    plan = AuditPlan(target, AuditRequest(), "scans")
    assert plan._seconds_of(plan.arms[0]) == pytest.approx(50 / 5 + 2 * 3)  # five sites, two rounds


def test_the_protocol_of_the_paper_says_that_in_sample_is_biased(fedlgd, audited, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")  # wide enough for the names of attacks on one line
    done = fedlgd("audit", "out", "--attack", "paper", "--in-sample", "--jobs", "1", "--quiet")
    assert done.code == 0, done.err
    for words in ("log gradient norm, in-sample: biased", "gradient norm of the last layer", "loss", "blind"):
        assert words in done.out


@pytest.mark.parametrize(
    ("run", "audit", "words"),
    [
        ((*LARGER,), ("--site", "scan"), "did you mean 'scans'"),
        (("--quiet",), (), message("pool-too-small", site="fonts", images=40, wanted=MIN_POOL_SIZE)),
        (("--set=data.limit=100", "--set=distil.per_class=5", REFUSE, "--quiet"), (), "distil.per_class = 5"),
        ((*LARGER, "--method=fedbn"), (), "shared model"),
        ((*LARGER, "--method=pooled"), (), "shared model"),
        (("--set=distil.private.epsilon=4", "--set=data.limit=400", "--quiet"), (), "test_key"),
    ],
)
def test_bad_input_is_refused_with_a_way_out(fedlgd, tmp_path, run, audit, words):
    settings = tiny_run(tmp_path / "out", *run, rounds=1)
    if any(each.startswith("--method") for each in run):
        settings = [each for each in settings if not each.startswith(("--set=refine", "--set=anchors"))]
    ran = fedlgd(*settings)
    assert ran.code == 0, ran.err
    done = fedlgd("audit", "out", "--jobs", "1", *audit)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err


def test_a_private_run_is_refused_with_commands_that_can_be_run_even_if_it_was_refused_itself(fedlgd, tmp_path):
    private = ("--set=distil.private.epsilon=4", "--quiet")
    assert fedlgd(*tiny_run(tmp_path / "out", *private, rounds=1)).code == 2  # 40 images are too few
    done = fedlgd("audit", "out")
    assert (done.code, "finished round" in done.err) == (2, False)
    command, audit = re.search("on public images: fedlgd (.*); then fedlgd (.*)", done.err).groups()
    assert audit == "audit NEW"
    larger = ("--set=data.limit=400", "--quiet")
    simulated = fedlgd(*command.replace("NAME", "x").split(), *larger)
    assert simulated.code == 0, simulated.err
    assert open_target(tmp_path / "NEW").config.method.distil.private.test_key == "x"


def test_a_simulation_that_was_refused_is_not_said_to_be_only_unfinished(fedlgd, tmp_path):
    private = ("--set=distil.private.epsilon=4", "--set=distil.private.test_key=x", "--quiet")
    assert fedlgd(*tiny_run(tmp_path / "out", *private, rounds=1)).code == 2
    done = fedlgd("audit", "out")
    assert done.code == 2
    assert "interrupted, or refused with these settings; to resume it, or to see what it needs: fedlgd" in done.err


PRIVATE = [f"--set=distil.private.{each}" for each in ("test_key=x", "epsilon=4", "releases=2", "blocks=1")]


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (
            (*PRIVATE, "--set=data.limit=400", "--set=distil.private.counts=0.012"),
            "distil.private.eps",
        ),
        (
            ("--set=data.limit=100", "--method=fedavg", "--train-on=real", "--set=distil.per_class=5", REFUSE),
            "per_class = 5",
        ),
        (("--set=data.limit=100", "--set=distil.tiles=2", "--set=distil.start=neighbours", REFUSE), "4 tiles"),
    ],
    ids=["noisy counts", "a control", "tiles of a control"],
)
def test_halves_that_a_federation_would_refuse_are_refused_before_the_first_is_run(
    fedlgd, tmp_path, monkeypatch, run, words
):
    settings = tiny_run(tmp_path / "out", "--quiet", *run, rounds=1)
    if "--method=fedavg" in run:
        settings = [each for each in settings if not each.startswith(("--set=refine", "--set=anchors"))]
    ran = fedlgd(*settings)
    assert ran.code == 0, ran.err
    monkeypatch.setattr("fedlgd.attacks.shadow.run_shadows", lambda *_: pytest.fail("a federation was run"))
    done = fedlgd("audit", "out", "--site", "fonts", "--jobs", "1")
    assert done.code == 2
    assert "is too small" in done.err
    assert words in done.err
    assert "--site" in done.err
    assert "estimated" not in done.err


def test_an_unfinished_run_and_a_run_without_states_are_refused(fedlgd, audited):
    config = audited / "config.toml"
    config.write_text(config.read_text().replace("rounds = 2\n", "rounds = 3\n", 1))
    unfinished = fedlgd("audit", "out")
    assert (unfinished.code, "2 of 3 rounds" in unfinished.err) == (2, True)
    (audited / "state" / "head.json").unlink()
    without = fedlgd("audit", "out")
    assert (without.code, "head.json" in without.err) == (2, True)
    assert fedlgd("audit", "nowhere").code == 2


def test_options_that_do_not_belong_together_are_refused(fedlgd):
    for options in (("--in-sample",), ("--attack", "paper", "--thorough")):
        done = fedlgd("audit", "out", *options)
        assert (done.code, "--attack" in done.err) == (2, True)


@pytest.mark.slow
def test_a_simulation_of_differential_privacy_is_audited_beside_its_promise(fedlgd, tmp_path):
    private = {"epsilon": 4, "test_key": "x", "counts": 0.3, "releases": 2, "blocks": 1}
    settings = [f"--set=distil.private.{name}={value}" for name, value in private.items()]
    ran = fedlgd(*tiny_run(tmp_path / "out", "--set=data.limit=400", "--quiet", *settings, rounds=1))
    assert ran.code == 0, ran.err
    done = fedlgd("audit", "out", "--jobs", "2")
    assert done.code == 0, done.err
    assert "Promised in a simulation, which protects nothing: epsilon at most 4" in done.out
    assert fedlgd("report", "out").code == 0
    assert "ceiling of the promise" in (tmp_path / "out" / "report.html").read_text()
