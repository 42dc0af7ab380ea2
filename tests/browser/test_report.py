"""The report in a real browser, opened from disk."""

import base64
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import HOSTILE, Open

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
    assert "No clear winner over 1 seed: FedLGD" in page.inner_text("h1")


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
    assert page.inner_text(FIRST_ROW) == "FedLGD"
    assert page.locator("#accuracy thead th[aria-sort]").inner_text().startswith("svhn")
    head.get_by_role("button").focus()
    page.keyboard.press("Enter")
    assert (head.get_attribute("aria-sort"), page.inner_text(FIRST_ROW)) == ("descending", "FedAvg")
    page.keyboard.press("Space")
    assert (head.get_attribute("aria-sort"), page.inner_text(FIRST_ROW)) == ("ascending", "FedLGD")
    assert page.locator("#accuracy thead th[aria-sort]").count() == 1


def test_a_table_is_copied_to_the_clipboard_in_three_formats(open_page: Open) -> None:
    page = open_page(permissions=["clipboard-read", "clipboard-write"])
    copied = {}
    for form in ("CSV", "LaTeX", "Markdown"):
        page.click(f"#accuracy .copy button:text-is('{form}')")
        page.locator("#accuracy .copy output", has_text=f"Copied as {form}.").wait_for()
        copied[form] = page.evaluate("navigator.clipboard.readText()").splitlines()
        assert copied[form] == page.input_value(f"#accuracy textarea[data-format='{form}']").splitlines()
    assert copied["CSV"][2].startswith("FedLGD,1,12,90.0000,68.0000,94.0000,")
    assert copied["LaTeX"][0] == r"\begin{tabular}{lrrrrrrr}"
    assert copied["Markdown"][3].startswith("| FedLGD | 1 | 12 | 90.0 | **68.0** | **94.0** |")


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
    assert seen == ["start", "round 0", "round 5", "round 10"]
    assert page.inner_text(".card:first-child .stack figcaption") == "round 10"


def test_the_slider_moves_by_the_keyboard(page: Any) -> None:
    page.focus(".slider input")
    page.keyboard.press("ArrowLeft")
    assert page.inner_text(".slider output") == "round 5"
    assert page.get_attribute(".slider input", "aria-valuetext") == "round 5"


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
