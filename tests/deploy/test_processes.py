"""The supervisor of a site, with processes that exist only in the test."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedlgd.deploy import processes
from fedlgd.deploy.kit import Address, Kit
from fedlgd.deploy.processes import ENDING_REASONS, ending_reason, supernode_arguments, supervise


class Fake:
    """Processes that live for a given time of the test's own clock."""

    def __init__(self, lives: Sequence[float], until: float = float("inf")) -> None:
        self.now, self.lives, self.until = 0.0, list(lives), until
        self.started: list[float] = []
        self.stopped = 0
        self.said: list[str] = []
        self.end = 0.0

    def begin(self) -> "Fake":
        self.started.append(self.now)
        self.end = self.now + (self.lives.pop(0) if self.lives else float("inf"))
        return self

    def ended(self) -> str:
        return "the SuperNode ended" if self.now >= self.end else ""

    def stop(self) -> None:
        self.stopped += 1

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now > self.until:
            raise KeyboardInterrupt

    def run(self) -> "Fake":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(processes, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))
            with pytest.raises(KeyboardInterrupt):
                supervise(self.begin, self.said.append)
        return self


def pauses(lives: Sequence[float]) -> list[float]:
    fake = Fake(lives, until=20_000).run()
    ends = [start + life for start, life in zip(fake.started, lives, strict=False)]
    return [round(b - a) for a, b in zip(ends, fake.started[1:], strict=True)]


def test_pauses_grow_up_to_a_limit_and_begin_again_after_a_good_time():
    assert pauses([1, 1, 1, 1, 1, 1]) == [10, 20, 40, 80, 160, 320]
    assert pauses([1, 1, 1000, 1]) == [10, 20, 10, 20]


def test_processes_end_with_the_supervisor_and_before_the_next_start():
    fake = Fake([10, 10], until=100).run()
    assert len(fake.started) == fake.stopped == 3
    assert fake.said[0].endswith("10 s")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] failed", ENDING_REASONS["certificate_verify_failed"]),
        ("[code: 2004] Failed to activate SuperNode.", ENDING_REASONS["2004"]),
        ("Client error '404 Not Found' for url", ENDING_REASONS["404 not found"]),
        ("well", ""),
    ],
)
def test_the_last_lines_say_why_a_supernode_ended(line, says):
    assert ending_reason(["something", line]) == says


def test_the_supernode_listens_on_this_machine_only_and_runs_no_code_of_the_server():
    kit = Kit(Path("/kits/site-a"), Address("fl.org", 9443), "a")
    arguments = supernode_arguments(kit, "1234", "/kits/site-a/state/secret")
    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    assert given["--host"] == "127.0.0.1"
    assert given["--isolation"] == "process"
    assert given["--superexec-auth-secret-file"] == "/kits/site-a/state/secret"
    assert given["--superlink"] == "fl.org:9443"
    assert given["--root-certificates"] == "/kits/site-a/ca.crt"
    assert given["--node-config"] == "site='a'"
    assert "--insecure" not in arguments
