"""The report in a real browser, opened from disk."""

import base64
import io
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageStat

from fedlgd.report.page import write_report
from tests.browser.conftest import HOSTILE, LONG, Open
from tests.report.fake import write_run
from tests.report.test_inversion import inverted

FIRST_ROW = "#accuracy tbody tr:first-child th"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
SHOWN = ".card:first-child .stack img:not([hidden])"


@pytest.fixture
def page(open_page: Open) -> Any:
    return open_page()


def background(page: Any) -> int:
    """How bright the paper is, 0 to 765."""
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, colour.removeprefix("rgb(").removesuffix(")").split(",")))


def test_it_opens_from_disk_with_no_complaint_and_asks_for_nothing(page: Any, report: Path) -> None:
    page.wait_for_load_state("networkidle")
    assert page.complaints == []
    assert [url for url in page.requests if not url.startswith("data:image/png;base64,")] == [report.as_uri()]
    assert LONG in page.inner_text(".numbers")
    assert page.locator("h1").get_attribute("data-winner") == ""  # one seed


def test_a_name_that_is_a_script_is_text_and_does_not_run(page: Any) -> None:
    assert HOSTILE in page.inner_text("#accuracy thead")
    assert page.evaluate("window.stolen") is None


def test_no_script_but_the_pages_own_would_run(page: Any) -> None:
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "window.stolen = 1";
        document.body.append(script);
    }""")
    assert page.evaluate("window.stolen") is None
    assert "Content Security Policy" in " ".join(page.complaints)


def test_the_table_sorts_by_a_click_and_by_the_keyboard(page: Any) -> None:
    head = page.locator("#accuracy thead th").filter(has_text="mnist")
    assert page.inner_text(FIRST_ROW) == "FedAvg"
    page.get_by_role("button", name="svhn").click()
    assert page.inner_text(FIRST_ROW) == LONG
    assert page.locator("#accuracy thead th[aria-sort]").inner_text().startswith("svhn")
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert (head.get_attribute("aria-sort"), page.inner_text(FIRST_ROW)) == ("descending", "FedAvg")
    page.keyboard.press("Space")
    assert (head.get_attribute("aria-sort"), page.inner_text(FIRST_ROW)) == ("ascending", LONG)
    assert page.locator("#accuracy thead th[aria-sort]").count() == 1


def test_a_table_is_copied_to_the_clipboard_in_three_formats(open_page: Open) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    copied = {}
    for form in ("CSV", "LaTeX", "Markdown"):
        page.click(f"#accuracy .copy button:text-is('{form}')")
        page.locator("#accuracy .copy output", has_text=f"Copied as {form}.").wait_for()
        copied[form] = page.evaluate("navigator.clipboard.readText()").splitlines()
        assert copied[form] == page.input_value(f"#accuracy textarea[data-format='{form}']").splitlines()
    assert copied["CSV"][2].startswith(f"{LONG},1,12,90.0000,68.0000,94.0000,")
    assert copied["LaTeX"][0] == r"\begin{tabular}{lrrrrrrr}"
    assert copied["Markdown"][3].startswith(f"| {LONG} | 1 | 12 | 90.0 | **68.0** | 94.0 |")


def test_without_a_clipboard_the_text_is_there_to_be_copied_by_hand(page: Any) -> None:
    page.evaluate("""() => {
        Object.defineProperty(navigator, "clipboard", { value: undefined });
        document.execCommand = () => false;
    }""")
    page.click("#accuracy .copy button:text-is('Markdown')")
    area = page.locator("#accuracy textarea[data-format='Markdown']")
    area.wait_for(state="visible")
    assert "Ctrl+C" in page.inner_text("#accuracy .copy output")
    assert page.evaluate("getSelection().toString()") == area.input_value()


def test_the_slider_shows_every_version_of_the_virtual_images(page: Any, report: Path) -> None:
    slider = page.locator(".slider input")
    seen = []
    for at, version in enumerate(("start", "0000", "0005", "0010")):
        slider.fill(str(at))
        shown = page.locator(SHOWN)
        assert shown.count() == 1
        file = report.parent / "b" / "virtual" / version / "site0.png"
        assert shown.get_attribute("src") == "data:image/png;base64," + base64.b64encode(file.read_bytes()).decode()
        assert shown.evaluate("image => image.naturalWidth") == 3 * 28
        seen.append(page.inner_text(".slider output"))
    assert seen == ["setup", "round 1", "round 6", "round 11"]
    assert page.inner_text(".card:first-child .stack figcaption") == "round 11"


def test_the_slider_moves_by_the_keyboard(page: Any) -> None:
    page.focus(".slider input")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text(".slider output") == "round 6"
    assert page.get_attribute(".slider input", "aria-valuetext") == "round 6"


def test_each_site_is_shown_by_itself_on_demand(page: Any) -> None:
    inside = page.locator("#rounds details svg").first
    assert not inside.is_visible()
    page.click("#rounds summary")
    assert inside.is_visible()


def test_it_is_dark_where_the_reader_likes_it_dark(open_page: Open) -> None:
    assert background(open_page(color_scheme="light")) > 700
    dark = open_page(color_scheme="dark")
    assert background(dark) < 150
    ink = dark.evaluate("getComputedStyle(document.querySelector('#rounds svg text')).fill")
    assert sum(map(int, ink.removeprefix("rgb(").removesuffix(")").split(","))) > 500


def test_a_phone_does_not_scroll_sideways(open_page: Open) -> None:
    phone = open_page(viewport={"width": 390, "height": 844})
    phone.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert phone.evaluate(OVERFLOW) == 0
    assert phone.evaluate("(box => box.scrollWidth > box.clientWidth)(document.querySelector('#accuracy .box'))")


def test_without_scripts_the_first_and_the_latest_images_are_there(open_page: Open) -> None:
    plain = open_page(java_script_enabled=False)
    assert plain.locator(".card:first-child .sheets img:visible").count() == 3
    assert not plain.locator(".slider").is_visible()
    assert not plain.locator("#accuracy .copy").is_visible()


def test_it_prints(page: Any) -> None:
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert len(printed) > 50_000
    page.emulate_media(media="print", color_scheme="dark")
    assert background(page) == 3 * 255
    assert not page.locator(".slider").is_visible()


# Images


ROW = """() => [...document.querySelectorAll('.sheet')].map((sheet) => {
    const image = sheet.querySelector('img:not([hidden])').getBoundingClientRect();
    const rows = [...sheet.querySelectorAll('li')];
    const height = image.height / rows.length;
    return rows.map((row, at) => {
        const box = row.getBoundingClientRect();
        return [height, Math.abs((box.top + box.bottom) / 2 - image.top - (at + 0.5) * height), row.textContent];
    });
})"""


@pytest.mark.parametrize(("width", "least"), [(1200, 40), (390, 26)])
def test_images_are_large_and_every_row_has_the_name_of_its_class(
    open_page: Open, single: Path, width: int, least: int
) -> None:
    sheets = open_page(single, viewport={"width": width, "height": 844}).evaluate(ROW)
    assert len(sheets) == 4 * 3
    for sheet in sheets:
        assert [name for _, _, name in sheet] == ["healthy", "glaucoma"]
        assert all(height >= least and off < 2 for height, off, _ in sheet)


def brightness(element: Any) -> float:
    return ImageStat.Stat(Image.open(io.BytesIO(element.screenshot())).convert("L")).mean[0]


def test_the_change_since_the_setup_is_shown_with_its_gain(page: Any) -> None:
    change = page.locator(".card:first-child .change")
    assert re.fullmatch("change since setup, ×\xa0(2|4|8|16|32)", change.locator("figcaption").inner_text())
    assert brightness(change.locator("div")) > 20
    page.locator(".slider input").fill("0")
    assert brightness(change.locator("div")) < 2


def test_the_scaling_of_the_anchors_is_stated_at_each_version(page: Any) -> None:
    captions = page.locator(".card:last-child .sheet figcaption")
    assert captions.all_inner_texts()[:2] == ["setup, values ÷ 3", "round 11, values ÷ 3"]
    page.locator(".slider input").fill("1")
    assert captions.all_inner_texts()[1] == "round 1, values ÷ 3"
    assert "divided by 3 for display" in page.inner_text("#images")


# Labels, costs, print, a single run


CUT = """() => [...document.querySelectorAll('svg')].flatMap((svg) => {
    const frame = svg.getBoundingClientRect();
    return [...svg.querySelectorAll('text')].filter((text) => {
        const box = text.getBoundingClientRect();
        return box.left < frame.left - 1 || box.right > frame.right + 1
            || box.top < frame.top - 1 || box.bottom > frame.bottom + 1;
    }).map((text) => text.textContent);
})"""


@pytest.mark.parametrize("width", [1200, 390])
def test_no_label_of_a_figure_is_cut(open_page: Open, tmp_path: Path, width: int) -> None:
    names = [f"FedAvg + anchors + refine {number} on virtual data" for number in range(9)]
    runs = [write_run(tmp_path / str(at), label=name, rounds=3) for at, name in enumerate(names)]
    page = open_page(write_report(runs, tmp_path / "r.html"), viewport={"width": width, "height": 844})
    page.evaluate("document.querySelectorAll('details').forEach((each) => (each.open = true))")
    assert page.evaluate(CUT) == []
    drawn = page.locator("#rounds svg").first.text_content()
    assert all(name.split()[-4] in drawn for name in names)
    assert "…" not in drawn


def test_the_mean_is_seen_first_on_a_phone(open_page: Open) -> None:
    phone = open_page(viewport={"width": 390, "height": 844})
    head = phone.locator("#accuracy thead th").nth(1)
    assert head.inner_text() == "mean"
    box = head.bounding_box()
    assert box["x"] + box["width"] <= 390


def test_cost_is_one_table_and_no_bars(page: Any) -> None:
    tables = page.locator("#cost table")
    assert tables.count() == 2
    assert "real images, per round" in tables.nth(1).inner_text()
    assert page.locator("#cost svg").count() == 2
    heads = tables.nth(0).locator("thead th").all_inner_texts()
    assert heads[1:3] == ["bytes up", "bytes down"]
    assert heads[-1] == "operations"


def test_no_heading_is_the_last_line_of_a_printed_page(open_page: Open, report: Path, single: Path) -> None:
    reader = pytest.importorskip("pypdf", reason="pypdf is not installed (pip install pypdf)").PdfReader
    for shown in (report, single):
        page = open_page(shown)
        headings = {" ".join(text.split()) for text in page.locator("h2, h3, h4").all_inner_texts()}
        for printed in reader(io.BytesIO(page.pdf(format="A4"))).pages:
            lines = [" ".join(line.split()) for line in printed.extract_text().splitlines() if line.strip()]
            assert lines[-1] not in headings


def test_a_single_run_is_not_marked_best_and_its_settings_are_closed(open_page: Open, single: Path) -> None:
    page = open_page(single)
    assert page.locator(".best").count() == 0
    assert "winner" not in page.inner_text("header")
    assert not page.locator("#runs pre").is_visible()


def test_ticks_of_bytes_and_of_time_are_round_numbers(page: Any) -> None:
    texts = page.locator("#cost svg text").all_text_contents()
    found = [found[1] for text in texts if (found := re.fullmatch(r"([\d.]+) (?:[kMG]?B|s|min|h)", text.strip()))]
    assert len(found) > 4
    assert all(len(number.replace(".", "").strip("0")) <= 2 for number in found), found


def test_a_method_has_one_colour_in_all_figures(page: Any) -> None:
    """One set of colours in the figures by round and by cost, though they have different curves."""
    strokes = "all => all.map(svg => [...svg.querySelectorAll('path')].map(path => getComputedStyle(path).stroke))"
    seen = page.locator("#rounds svg, #cost svg").evaluate_all(strokes)
    series = [page.evaluate(f"getComputedStyle(document.body).getPropertyValue('--series-{n}')") for n in (1, 2, 3)]
    wanted = {f"rgb{tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))}" for colour in series}
    drawn = [wanted & set(each) for each in seen]
    assert len(drawn) > 3
    assert len(drawn[0]) == 2
    assert all(each == drawn[0] for each in drawn), drawn


def test_no_table_hides_a_column_on_a_desktop(open_page: Open, tmp_path: Path) -> None:
    """Two classes with their intervals, and the table of an inversion with its p, have the most columns."""
    more = {"classes": ("healthy", "glaucoma"), "auc": 0.8, "cpu": 0.5}
    sites = {"north": 0.9, "south": 0.8, "the university clinic": 0.7}
    runs = [write_run(tmp_path / str(seed), label=LONG, seed=seed, final=sites, **more) for seed in range(2)]
    runs.append(inverted(tmp_path / "inverted"))
    for shown in (runs[:2], runs[2:]):
        page = open_page(write_report(shown, tmp_path / "report.html"), viewport={"width": 1280, "height": 900})
        hidden = "[...document.querySelectorAll('.box')].filter((box) => box.scrollWidth > box.clientWidth)"
        assert page.evaluate(f"{hidden}.map((box) => box.getAttribute('aria-label'))") == []
