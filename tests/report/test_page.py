"""The page: complete, harmless, offline, the same every time."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from fedlgd.core.errors import RunError
from fedlgd.core.text import tied
from fedlgd.report.grids import MAX_SITES_SHOWN
from fedlgd.report.page import render, write_report
from fedlgd.report.summary import RULE
from fedlgd.rundir.read import read_runs
from tests.report.audits import audit, found, write_audit
from tests.report.fake import commit, write_analysis, write_run
from tests.report.test_inversion import inverted

pytestmark = pytest.mark.usefixtures("undrawn")
HOSTILE = "<script>alert(1)</script>\"'&"


class Tags(HTMLParser):
    """Collects every start tag with its attributes, as a browser would see them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def report(tmp_path: Path, *runs: Path) -> str:
    return write_report(runs, tmp_path / "out" / "report.html").read_text(encoding="utf-8")


@pytest.fixture
def two_methods(tmp_path: Path) -> list[Path]:
    better = {"mnist": 0.96, "svhn": 0.68, "usps": 0.90}
    return [
        write_run(tmp_path / "a", label="FedAvg on virtual data", method="fedavg"),
        write_run(tmp_path / "b", label="FedLGD", final=better, per_class=2, rounds=4),
    ]


def test_the_headline_is_what_the_records_say(tmp_path: Path, two_methods: list[Path]) -> None:
    """By hand: (95 + 62 + 91) / 3 = 82.67 and (96 + 68 + 90) / 3 = 84.67."""
    page = report(tmp_path, *two_methods).replace("\u00a0", " ")
    ((winner, title, numbers),) = re.findall(
        r'<h1 data-winner="([^"]*)">([^<]*)</h1>\s*<p class="numbers">([^<]*)</p>', page
    )
    assert (winner, re.findall(r"\d", title)) == ("", ["1"])  # one seed
    assert f"<title>{title}</title>" in page
    assert re.findall(r"[\d.]+ %", numbers) == ["84.7 %", "82.7 %"]
    (compared,) = re.findall(r'<p data-kind="one-seed">([^<]*)</p>', page)
    assert all(each in compared for each in ("2 of 3 sites", "−1.0 at usps", "+6.0 at svhn"))
    assert RULE in page


def test_many_comparisons_are_there_on_demand(tmp_path: Path) -> None:
    page = report(tmp_path, *(write_run(tmp_path / name, label=name, done=1) for name in "abcde"))
    assert "<summary>4 comparisons</summary>" in page
    assert page.index("e against a:") < page.index("</details>")


def test_command_config_versions_and_digest_are_all_there(tmp_path: Path, two_methods: list[Path]) -> None:
    page = report(tmp_path, *two_methods)
    for text in (
        "fedlgd run builtin-digits --method fedlgd --rounds 4 --seed 0",
        "per_class = 10",
        "torch 2.13.0",
        "9f2c41d0a7",
        "12,345 parameters",
        "a stand-in: MNIST digits",
    ):
        assert text in page


def test_the_best_is_marked_in_the_table(tmp_path: Path, two_methods: list[Path]) -> None:
    """With 500 test images at a site, 68 against 62 % is clear; 91 against 90 % and the means are not."""
    marked = re.findall(
        r'<td class="number"[^>]*><span class="best">([^<]*)</span>', report(tmp_path, *two_methods)
    )
    assert marked == ["68.0"]


@pytest.mark.drawn
def test_names_are_text_and_never_markup(tmp_path: Path) -> None:
    run = write_run(
        tmp_path / "a",
        label=HOSTILE,
        final={HOSTILE: 0.9, "x": 0.8},
        classes=[HOSTILE, "b"],
        per_class=1,
        samples=1,
    )
    write_analysis(run, (HOSTILE, "x"))
    write_audit(run, audit(site=HOSTILE, findings=(found(label=HOSTILE, statistic=HOSTILE),)))
    page = report(tmp_path, run)
    tags = Tags(page).seen
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert page.count("<script") == page.count("</script") == 1
    assert page.count("&lt;/script&gt;") > 30
    assert not [name for _, attributes in tags for name in attributes if name.startswith("on")]


@pytest.mark.drawn
def test_the_page_asks_for_nothing_from_anywhere(tmp_path: Path, two_methods: list[Path]) -> None:
    page = report(tmp_path, *two_methods)
    links = [
        value or ""
        for _, attributes in Tags(page).seen
        for name, value in attributes.items()
        if name in {"src", "href", "xlink:href", "srcset", "action", "data"}
    ]
    links += re.findall(r"url\(([^)]*)\)", page)
    assert links
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)
    assert "@import" not in page
    assert "default-src 'none'" in page


@pytest.mark.drawn
def test_a_browser_would_run_the_one_script_of_the_page_and_no_other(
    tmp_path: Path, two_methods: list[Path]
) -> None:
    page = report(tmp_path, *two_methods)
    (script,) = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src &#39;sha256-{digest}&#39;" in page.replace("'", "&#39;")


@pytest.mark.drawn
def test_every_name_inside_the_page_is_given_once(tmp_path: Path, two_methods: list[Path]) -> None:
    names = [attributes["id"] for _, attributes in Tags(report(tmp_path, *two_methods)).seen if "id" in attributes]
    assert len(names) == len(set(names))


@pytest.mark.drawn
def test_the_same_runs_give_the_same_bytes(tmp_path: Path, two_methods: list[Path]) -> None:
    assert report(tmp_path, *two_methods) == report(tmp_path, *two_methods)


def test_an_unfinished_run_is_shown_as_unfinished(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", rounds=4)
    commit(run, lines=4)
    assert 'data-done="3" data-planned="4"' in report(tmp_path, run)


def test_a_run_that_has_only_enrolled_makes_a_page(tmp_path: Path) -> None:
    assert 'data-kind="not-evaluated"' in report(tmp_path, write_run(tmp_path / "a", done=0))


def test_an_unreadable_run_is_listed_beside_the_others(tmp_path: Path, two_methods: list[Path]) -> None:
    (two_methods[1] / "manifest.json").write_text("{")
    page = report(tmp_path, *two_methods)
    (said,) = re.findall(r'<li data-kind="unreadable">([^<]*)</li>', page)
    assert f"&#39;{two_methods[1]}/manifest.json&#39;" in said
    assert re.search(r"<h1[^>]*>FedAvg [^<]* 82.7.%", page)


def test_no_readable_run_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(RunError):
        report(tmp_path, tmp_path / "nowhere")
    assert not (tmp_path / "out").exists()


def test_parts_without_data_are_not_there(tmp_path: Path) -> None:
    page = report(tmp_path, write_run(tmp_path / "a", method="fedavg", flags=()))
    sections = [attributes["id"] for tag, attributes in Tags(page).seen if tag == "section"]
    assert sections == ["accuracy", "rounds", "cost", "privacy", "data", "runs"]
    ids = {attributes.get("id") for _, attributes in Tags(page).seen}
    assert not ids & {"break-even", "two-classes"}
    assert "data-audit" not in page


@pytest.mark.drawn
def test_parts_with_data_are_there(tmp_path: Path, two_methods: list[Path]) -> None:
    write_analysis(two_methods[1])
    write_audit(two_methods[1], audit())
    page = report(tmp_path, *two_methods)
    sections = [attributes["id"] for tag, attributes in Tags(page).seen if tag == "section"]
    assert sections == ["accuracy", "rounds", "images", "cost", "sites", "privacy", "data", "runs"]
    assert 'aria-label="MMD between sites, virtual images"' in page
    assert "0.512 [0.490, 0.530]" in page
    assert page.count("data-promise=") == 2
    assert page.count("data-audit=") == 1


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"sites": ["a"], "mmd": {"real": [[0, 1]]}}',
        '{"map": [{"kind": "real", "site": "a", "points": []}]}',
    ],
)
def test_a_damaged_analysis_is_named_and_left_out(tmp_path: Path, two_methods: list[Path], content: str) -> None:
    (two_methods[1] / "analysis.json").write_text(content)
    page = report(tmp_path, *two_methods)
    (said,) = re.findall(r'<li data-kind="damage">([^<]*)</li>', page)
    assert "FedLGD, seed 0: analysis.json" in said
    assert 'id="sites"' not in page


def test_nothing_is_left_beside_the_page(tmp_path: Path, two_methods: list[Path]) -> None:
    report(tmp_path, *two_methods)
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["report.html"]


def test_a_failed_write_keeps_the_old_page(
    tmp_path: Path, two_methods: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = report(tmp_path, two_methods[0])

    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(RunError) as failed:
        report(tmp_path, *two_methods)
    assert isinstance(failed.value.__cause__, OSError)
    assert [file.read_text(encoding="utf-8") for file in (tmp_path / "out").iterdir()] == [old]


def test_importing_the_page_loads_neither_torch_nor_matplotlib() -> None:
    code = "import sys, fedlgd.report.page, fedlgd.report.watch; print({'torch', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_a_number_is_not_parted_from_its_unit() -> None:
    assert tied("28.7 %, 9.63 s (A) to 2.88 MB and +1 points; 3 sites") == (
        "28.7\u00a0%, 9.63\u00a0s (A) to 2.88\u00a0MB and +1\u00a0points; 3 sites"
    )


def test_one_of_anything_is_not_called_by_a_plural(tmp_path):
    """A page of one run with one round, one site, and of one with a site more than is shown."""
    one = write_run(tmp_path / "one", rounds=1, final={"a": 0.5}, per_class=1, samples=1)
    write_audit(one, audit(federations=1, images=401))
    more = {f"site{number}": 0.5 for number in range(MAX_SITES_SHOWN + 1)}
    many = write_run(tmp_path / "many", label="Other", rounds=1, final=more, per_class=1)
    for runs in ([one], [one, many]):
        text = re.sub(r"<[^>]+>", " ", render(*read_runs(runs)))
        assert not re.findall(
            r"(?<![\d.,-])1 (?:[a-z]+ )?(?:seeds|sites|images|runs|rounds|classes|threads)\b", text
        )
    assert "1 site is" in text


def published(run: Path) -> Path:
    file = run / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest["data"]["public"] = True
    file.write_text(json.dumps(manifest))
    return run


BANNER = 'data-kind="private-images"'


def test_a_page_with_images_of_private_data_says_so_at_its_top(tmp_path: Path) -> None:
    private = write_run(tmp_path / "a", per_class=2)
    page = report(tmp_path, private)
    assert page.index(BANNER) < page.index("<h1")
    assert BANNER not in report(tmp_path, published(private))
    assert BANNER not in report(tmp_path, write_run(tmp_path / "b", label="B"))


@pytest.mark.parametrize(
    ("shown", "heading"),
    [
        ({"per_class": 2}, "Virtual images"),
        ({"samples": 2}, "Real images"),
        ({"per_class": 2, "samples": 2}, "Real and virtual images"),
    ],
)
def test_the_heading_names_the_images_that_are_there(tmp_path: Path, shown: dict[str, int], heading: str) -> None:
    assert f"<h2>{heading}</h2>" in report(tmp_path, write_run(tmp_path / "a", **shown))


def test_pictures_of_an_inversion_are_private_images_too(tmp_path: Path) -> None:
    shown, hidden = (inverted(tmp_path / str(show), show) for show in (True, False))
    assert BANNER in report(tmp_path, shown)
    assert BANNER not in report(tmp_path, hidden)
