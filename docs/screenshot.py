"""A screenshot of a report for the README: python docs/screenshot.py runs/demo/report.html (needs chromium)."""

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")
OUT = Path(__file__).parent / "images" / "report.png"


def main(report: Path) -> None:
    found = next(path for name in NAMES if (path := shutil.which(name)))
    OUT.parent.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 1150}, color_scheme="light")
        page.goto(report.resolve().as_uri())
        page.screenshot(path=OUT)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
