"""The journal of a site."""

import stat

from hypothesis import given
from hypothesis import strategies as st

from fedlgd.deploy.policy import Journal


def test_it_says_what_left_and_what_was_refused(tmp_path):
    journal = Journal(tmp_path / "journal.log")
    journal.left("train", 2, {"model": 80_000, "scores": 120})
    journal.left("enrol", -1, {"class counts": 80})
    journal.refused("train", 3, "method 'x' is not allowed here")
    sent, hello, refused = (tmp_path / "journal.log").read_text().splitlines()
    assert "train in round 3: model (80,000 bytes), scores (120 bytes);" in sent
    assert "80,120 bytes" in sent
    assert "enrol: class counts (80 bytes);" in hello
    assert "refused: train in round 4: method 'x'" in refused
    assert stat.S_IMODE((tmp_path / "journal.log").stat().st_mode) == 0o600


@given(st.text())
def test_text_of_the_server_cannot_add_a_line(tmp_path_factory, text):
    file = tmp_path_factory.mktemp("journal") / "journal.log"
    Journal(file).refused(text, 0, text)
    written = file.read_text()
    assert written.count("\n") == 1
    assert len(written.splitlines()) == 1
    assert written[:-1].isprintable()
