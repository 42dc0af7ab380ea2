"""The first section of a report with runs of sites alone."""

import re
from pathlib import Path

import pytest

from fedlgd.report.decision import decision_of, decision_section, decision_table
from fedlgd.report.groups import group_runs
from fedlgd.report.page import write_report
from fedlgd.rundir.read import read_runs
from tests.report.audits import LEAK, audit, found, write_audit
from tests.report.fake import write_run

pytestmark = pytest.mark.usefixtures("undrawn")
NORTH = {"north": 0.70, "west": 0.80}


def write_arms(folder: Path, seeds: int = 3, **more: object) -> list[Path]:
    """Sites alone, FedAvg, FedLGD and pooled: joining gains at north, and west cannot be told. 500 test images."""
    finals = {
        "local-only": NORTH,
        "fedavg": {"north": 0.75, "west": 0.79},
        "fedlgd": {"north": 0.90, "west": 0.81},
        "pooled": {"north": 0.92, "west": 0.85},
    }
    labels = {"local-only": "Each site alone", "fedavg": "FedAvg on real data", "fedlgd": "FedLGD"}
    return [
        write_run(
            folder / method / f"seed{seed}",
            label=labels.get(method, "Pooled on real data"),
            method=method,
            seed=seed,
            final=final,
            classes=("no", "yes"),
            **more,
        )
        for method, final in finals.items()
        for seed in range(seeds)
    ]


@pytest.fixture
def arms(tmp_path: Path) -> list[Path]:
    for method in ("local-only", "fedavg", "fedlgd", "pooled"):
        (tmp_path / method).mkdir()
    return write_arms(tmp_path)


def groups_of(runs: list[Path]):
    return group_runs(read_runs(runs)[0])


def test_the_table_has_a_row_for_each_site_and_a_column_for_each_method(arms):
    table = decision_table(decision_of(groups_of(arms)))
    heads = [column.name for column in table.columns]
    assert heads[:6] == ["site", "test", "largest class", "alone", "FedLGD", "gain"]
    assert heads[7:] == ["FedAvg on real", "pooled"]
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert rows["north"][:5] == ["500", "50.0", "70.0", "90.0", "+20.0"]
    assert rows["west"][-2:] == ["79.0", "85.0"]
    assert len(table.notes) == 2


def test_the_page_begins_with_the_decision(tmp_path, arms):
    page = write_report(arms, tmp_path / "report.html").read_text().replace("\u00a0", " ")
    section = decision_section(groups_of(arms))
    assert f"<title>{section['title']}</title>" in page
    assert re.search(r"<h1[^>]*>([^<]*)</h1>", page)[1] == section["title"]
    assert page.index('<section id="decision">') == page.index("<section ")
    kinds = re.findall(r'<li data-kind="([^"]*)">', page[page.index('<section id="decision">') :])
    assert kinds[:4] == ["gains", "too-few-images", "cost", "not-audited"]
    without = write_report(
        [run for run in arms if "local-only" not in run.parts], tmp_path / "other.html"
    ).read_text()
    assert 'id="decision"' not in without


def test_what_an_audit_found_is_told_and_without_one_the_command(arms):
    (untested,) = [each for each in decision_section(groups_of(arms))["sentences"] if each.kind == "not-audited"]
    ours = next(run for run in arms if run.parent.name == "fedlgd")
    assert str(untested).endswith(f"fedlgd audit {ours}")
    write_audit(ours, audit(site="north", findings=(found(auc=LEAK), *audit().findings[1:])))
    told = {each.kind: str(each) for each in decision_section(groups_of(arms))["sentences"]}
    assert "not-audited" not in told
    assert "site north, seed 0" in told["leak"]
    assert "0.700" in told["leak"]


def test_one_seed_and_unfinished_runs_say_what_they_can(tmp_path, arms):
    one = [run for run in arms if run.name == "seed0"]
    section = decision_section(groups_of(one))
    assert "few-seeds" in [each.kind for each in section["sentences"]]
    assert section["plain"]["seeds"] == 1
    (tmp_path / "half").mkdir()
    half = write_run(tmp_path / "half/seed0", label="Half", method="fedprox", final=NORTH, done=1)
    assert decision_of(groups_of([*one, half])).plain() == decision_of(groups_of(one)).plain()
    assert decision_of(groups_of([half])) is None
