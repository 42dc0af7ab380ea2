"""A server and three sites as real processes on this machine, with TLS and keys. Minutes long on a busy machine."""

import os
import re
import signal
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
import torch
from safetensors.torch import load_file

from fedlgd.core.errors import message
from fedlgd.data.own.suite import Folders
from fedlgd.deploy.connection import OVERSIZED
from fedlgd.deploy.coordinator import LOST_REASONS
from fedlgd.deploy.kit import address, provision
from fedlgd.deploy.processes import ENDING_REASONS, free_port
from fedlgd.deploy.superlink import HANDSHAKE_FAULTS
from tests.deploy.desk import PATIENCE, SITES, TINY, Desk, processes
from tests.deploy.hostile_site import (
    Attack,
    HostileSite,
    another_sender,
    bomb,
    drip,
    flood,
    garbage,
    large,
    params,
    replayed,
    says,
)

pytestmark = [pytest.mark.slow, pytest.mark.enable_socket, pytest.mark.timeout(3000)]


def listening(pid: int) -> set[str]:
    """The addresses on which a process listens, as the kernel writes them."""
    sockets = set()
    for handle in Path(f"/proc/{pid}/fd").iterdir():
        try:
            sockets.add(os.readlink(handle))  # noqa: PTH115
        except OSError:
            continue
    lines = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
    ]
    return {line[1] for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in sockets}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """Three sites that are connected."""
    folder = tmp_path_factory.mktemp("desk")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDLGD_CACHE", str(folder / "home"))
        patch.setenv("FEDLGD_STATE", str(folder / "state"))
        patch.setenv("OMP_NUM_THREADS", "1")
        found = Desk(folder, address(f"127.0.0.1:{free_port()}"))
        try:
            found.serve()
            for site in SITES:
                found.join(site)
            found.wait("three sites", lambda: found.says("serve", "connected: a, b, c (3 of 3)"))
            yield found
        finally:
            found.stop()


def test_the_result_has_the_bits_of_the_loop(desk):
    preset = ("--preset", "quick")  # a folder of images has another default
    assert desk.run("real", *preset).wait(PATIENCE) == 0, desk.log("real").read_text()
    settings = [f"--set={path}={value}" for path, value in TINY.items()]
    loop = ["run", desk.images, "--engine", "loop", "--method", "fedlgd", "--rounds", "6", "-o", "loop"]
    assert desk.start("loop", *loop, *preset, *settings).wait(PATIENCE) == 0
    real, here = (load_file(desk.folder / out / "state" / "server-6.safetensors") for out in ("real", "loop"))
    assert real.keys() == here.keys()
    assert all(torch.equal(real[name], here[name]) for name in real)
    assert [r.scores for r in desk.records("real")] == [r.scores for r in desk.records("loop")]
    assert (desk.folder / "real" / "report.html").exists()
    journal = (desk.kits / "site-a" / "journal.log").read_text()
    assert journal.count("sent: answer to train in round") == 6
    assert "refused" not in journal


def test_nothing_listens_beyond_the_address_of_the_server_and_the_loopback(desk):
    ours = processes(str(desk.kits))
    assert len(ours) >= 7
    found = {where for pid in ours for where in listening(pid)}
    assert f"0100007F:{desk.server.port:04X}" in found
    assert len(found) == 4
    assert {where.partition(":")[0] for where in found} == {"0100007F"}


def test_a_task_outside_the_policy_is_refused_and_logged_at_the_site(desk):
    policy = desk.kits / "site-c" / "site.toml"
    before = policy.read_text()
    policy.write_text(before.replace("rounds = 500", "rounds = 2"))
    try:
        assert desk.run("refused").wait(PATIENCE) == 2
    finally:
        policy.write_text(before)
    assert desk.says("refused", message("too-many-rounds", rounds=6, allowed=2))
    journal = (desk.kits / "site-c" / "journal.log").read_text()
    assert re.search(r"refused: describe of run \w+ \(fedlgd\): its policy", journal)


def test_a_run_survives_the_loss_of_a_site_of_the_coordinator_and_of_the_server(desk):
    run = desk.run("faults", "--set", "quorum=0.5")
    desk.wait("round 1", lambda: len(desk.records("faults")) >= 2)
    (node,) = processes("fedlgd.deploy.processes", str(desk.kits / "site-b"))
    os.kill(node, signal.SIGKILL)
    desk.wait("a round without b", lambda: any("b" in r.refused for r in desk.records("faults")))
    for lost in (run, desk.started["serve"], desk.started["c"]):
        lost.kill()
        lost.wait()
    done = len(desk.records("faults"))
    desk.wait("the end of the server", lambda: not processes("fedlgd.deploy.superlink", str(desk.kits)))
    read = desk.log("serve").stat().st_size
    desk.serve()
    desk.join("c")
    desk.wait("the return of b and c", lambda: desk.says("serve", "connected: a, b, c (3 of 3)", read))
    assert desk.run("faults", "--set", "quorum=0.5").wait(PATIENCE) == 0, desk.log("faults").read_text()
    records = desk.records("faults")
    assert [r.round for r in records] == list(range(-1, 6))
    assert done < 7
    assert set(records[-1].scores) == set(SITES)
    assert not records[-1].refused
    assert any("b" in r.refused for r in records)
    absent = [(site, why) for r in records for site, why in r.refused.items()]
    assert {site for site, _ in absent} <= {"b", "c"}  # those that were killed; the server may take c for connected
    assert all("connect" in why for _, why in absent)
    assert not any(r.joined for r in records)  # nobody lost its state


def database(desk: Desk) -> Path:
    return desk.kits / "server" / "state" / "superlink.db"


FROM_C = "refused site c at 127.0.0.1: "
LATE = "within|lost"
ATTACKS: dict[str, tuple[Attack, str]] = {
    "no numbers": (params(lambda t: t * float("nan")), "not finite"),
    "other shapes": (params(lambda t: t[None]), r"is float32 \(1, .*\), not float32 \("),
    "another's name": (says(lambda a: replace(a, site="a")), re.escape(message("name-of-another", name="a"))),
    "impossible costs": (says(lambda a: replace(a, seconds={"train": 1e300})), "costs"),
    "no message": (garbage, "not a message"),
    "too large": (large, LOST_REASONS[OVERSIZED]),
    "grows when it is read": (bomb, LOST_REASONS[OVERSIZED]),
    "a replay": (replayed, message("reply-to-another-question")),
    "another sender": (another_sender, ""),
    "an upload that never begins": (drip, LATE),
    "an upload that never ends": (flood, LATE),
}


def test_a_hostile_site_is_named_in_every_round_and_the_run_ends_without_it(desk):
    desk.started["c"].terminate()
    desk.started["c"].wait(60)
    read = desk.log("serve").stat().st_size
    how = ("--set", "quorum=0.6", "--timeout", "120")
    images = Folders(path=str(desk.images / "c"))
    with HostileSite(desk.kits / "site-c", images, [attack for attack, _ in ATTACKS.values()]) as site:
        assert desk.run("hostile", *how, rounds=len(ATTACKS)).wait(PATIENCE) == 0, desk.log("hostile").read_text()
    desk.join("c")
    desk.wait("the return of c", lambda: desk.says("serve", "connected: a, b, c (3 of 3)", read))
    assert not site.errors
    _, *records = desk.records("hostile")
    for record, (attack, (_, reason)) in zip(records, ATTACKS.items(), strict=True):
        assert list(record.refused) == (["c"] if reason else []), (attack, record.refused)
        assert re.search(reason, record.refused.get("c", "")), (attack, record.refused)
    assert set(records[-1].scores) >= {"a", "b"}
    assert desk.says("serve", f"{FROM_C}/v1/fleet/push-messages: {message('reply-of-another')}", read)
    assert desk.says("serve", f"{FROM_C}/v1/fleet/push-object: {message('store-full')}", read)
    assert database(desk).stat().st_size < 250 << 20


def test_strangers_are_refused_and_named(desk, tmp_path):
    read = desk.log("serve").stat().st_size
    provision(tmp_path / "other", ["c"], desk.server)
    desk.join("c", tmp_path / "other" / "site-c", "wrong-authority")
    desk.wait("the refusal of the server's certificate", lambda: desk.says("wrong-authority", "does not trust"))
    desk.wait(
        "its report", lambda: desk.says("serve", f"refused 127.0.0.1: {HANDSHAKE_FAULTS['UNKNOWN_CA']}", read)
    )
    stranger = tmp_path / "other" / "site-c"
    (stranger / "ca.crt").write_bytes((desk.kits / "site-c" / "ca.crt").read_bytes())
    desk.started["wrong-authority"].terminate()
    desk.started["wrong-authority"].wait(60)
    desk.join("c", stranger, "unregistered")
    desk.wait("the refusal of the key", lambda: desk.says("unregistered", ENDING_REASONS["404 not found"]))
    assert desk.says("serve", message("key-not-registered"), read)


def test_plain_text_and_requests_without_the_secret_are_refused(desk):
    with socket.create_connection(desk.server, 30) as plain:
        plain.sendall(b"GET /v1/fleet/pull-messages HTTP/1.1\r\n\r\n")
        assert b"HTTP" not in plain.recv(100)
    desk.wait("its report", lambda: desk.says("serve", f"refused 127.0.0.1: {HANDSHAKE_FAULTS['HTTP_REQUEST']}"))
    trusted = ssl.create_default_context(cafile=str(desk.kits / "site-a" / "ca.crt"))
    with httpx.Client(verify=trusted, timeout=60) as client:
        for path, status in (("control/list-nodes", 403), ("runtime/acquire-task", 403), ("fleet/get-run", 404)):
            assert client.post(f"https://{desk.server}/v1/{path}", content=b"").status_code == status
        assert client.get(f"https://{desk.server}/docs").status_code == 404
    desk.wait("the report", lambda: desk.says("serve", f"/v1/control/list-nodes: {message('secret-missing')}"))
