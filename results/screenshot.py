"""Screenshots for README and the pages, in 256 colours: python -m results.screenshot runs/demo/report.html

They need chromium."""

import io
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from playwright.sync_api import Browser, sync_playwright

from results import DOCS

NAMES = ("chromium", "chromium-browser", "google-chrome")
OUT = DOCS / "images"
SHEETS = (
    ("real images", ".card:first-child", 0),
    ("virtual images", ".card:first-child", 2),
    ("anchors", ".card:last-child", 1),
)
TILE, CAPTION, GAP = 280, 30, 24  # pixels
PAPER, INK = (253, 252, 250), (60, 58, 54)
DESK, PHONE = {"width": 1200, "height": 1340}, {"width": 390, "height": 844}
SHOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "report": ("", {"viewport": DESK, "color_scheme": "light"}),
    "report-dark": ("", {"viewport": DESK, "color_scheme": "dark"}),
    "report-phone": ("", {"viewport": PHONE, "color_scheme": "light"}),
    "report-images": (".card:first-child", {"viewport": DESK, "color_scheme": "light"}),
    "report-anchors": (".card:last-child", {"viewport": DESK, "color_scheme": "light"}),
    "report-cost": ("#cost", {"viewport": DESK, "color_scheme": "light"}),
    "report-sites": ("#sites", {"viewport": DESK, "color_scheme": "light"}),
}


def shoot(browser: Browser, report: Path, part: str, how: dict[str, Any]) -> Image.Image:
    page = browser.new_page(**how)
    page.goto(report.resolve().as_uri())
    taken = page.locator(part).first.screenshot() if part else page.screenshot()
    page.close()
    return Image.open(io.BytesIO(taken)).convert("RGB")


def result(browser: Browser, report: Path) -> Image.Image:
    """Real images, virtual images, anchors and the curve, side by side with captions: the first classes of each."""
    page = browser.new_page(**SHOTS["report"][1])
    page.goto(report.resolve().as_uri())
    places = {caption: page.locator(card).locator("img:visible").nth(number) for caption, card, number in SHEETS}
    places["accuracy, %, by round"] = page.locator("#rounds svg").first
    tiles = {
        caption: Image.open(io.BytesIO(place.screenshot())).convert("RGB") for caption, place in places.items()
    }
    page.close()
    tiles = {caption: tile.crop((0, 0, tile.width, min(tile.height, TILE))) for caption, tile in tiles.items()}
    width = sum(tile.width + GAP for tile in tiles.values()) - GAP
    sheet = Image.new("RGB", (width, TILE + CAPTION), PAPER)
    draw, left = ImageDraw.Draw(sheet), 0
    for caption, tile in tiles.items():
        draw.text((left, 4), caption, fill=INK, font=ImageFont.load_default(16))
        sheet.paste(tile, (left, CAPTION))
        left += tile.width + GAP
    return sheet


def main(report: Path) -> None:
    found = next(path for name in NAMES if (path := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for name, (part, how) in SHOTS.items():
            shoot(browser, report, part, how).quantize(256).save(OUT / f"{name}.png", optimize=True)
        result(browser, report).quantize(256).save(OUT / "result.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
