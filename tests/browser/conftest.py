"""One real browser for all tests, and one page made from fake runs."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedlgd.report.page import write_report
from tests import PATIENCE
from tests.report.fake import write_analysis, write_run

NAMES = ("chromium", "chromium-browser", "google-chrome")
HOSTILE = "<script>window.stolen = 1</script>\"'&"
LONG = "FedLGD with a name of more than thirty letters"
FINAL = {"mnist": 0.95, "svhn": 0.62, HOSTILE: 0.91}
Open = Callable[..., Any]


@pytest.fixture(scope="package")  # playwright keeps an event loop running, with which tests of other packages fail
def browser() -> Iterator[Any]:
    """Debian's chromium, or whatever is called so."""
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (pip install playwright)")
    found = next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed (apt-get install chromium)")
    with api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods, one of them with several versions of virtual images; one site has a hostile name."""
    folder = tmp_path_factory.mktemp("report")
    better = {"mnist": 0.90, "svhn": 0.68, HOSTILE: 0.94}
    fedavg = write_run(folder / "a", label="FedAvg", method="fedavg", final=FINAL)
    fedlgd = write_run(folder / "b", label=LONG, final=better, rounds=12, per_class=3, samples=2)
    write_analysis(fedlgd, tuple(FINAL))
    return write_report([fedavg, fedlgd], folder / "report.html")


@pytest.fixture(scope="session")
def single(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of one run on data with two classes."""
    folder = tmp_path_factory.mktemp("single")
    run = write_run(folder / "a", classes=("healthy", "glaucoma"), per_class=10, rounds=6, auc=0.8)
    return write_report([run], folder / "report.html")


@pytest.fixture
def open_page(browser: Any, report: Path) -> Iterator[Open]:
    """open_page(**how) shows the report, or another page; its `requests` and `complaints` are kept."""
    contexts = []

    def open_with(shown: Path = report, **how: Any) -> Any:
        context = browser.new_context(**how)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1000 * PATIENCE)
        page.requests, page.complaints = [], []
        page.on("request", lambda request: page.requests.append(request.url))
        page.on("console", lambda message: page.complaints.append(message.text))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.goto(shown.as_uri())
        return page

    yield open_with
    for context in contexts:
        context.close()
