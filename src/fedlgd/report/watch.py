"""`fedlgd watch`: a live report, rendered again when records change and served on the loopback address only.

The server answers `/` and `/version`. It never opens a file by a name from a request.
"""

import hashlib
import html
import re
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import TCPServer

from fedlgd.core.errors import FedlgdError
from fedlgd.report.page import TEMPLATES, render, script_hash
from fedlgd.rundir.read import read_runs, run_folders

HOST = "127.0.0.1"
HOST_NAMES = (HOST, "localhost")
WATCHED_SUFFIXES = (".toml", ".json", ".jsonl")
IGNORED_FILES = ("track.json",)  # in the run folder, but not part of the report
PAUSE_FACTOR = 4  # after rendering for t seconds, changes are ignored for 4 t seconds: training needs the processor
POLICY_TAG = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">\n?')


@dataclass(frozen=True, slots=True)
class WatchPage:
    """The response to a browser, and the version of the records it shows."""

    version: str
    body: bytes
    policy: str


def records_version(folders: Sequence[Path]) -> str:
    """A hash that changes when a file that the report reads changes its name, size or modification time."""
    seen = [(str(file), *_stat(file)) for folder in folders for file in sorted(_watched(folder))]
    return hashlib.blake2b(repr(seen).encode(), digest_size=12).hexdigest()


def _watched(folder: Path) -> Iterator[Path]:
    own = (file for file in folder.iterdir() if file.suffix in WATCHED_SUFFIXES)
    yield from (file for file in own if file.name not in IGNORED_FILES)
    yield folder / "state" / "head.json"  # commits the records
    yield from (*folder.glob("real"), *folder.glob("virtual/*"))


def _stat(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


class Watcher:
    """The newest page for some folders. If the runs cannot be read, the last readable page is kept."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._lock = threading.Lock()
        self._report = ""
        self._page: WatchPage | None = None
        self._paused_until = 0.0

    def version(self) -> str:
        """The version of the records, or of the last page during the pause after it."""
        if self._page and time.monotonic() < self._paused_until:
            return self._page.version
        try:
            return records_version(self._folders())
        except OSError:  # a folder was removed while it was listed
            return self._page.version if self._page else ""

    def page(self) -> WatchPage:
        with self._lock:
            version = self.version()
            if self._page is None or self._page.version != version:
                began = time.monotonic()
                self._page = self._make(version)
                self._paused_until = time.monotonic() + PAUSE_FACTOR * (time.monotonic() - began)
            return self._page

    def _folders(self) -> list[Path]:
        return [folder for path in self._paths for folder in run_folders(path)]

    def _make(self, version: str) -> WatchPage:
        problem = self._update()
        text = self._report or TEMPLATES.get_template("waiting.html").render(paths=self._paths, problem=problem)
        script = TEMPLATES.get_template("watch.js").render()
        live = TEMPLATES.get_template("watch.html").render(version=version, script=script, problem=problem)
        body = POLICY_TAG.sub("", text, count=1).replace("</body>", f"{live}</body>")
        return WatchPage(version, body.encode(), policy(text, script))

    def _update(self) -> str:
        """Renders the report, or returns the problem: any file may be incomplete while a run writes it."""
        try:
            folders = self._folders()
            if folders:
                self._report = render(*read_runs(folders))
        except FedlgdError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "the run folders no longer exist" if self._report and not folders else ""


def policy(page: str, script: str) -> str:
    """The content security policy of the page, extended by this script and its requests for the version."""
    own = POLICY_TAG.search(page)
    text = html.unescape(own.group(1)) if own else "default-src 'none'"
    rules = dict(rule.strip().split(" ", 1) for rule in text.split(";"))
    rules["script-src"] = f"{rules.get('script-src', '')} '{script_hash(script)}'".strip()
    rules["connect-src"] = "'self'"
    rules |= {"base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'"}
    return "; ".join(f"{name} {sources}" for name, sources in rules.items())


class WatchServer(ThreadingHTTPServer):
    """Listens on the loopback address only; `port` 0 takes any free port."""

    daemon_threads = True

    def __init__(self, watcher: Watcher, port: int) -> None:
        self.watcher = watcher
        super().__init__((HOST, port), WatchHandler)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def server_bind(self) -> None:
        """Skips the host name lookup of HTTPServer."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore client disconnects."""


class WatchHandler(BaseHTTPRequestHandler):
    """Serves `/` and `/version`."""

    server: WatchServer
    server_version = "fedlgd"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        """Other host names for 127.0.0.1 are refused, so that no website can read the page (DNS rebinding)."""
        name, _, port = self.headers.get("Host", "").partition(":")
        if name not in HOST_NAMES or port not in ("", str(self.server.server_port)):
            self._send(HTTPStatus.FORBIDDEN, f"open {self.server.url}\n".encode())
        elif self.path == "/":
            page = self.server.watcher.page()
            self._send(HTTPStatus.OK, page.body, "text/html", page.policy)
        elif self.path == "/version":
            self._send(HTTPStatus.OK, self.server.watcher.version().encode())
        else:
            self._send(HTTPStatus.NOT_FOUND, b"only / is served here\n")

    def _send(
        self, status: HTTPStatus, body: bytes, kind: str = "text/plain", policy: str = "default-src 'none'"
    ) -> None:
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Content-Security-Policy", policy),
            ("Cache-Control", "no-store"),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""
