"""The live table in a terminal, and lines elsewhere."""

import io
import math
import re
from collections.abc import Sequence

import pytest
from rich.console import Console

from fedlgd.cli import progress
from fedlgd.cli.progress import Lines, LiveView, Pace, clock_time
from fedlgd.core.errors import RunError
from fedlgd.core.score import Score
from fedlgd.core.text import rough_duration
from fedlgd.rundir.records import RoundRecord

FIVE = ("mnist", "scans", "photos", "fonts", "street")
TERMINAL = {"TERM": "xterm-256color"}
MANY = tuple(f"hospital-{i:02d}" for i in range(57))


def record(round: int, accuracy: Sequence[float] = (), names: Sequence[str] = FIVE, **more: object) -> RoundRecord:
    scores = {name: Score(value, 1.0, (1,), (2,)) for name, value in zip(names, accuracy, strict=False)}
    return RoundRecord(
        round=round, scores=scores, metrics={name: {"loss": 2.0} for name in names}, bytes_up=1_000_000, **more
    )


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A clock that the test sets."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def table(width: int = 100, height: int = 30, rounds: int = 20, **more: object) -> LiveView:
    """One that draws when asked: `seen` says what."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, _environ=TERMINAL)
    shown = LiveView(rounds, "FedLGD, seed 0", console=console, **{"lasting": True} | more)
    shown._live.stop()
    return shown


def seen(shown: LiveView, styled: bool = False) -> list[str]:
    console = shown._console
    console.file = io.StringIO()
    console.print(shown.draw())
    text = console.file.getvalue()
    return (text if styled else re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)).rstrip("\n").split("\n")


def row_of(shown: LiveView, number: int) -> list[str]:
    (line,) = [line for line in seen(shown) if line.strip().startswith(f"{number} ")]
    return line.split()


# The table


def test_each_evaluation_is_a_row_with_every_site_the_mean_the_loss_the_bytes_and_the_time(
    clock: list[float],
) -> None:
    shown = table()
    shown.round(RoundRecord(round=-1, bytes_up=500_000))
    clock[0] = 65.0
    shown.round(record(0, (0.5, 0.4, 0.3, 0.2, 0.1)))
    lines = seen(shown)
    assert lines[0] == "FedLGD, seed 0"
    assert lines[1].split() == ["round", *FIVE, "mean", "loss", "sent", "time"]
    assert row_of(shown, 1) == ["1", "50.0", "40.0", "30.0", "20.0", "10.0", "30.0", "2.000", "1.50", "MB", "1:05"]


def test_changes_since_the_evaluation_before_are_marked_and_the_best_is_bold(clock: list[float]) -> None:
    shown = table()
    shown.round(record(0, (0.5, 0.4, 0.3, 0.2, 0.1)))
    shown.round(record(1, (0.6, 0.3, 0.30001, 0.2, 0.1)))
    assert row_of(shown, 2)[1:7] == ["60.0▲", "30.0▼", "30.0", "20.0", "10.0", "30.0"]
    first, second = (line for line in seen(shown, styled=True) if re.match(r"\x1b\[2m +[12]\x1b", line))
    assert re.findall(r"\x1b\[1m *([\d.]+)", first) == ["40.0", "20.0", "10.0"]
    assert re.findall(r"\x1b\[1m *([\d.]+)", second) == ["60.0", "30.0", "20.0", "10.0", "30.0"]
    assert "\x1b[1;32m▲" in second
    assert "\x1b[31m▼" in second


def test_a_round_that_was_not_scored_counts_and_is_no_row(clock: list[float]) -> None:
    shown = table()
    shown.round(record(0))
    shown.round(record(1, (0.5,) * 5))
    lines = seen(shown)
    assert row_of(shown, 2)[-3:] == ["2.00", "MB", "0:00"]
    assert not [line for line in lines if line.strip().startswith("1 ")]
    assert any("round 2/20" in line for line in lines)


def test_only_the_last_evaluations_are_shown_and_few_in_a_low_terminal(clock: list[float]) -> None:
    for height, rows in ((60, 12), (14, 5), (4, 1)):
        shown = table(height=height)
        for number in range(18):
            shown.round(record(number, (0.5,) * 5))
        numbers = [int(line.split()[0]) for line in seen(shown) if re.match(r" +\d", line)]
        assert numbers == list(range(19 - rows, 19))


@pytest.mark.parametrize("width", [24, 40, 60, 80, 120, 200])
@pytest.mark.parametrize("names", [FIVE[:3], FIVE, MANY], ids=len)
def test_it_fits_any_terminal_and_any_number_of_sites(width: int, names: Sequence[str], clock: list[float]) -> None:
    shown = table(width=width)
    for number in range(3):
        shown.round(record(number, [0.2 + 0.01 * at for at in range(len(names))], names))
    shown.tick("distil", 3, 10)
    lines = seen(shown)
    assert all(len(line.rstrip()) <= width for line in lines)
    assert len(lines) == 9 + (names[0] not in lines[1])
    assert sum(line.startswith("lowest: ") for line in lines) == (names[0] not in lines[1])
    assert row_of(shown, 3)[0] == "3"


def test_five_sites_fit_a_terminal_of_80_columns_with_everything(clock: list[float]) -> None:
    shown = table(width=80)
    shown.round(record(0, (0.5,) * 5))
    assert seen(shown)[1].split() == ["round", *FIVE, "mean", "loss", "sent", "time"]


def test_where_sites_are_many_the_lowest_are_named(clock: list[float]) -> None:
    shown = table(width=100)
    shown.round(record(0, [0.9 - 0.01 * at for at in range(57)], MANY))
    lines = seen(shown)
    assert lines[1].split() == ["round", "mean", "lowest", "highest", "loss", "sent", "time"]
    assert row_of(shown, 1)[1:4] == ["62.0", "34.0", "90.0"]
    named = "lowest: hospital-56 34.0, hospital-55 35.0, hospital-54 36.0, hospital-53 37.0, hospital-52 38.0"
    assert named in lines


def test_names_are_text_and_never_markup(clock: list[float]) -> None:
    shown = table()
    shown.round(record(0, (0.5, 0.6), ("[red]a[/red]", "[/]")))
    shown.tick("[bold]step", 1, 2)
    assert "[red]a[/red]" in seen(shown)[1]
    assert any(line.startswith("[bold]step 1/2") for line in seen(shown))


def test_a_terminal_without_unicode_gets_signs_it_can_show(clock: list[float]) -> None:
    console = Console(file=io.TextIOWrapper(io.BytesIO(), encoding="ascii"), width=100, force_terminal=True)
    shown = LiveView(3, lasting=True, console=console)
    shown.round(record(0, (0.5,) * 5))
    shown.round(record(1, (0.6,) * 5))
    shown.close()
    console.file.flush()
    written = console.file.buffer.getvalue().decode("ascii")
    assert "60.0" in written
    assert "+" in written


# Time


def test_bars_say_how_long_the_run_and_the_step_inside_it_still_take(clock: list[float]) -> None:
    shown = table(rounds=4)
    for now, number in ((10.0, 0), (30.0, 1)):
        clock[0] = now
        shown.round(record(number, (0.5,) * 5))
    for now, done in ((31.0, 1), (35.0, 3)):
        clock[0] = now
        shown.tick("distil", done, 10)
    lines = seen(shown)
    assert re.search(r"round 2/4 +\S+ +0:35 elapsed, about 35 s left", lines[-2])
    assert re.search(r"distil 3/10 \S+ +about 14 s left", lines[-1])
    shown.tick("distil", 10, 10)
    assert not any("distil" in line for line in seen(shown))


def test_a_step_that_starts_again_is_timed_anew(clock: list[float]) -> None:
    shown = table(rounds=4)
    for done in (1, 2):
        clock[0] += 100
        shown.tick("distil", done, 2)
    for done in (1, 2):
        clock[0] += 1
        shown.tick("distil", done, 4)
    assert "about 2 s left" in seen(shown)[-1]


def test_pace_knows_nothing_before_the_second_step_and_counts_down_after_it(clock: list[float]) -> None:
    pace = Pace()
    assert pace.left(10) is None
    pace.update(5)
    assert pace.left(10) is None
    clock[0] = 3.0
    pace.update(6)
    assert pace.left(10) == 12.0
    clock[0] = 5.0
    assert pace.left(10) == 10.0
    clock[0] = 500.0
    assert pace.left(10) == 0.0


def test_the_clock_as_people_write_it() -> None:
    assert [clock_time(s) for s in (0, 9.9, 65, 3600, 36_065)] == ["0:00", "0:09", "1:05", "1:00:00", "10:01:05"]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (49.6, "about 50 s"),
        (89, "about 89 s"),
        (840, "about 14 min"),
        (12_000, "about 3 h 20 min"),
        (7170, "about 2 h 0 min"),
    ],
)
def test_time_is_said_in_round_words(seconds: float, words: str):
    assert rough_duration(seconds) == words


# The end, and going on


def test_at_the_end_the_table_stays_with_one_line_in_place_of_the_bars(clock: list[float]) -> None:
    shown = table(rounds=2)
    for number in range(2):
        shown.round(record(number, (0.5,) * 5))
    shown.tick("distil", 1, 5)
    clock[0] = 12.0
    shown.close()
    lines = seen(shown)
    assert lines[-1] == "round 2/2, mean 50.0 %, 2.00 MB sent, 0:12"
    assert not any("distil" in line for line in lines)
    assert row_of(shown, 2)


def test_one_line_stays_where_the_table_is_not_to_last() -> None:
    console = Console(file=io.StringIO(), width=100, force_terminal=True, _environ=TERMINAL)
    shown = LiveView(2, console=console)
    shown.round(record(0, (0.5,) * 5))
    console.file = io.StringIO()
    shown.close()
    assert console.file.getvalue().endswith("round 1/2, mean 50.0 %, 1.00 MB sent, 0:00\n")


def test_a_run_that_goes_on_shows_what_was_before(clock: list[float]) -> None:
    earlier = [RoundRecord(round=-1, bytes_up=500_000), record(0, (0.9,) * 5), record(1, (0.4,) * 5)]
    shown = table(earlier=earlier)
    clock[0] = 7.0
    shown.round(record(2, (0.5,) * 5))
    assert row_of(shown, 2)[-3:] == ["2.50", "MB", "before"]
    assert row_of(shown, 3)[-3:] == ["3.50", "MB", "0:07"]
    assert row_of(shown, 3)[1] == "50.0▲"
    best = [re.findall(r"\x1b\[1m *([\d.]+)", line) for line in seen(shown, styled=True)[3:6]]
    assert best == [["90.0"] * 6, [], []]


# Which of the two


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("stream", "term", "kind"),
    [
        (Terminal(), "xterm-256color", LiveView),
        (Terminal(), "dumb", Lines),
        (io.StringIO(), "xterm-256color", Lines),
    ],
)
def test_a_terminal_gets_the_table_and_everything_else_gets_lines(
    stream: io.StringIO, term: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr("sys.stderr", stream)
    with progress.progress(quiet=False, rounds=2) as show:
        assert isinstance(show.__self__, kind)
        show(record(0, (0.5,) * 5))
    assert "round 1/2" in stream.getvalue()


def test_quiet_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress(quiet=True, rounds=2) as show:
        show(record(0, (0.5,) * 5))
    assert capsys.readouterr() == ("", "")


def test_a_damaged_folder_is_left_for_the_run_to_refuse(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    def damaged(_: object) -> list[RoundRecord]:
        raise RunError("damaged")

    monkeypatch.setattr(progress, "committed_records", damaged)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("sys.stderr", Terminal())
    with progress.progress(quiet=False, rounds=2, folder=tmp_path) as show:
        assert isinstance(show.__self__, LiveView)


# Work that is not a run


def test_a_download_has_a_bar_in_bytes_that_needs_no_total(clock: list[float]) -> None:
    shown = table(rounds=0, in_bytes=True, lasting=False)
    for label, done, total in (("a", 1_000_000, 9_000_000), ("b", 2_000_000, 0), ("c", 3, 9), ("c", 9, 9)):
        shown.tick(label, done, total)
    first, second = seen(shown)[1:]
    assert first.startswith("a 1.00 MB of 9.00 MB ")
    assert second.startswith("b 2.00 MB ")


def test_a_download_is_a_line_when_it_begins_and_now_and_then(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(in_bytes=True)
    for now, done in ((0.0, 0), (6.0, 1_000_000), (11.0, 2_000_000), (12.0, 4_000_000)):
        clock[0] = now
        lines.tick("downloading a", done, 4_000_000)
    lines.tick("unpacking a", 1_000, 0)
    assert capsys.readouterr().err.splitlines() == [
        "  downloading a 0 B of 4.00 MB",
        "  downloading a 2.00 MB of 4.00 MB, about 11 s left",
        "  unpacking a 1.00 kB",
    ]


def test_the_long_name_of_a_step_is_shown_in_full_without_a_bar_in_a_narrow_terminal(clock: list[float]) -> None:
    label = "[12/16] FedLGD, with known anchors, round 100, batch 4"
    lines = []
    for width in (120, 80):
        shown = table(width, rounds=0, lasting=False)
        for done in (0, 3):
            clock[0] += 600.0 * done
            shown.tick(label, done, 8)
        lines.append(seen(shown)[-1].rstrip())
    assert re.fullmatch(rf"{re.escape(label)} 3/8 \S{{24}} about 50 min left", lines[0])
    assert lines[1] == f"{label} 3/8 about 50 min left"


# Lines


def test_lines_say_each_round_with_the_time_left(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(3)
    lines.round(RoundRecord(round=-1, seconds={"distil": 99.0}, cpu={"distil": 6.0}))
    for number in range(3):
        clock[0] += 100.0
        lines.round(record(number, (0.5, 0.7), ("a", "b"), flags=("anchors",)))
    assert capsys.readouterr().err.splitlines() == [
        "setup: sites enrolled; CPU time, also of sets from the cache: 6 s",
        "round 1/3  mean 60.0 %  a 50.0  b 70.0  1.00 MB  updated: anchors",
        "round 2/3  mean 60.0 %  a 50.0  b 70.0  1.00 MB  updated: anchors  about 2 min left",
        "round 3/3  mean 60.0 %  a 50.0  b 70.0  1.00 MB  updated: anchors",
    ]


def test_a_line_of_a_small_run_shows_its_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    Lines(3).round(RoundRecord(round=0, bytes_up=24_000, bytes_down=28_300))
    assert capsys.readouterr().err == "round 1/3  52.3 kB\n"


def test_a_step_of_which_nothing_is_done_is_announced_where_this_is_asked_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for lines in (Lines(), Lines(announced=True)):
        for done in range(3):
            lines.tick("[3/8] FedLGD, batch 4", done, 2)
    assert capsys.readouterr().err == "  [3/8] FedLGD, batch 4\n"


def test_a_long_step_speaks_up_now_and_then(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(3)
    for done in range(1, 31):
        clock[0] += 1.0
        lines.tick("distil", done, 30)
    assert capsys.readouterr().err.splitlines() == [
        "  distil 11/30, about 19 s left",
        "  distil 22/30, about 8 s left",
    ]


def test_training_loss_is_empty_where_nobody_trained(clock: list[float]) -> None:
    shown = table()
    shown.round(RoundRecord(round=0, scores={"a": Score(0.5, math.nan, (1,), (2,))}))
    assert row_of(shown, 1) == ["1", "50.0", "50.0", "0", "B", "0:00"]


def test_before_the_first_round_it_says_setup_and_the_loss_is_explained(clock: list[float]) -> None:
    shown = table()
    shown.tick("enrol", 1, 5)
    assert any(line.startswith("setup") for line in seen(shown))
    shown.round(RoundRecord(round=-1))
    assert any(line.startswith("round 0/20") for line in seen(shown))
    shown.round(record(0, (0.5,) * 5))
    assert any("loss: with regularisers" in line for line in seen(shown))


# What a mean does not show, and what is awaited


def with_limits(round: int) -> RoundRecord:
    """b did not answer, and c has test images of one class only."""
    scores = {"a": Score(0.5, 1.0, (1, 1), (2, 2)), "c": Score(1.0, 1.0, (0, 4), (0, 4))}
    return RoundRecord(round=round, scores=scores, unscored={"b": "it is not connected"})


def test_a_mean_over_fewer_sites_or_with_one_class_sites_says_so_in_the_line_of_its_round(capsys):
    Lines(6).round(with_limits(2))
    assert "mean 75.0 % (over 2 of 3 sites; test images of one class only: c)  a 50.0" in capsys.readouterr().err
    Lines(6).round(record(0, (0.5, 0.4)))
    assert "(" not in capsys.readouterr().err


def test_a_mean_over_fewer_sites_is_marked_in_the_table_and_the_absent_site_keeps_its_column(clock):
    shown = table(lasting=False)
    full = {name: Score(0.25, 1.0, (1, 0), (2, 2)) for name in "abc"}
    shown.round(RoundRecord(round=0, scores=full))
    shown.round(with_limits(1))
    lines = seen(shown)
    assert lines[1].split()[:5] == ["round", "a", "b", "c", "mean"]
    assert row_of(shown, 1)[4] == "25.0"
    assert row_of(shown, 2)[:4] == ["2", "50.0▲", "100.0▲", "75.0*▲"]
    assert "* mean of round 2: over 2 of 3 sites; test images of one class only: c" in [x.strip() for x in lines]
    shown._ended = True
    assert "mean 75.0 % (over 2 of 3 sites" in seen(shown)[-1]


def test_what_is_awaited_is_said_at_once_and_again_after_growing_pauses(clock, capsys):
    lines, said = Lines(6), []
    for second in range(100):
        clock[0] = float(second)
        lines.wait(f"waiting {second} s for b")
        said += [second] if capsys.readouterr().err else []
    assert said == [0, 10, 30, 70]
    lines.wait("")
    lines.wait("waiting 5 s for c")
    assert capsys.readouterr().err == "  waiting 5 s for c\n"


def test_while_something_is_awaited_no_line_says_how_long_a_step_takes(clock, capsys):
    lines = Lines(6)
    lines.tick("answers of sites", 0, 3)
    for clock[0] in (1.0, 12.0):
        lines.tick("answers of sites", 2, 3)
    assert "2/3" in capsys.readouterr().err
    lines.wait("waiting 5 s for b")
    capsys.readouterr()
    clock[0] = 30.0
    lines.tick("answers of sites", 2, 3)
    assert not capsys.readouterr().err


def test_what_is_awaited_stands_in_the_live_view_until_the_work_goes_on(clock):
    shown = table(width=60)
    shown.wait("waiting 5 s for the answer of b; 2 of 3 sites have answered. " * 2)
    assert " ".join(" ".join(seen(shown)).split()).count("2 of 3 sites have answered.") == 2  # folded, not cut
    shown.wait("")
    assert "waiting" not in " ".join(seen(shown))
