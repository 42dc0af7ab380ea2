"""What a hospital does, from its folders to a federation, with real processes: it takes minutes.

Check, compare, audit, provision, join; a misspelt class, a killed site, a greedy coordinator.
"""

import os
import signal
import time
from collections.abc import Iterator

import pytest

from fedlgd.core.errors import message
from fedlgd.deploy.kit import address
from fedlgd.deploy.processes import free_port
from fedlgd.rundir.manifest import read_manifest
from tests.deploy.desk import PATIENCE, SETTINGS, TINY, Desk, processes

pytestmark = [pytest.mark.slow, pytest.mark.enable_socket, pytest.mark.timeout(3000)]

CLASSES = {"normal": 40, "glaucoma": 40}  # an audit needs 60 training images
MAPPING = "data.classes=glaucoma=glaucomma"
LONG = 400  # rounds of a run that is stopped


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("walk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLGD_CACHE", str(folder / "home"))
        patch.setenv("FEDLGD_STATE", str(folder / "state"))
        patch.setenv("OMP_NUM_THREADS", "1")
        found = Desk(folder, address(f"127.0.0.1:{free_port()}"), CLASSES, kits=False)
        try:
            yield found
        finally:
            found.stop()


def test_a_hospital_checks_compares_audits_joins_and_is_safe(desk):
    decide_whether_to_join(desk)
    join_after_a_misspelt_class(desk)
    go_on_without_a_killed_site_until_it_is_back(desk)
    refuse_a_greedy_coordinator(desk)


def decide_whether_to_join(desk: Desk) -> None:
    assert desk.done("check", "data", "check", desk.images) == 0, desk.log("check").read_text()
    of_both = [f"--set={path}={value}" for path, value in TINY.items() if path.startswith(("net.", "distil."))]
    compared = ["--methods", "fedavg,fedlgd:refine.steps=1:anchors.steps=1", "--seeds", "1", "--jobs", "1"]
    compared += ["--rounds", "2", "-o", "compared", *of_both]
    assert desk.done("compare", "compare", desk.images, *compared) == 0, desk.log("compare").read_text()
    assert (desk.folder / "compared" / "report.html").exists()
    how = ["--rounds", "2", "--engine", "loop", "-o", "alone", *SETTINGS]
    assert desk.done("run", "run", desk.images, *how) == 0, desk.log("run").read_text()
    assert desk.done("audit", "audit", "alone", "--jobs", "1", "--yes") == 0, desk.log("audit").read_text()


def join_after_a_misspelt_class(desk: Desk) -> None:
    made = ["--sites", "a,b,c", "--server", str(desk.server), "--classes", "normal,glaucoma"]
    assert desk.done("provision", "provision", desk.kits, *made) == 0, desk.log("provision").read_text()
    (desk.images / "c" / "glaucoma").rename(desk.images / "c" / "glaucomma")
    desk.serve()
    for site in ("a", "b"):
        desk.join(site)
    assert desk.join("c", None, "misspelt").wait(PATIENCE) == 2
    assert desk.says("misspelt", f"--set {MAPPING}")
    desk.wait("a and b", lambda: desk.says("serve", "connected: a, b (2 of 3)"))
    assert not (desk.kits / "site-c" / "journal.log").exists()
    desk.join("c", None, "", "--set", MAPPING)
    desk.wait("three sites", lambda: desk.says("serve", "connected: a, b, c (3 of 3)"))


def go_on_without_a_killed_site_until_it_is_back(desk: Desk) -> None:
    run = desk.run("killed", "--set", "quorum=0.6", "--set", "evaluate_every=1", rounds=LONG)
    desk.wait("round 2", lambda: len(desk.records("killed")) >= 3)
    assert read_manifest(desk.folder / "killed").data.classes == ("glaucoma", "normal")
    for process in processes(str(desk.kits / "site-b")):
        os.kill(process, signal.SIGKILL)
    killed = time.monotonic()
    desk.wait("what the run waits for", lambda: desk.says("killed", "for the answer of b;"))
    assert time.monotonic() - killed < 45  # on a busy machine, too, before the server gives b up after 60
    assert desk.says("killed", message("late-left-out", timeout=3600.0))
    desk.wait("a round without b", lambda: any("b" in record.refused for record in desk.records("killed")))
    desk.started["b"].wait(60)
    read = desk.log("serve").stat().st_size
    desk.join("b", None, "", "--quiet")
    desk.wait("the return of b", lambda: desk.says("serve", "connected: a, b, c (3 of 3)", read))
    before = len(desk.records("killed"))
    desk.wait("a round with b", lambda: any("b" in record.scores for record in desk.records("killed")[before:]))
    run.terminate()
    assert run.wait(PATIENCE)
    records = desk.records("killed")
    assert [record.round for record in records] == list(range(-1, len(records) - 1))  # nothing is lost
    assert not any(record.joined for record in records)  # b has kept its state
    assert desk.says("killed", "(over 2 of 3 sites)")


def refuse_a_greedy_coordinator(desk: Desk) -> None:
    how = [
        "--engine",
        "flower",
        "--kit",
        desk.kits / "server",
        "--rounds",
        "2",
        "--set",
        "net.width=4",
        "-o",
        "greedy",
    ]
    assert desk.done("greedy", "run", *how, "--method", "fedavg", "--set", "train_on=real") == 2
    line = 'train_on = ["virtual", "real"]'
    assert desk.says("greedy", message("train-on-not-listed", data="real", line=line))
    journal = (desk.kits / "site-a" / "journal.log").read_text()
    assert "(fedavg): its policy: the method trains on real images" in journal
    sent = [entry for entry in journal.splitlines() if "sent: answer to train" in entry]
    assert sent
    assert all("trained on virtual images" in entry and "epsilon: none" in entry for entry in sent)
