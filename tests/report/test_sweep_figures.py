"""Sweeps are found by the labels of runs, drawn and tabulated."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlgd.report.figures import find_sweeps, sweep_figures, sweep_tables
from fedlgd.report.page import render
from fedlgd.rundir.manifest import with_note, without_note
from fedlgd.runs.parse import points, swept
from tests.report.conftest import run_of

LINE = [
    run_of(f"FedLGD (pull.weight={w})", seed, a=0.5 + w / 100 + seed / 100) for w in (10, 0, 1) for seed in (0, 1)
]
SQUARE = [
    run_of(f"FedLGD (anchors.steps={a}, refine.steps={b})", a=a / 10 + b / 100) for a in (1, 2) for b in (3, 4, 5)
]


def test_an_entry_is_run_at_every_point():
    assert swept(["fedlgd", "fedavg:local.lr=1"], {"a.b": ["0", "1"]}) == [
        "fedlgd:a.b=0",
        "fedlgd:a.b=1",
        "fedavg:local.lr=1:a.b=0",
        "fedavg:local.lr=1:a.b=1",
    ]
    assert swept(["fedlgd"], {}) == ["fedlgd"]
    assert len(list(points({"a": [1, 2], "b": [1, 2, 3]}))) == 6


words = st.text("abc.-_019", min_size=1, max_size=8)


@given(st.text("Fed ()+,abc", min_size=1), st.dictionaries(words, words, min_size=1, max_size=3))
def test_the_note_of_a_label_is_read_back(label, settings):
    assert without_note(with_note(label, settings)) == (label, settings)


def test_one_axis_is_in_the_order_of_its_numbers_and_has_a_row_per_method(make_groups):
    other = [run_of(f"FedAvg (pull.weight={w})", a=0.1) for w in (0, 1)]
    (sweep, _) = find_sweeps(make_groups(*LINE, *other))
    assert sweep.axes == ("pull.weight",)
    assert sweep.values(0) == ("0", "1", "10")
    assert sweep.accuracy("10").mean == pytest.approx(0.605)
    ((title, table),) = sweep_tables(find_sweeps(make_groups(*LINE, *other)))
    assert "pull.weight" in title
    assert [row[0].text for row in table.rows] == ["FedLGD", "FedAvg"]
    assert [cell.text for cell in table.rows[1]] == ["FedAvg", "10.0", "10.0", "–"]


def test_two_axes_are_a_heat_map(make_groups):
    groups = make_groups(*SQUARE)
    (sweep,) = find_sweeps(groups)
    assert sweep.axes == ("anchors.steps", "refine.steps")
    ((_, table),) = sweep_tables((sweep,))
    assert [row[0].text for row in table.rows] == ["1", "2"]
    assert [cell.text for cell in table.rows[1][1:]] == ["23.0", "24.0", "25.0"]
    (drawing,) = sweep_figures((sweep,))
    assert all(f">{value}<" in drawing.svg for value in ("13.0", "25.0"))


def test_the_page_shows_a_sweep_and_a_plain_comparison_has_none(make_groups):
    groups = make_groups(*LINE)
    page = render([run for group in groups for run in group.runs])
    assert '<section id="sweep">' in page
    assert 'aria-label="Accuracy by pull.weight"' in page
    plain = make_groups(run_of("FedAvg", a=0.1), run_of("FedAvg (local.steps=7)", a=0.2))
    assert find_sweeps(plain) == ()
    assert '<section id="sweep">' not in render([run for group in plain for run in group.runs])


def test_a_setting_with_one_value_is_part_of_the_name(make_groups):
    runs = [run_of(f"FedAvg (distil.steps=0, local.steps={n})", a=0.1) for n in (4, 7)]
    (sweep,) = find_sweeps(make_groups(*runs))
    assert (sweep.label, sweep.axes) == ("FedAvg (distil.steps=0)", ("local.steps",))


def test_runs_that_are_not_evaluated_yet_are_left_out(make_groups):
    running = run_of("FedLGD (pull.weight=20)", a=0.5) | {"done": 0}
    groups = make_groups(*LINE, running)
    assert find_sweeps(groups)[0].values(0) == ("0", "1", "10")
    assert [each.name for each in sweep_figures(find_sweeps(groups))] == ["sweep-pull-weight"]
    assert find_sweeps(make_groups(running)) == ()


def test_settings_that_change_together_are_one_axis(make_groups):
    runs = [run_of(f"FedLGD (anchors.selected.count={n}, refine.selected.count={n})", a=0.1) for n in (0, 5)]
    (sweep,) = find_sweeps(make_groups(*runs))
    assert sweep.axes == ("anchors.selected.count",)


def test_one_axis_of_words_is_no_curve(make_groups):
    assert find_sweeps(make_groups(*(run_of(f"FedAvg (distil.start={s})", a=0.1) for s in ("real", "noise")))) == ()
