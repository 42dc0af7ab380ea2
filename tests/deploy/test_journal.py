"""The journal of a site."""

import stat

from hypothesis import given
from hypothesis import strategies as st

from fedlgd.deploy.journal import Journal


def test_it_says_what_left_and_what_was_refused(tmp_path):
    journal = Journal(tmp_path / "journal.log", "0123456789abcdef", "fedlgd")
    journal.left("train", 2, {"weights": 80_000, "scores": 120}, "trained on virtual images")
    journal.left("enrol", -1, {"counts": 80})
    journal.refused("train", 3, "method 'x' is not allowed here")
    sent, hello, refused = (tmp_path / "journal.log").read_text().splitlines()
    of = "of run 0123456789ab (fedlgd)"
    assert f"train in round 3 {of}: weights (80,000 bytes), scores (120 bytes); in total 80,120 bytes;" in sent
    assert sent.endswith("; trained on virtual images")
    assert hello.endswith(f"enrol {of}: counts (80 bytes); in total 80 bytes")
    assert f"refused: train in round 4 {of}: method 'x'" in refused
    assert stat.S_IMODE((tmp_path / "journal.log").stat().st_mode) == 0o600


@given(st.text())
def test_text_of_the_server_cannot_add_a_line(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("journal") / "journal.log"
    Journal(file, text or "run", text).refused(text, 0, text)
    written = file.read_text()
    assert written.count("\n") == 1
    assert len(written.splitlines()) == 1
    assert written[:-1].isprintable()
