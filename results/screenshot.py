"""Screenshots for README and the gallery, in 256 colours: python -m results.screenshot runs/demo/report.html

They need chromium."""

import io
import shutil
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, sync_playwright

from results import DOCS

NAMES = ("chromium", "chromium-browser", "google-chrome")
OUT = DOCS / "images"
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


def main(report: Path) -> None:
    found = next(path for name in NAMES if (path := shutil.which(name)))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for name, (part, how) in SHOTS.items():
            shoot(browser, report, part, how).quantize(256).save(OUT / f"{name}.png", optimize=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
