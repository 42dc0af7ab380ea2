"""The report while runs go: a page made anew when their records change, served to this machine only.

Nothing is read by a name that comes from the network: there is the page, there is its version, and no third thing.
"""

import base64
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

from jinja2 import Environment, PackageLoader, StrictUndefined

from fedlgd.report.page import render
from fedlgd.report.read import ReportError, read_runs

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
READ = (".toml", ".json", ".jsonl")
REST = 4  # after a page that took a second, records are looked at again this many seconds later
OWN = ("track.json",)  # written beside the records, and not part of the report
META = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"]*)">\n?')


@dataclass(frozen=True, slots=True)
class Page:
    """What a browser is sent, and the version of the records it shows."""

    version: str
    body: bytes
    policy: str


def run_folders(path: Path) -> list[Path]:
    """The path itself if it is a run, else the runs inside it."""
    return sorted({file.parent for name in ("manifest.json", "config.toml") for file in path.rglob(name)})


def fingerprint(folders: Sequence[Path]) -> str:
    """A short text that changes when a file that the report reads does: by name, size and time of change."""
    seen = [(str(file), *_stat(file)) for folder in folders for file in sorted(_watched(folder))]
    return hashlib.blake2b(repr(seen).encode(), digest_size=12).hexdigest()


def _watched(folder: Path) -> Iterator[Path]:
    """Settings, manifest, records and what else is told of a run; the folders of its pictures."""
    yield from (file for file in folder.iterdir() if file.suffix in READ and file.name not in OWN)
    yield from (*folder.glob("real"), *folder.glob("virtual/*"))


def _stat(file: Path) -> tuple[int, int]:
    try:
        found = file.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_size


class Watcher:
    """The newest page about some folders. While records cannot be read, the last good page stays."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._lock = threading.Lock()
        self._good = ""
        self._page: Page | None = None
        self._rests_until = 0.0
        self._templates = Environment(
            loader=PackageLoader("fedlgd.report"), autoescape=True, undefined=StrictUndefined
        )

    def version(self) -> str:
        """Of the records now; while the last page is young, of that page: training needs the processor more."""
        if self._page and time.monotonic() < self._rests_until:
            return self._page.version
        try:
            return fingerprint(self._folders())
        except OSError:  # a folder went away while it was listed
            return self._page.version if self._page else ""

    def page(self) -> Page:
        with self._lock:
            version = self.version()
            if self._page is None or self._page.version != version:
                began = time.monotonic()
                self._page = self._make(version)
                self._rests_until = time.monotonic() + REST * (time.monotonic() - began)
            return self._page

    def _folders(self) -> list[Path]:
        return [folder for path in self._paths for folder in run_folders(path)]

    def _make(self, version: str) -> Page:
        trouble = self._read()
        text = self._good or self._template("waiting.html", paths=self._paths, trouble=trouble)
        script = self._template("watch.js")
        ours = self._template("watch.html", version=version, script=script, trouble=trouble)
        body = META.sub("", text, count=1).replace("</body>", f"{ours}</body>")
        return Page(version, body.encode(), policy(text, script))

    def _template(self, name: str, **values: object) -> str:
        return self._templates.get_template(name).render(**values)

    def _read(self) -> str:
        """Makes the page, or says what was wrong: a run may be caught in the middle of anything."""
        try:
            folders = self._folders()
            if folders:
                self._good = render(*read_runs(folders))
        except ReportError as error:
            return str(error)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "no run is there any more" if self._good and not folders else ""


def policy(page: str, script: str) -> str:
    """The page's own content security policy, which this script may join to ask for the version."""
    own = META.search(page)
    rules = dict(_rules(html.unescape(own.group(1)) if own else "default-src 'none'"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rules["script-src"] = f"{rules.get('script-src', '')} 'sha256-{digest}'".strip()
    rules["connect-src"] = "'self'"
    rules |= {"base-uri": "'none'", "form-action": "'none'", "frame-ancestors": "'none'"}
    return "; ".join(f"{name} {sources}" for name, sources in rules.items())


def _rules(text: str) -> Iterator[tuple[str, str]]:
    for rule in text.split(";"):
        name, _, sources = rule.strip().partition(" ")
        if name:
            yield name, sources


class Server(ThreadingHTTPServer):
    """Listens on the loopback address alone; `port` 0 takes any free one."""

    daemon_threads = True

    def __init__(self, watcher: Watcher, port: int) -> None:
        self.watcher = watcher
        super().__init__((HOST, port), Handler)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def server_bind(self) -> None:
        """Without the look-up of the machine's name that HTTPServer makes."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: object, client_address: object) -> None:
        """A browser that went away in the middle is no news."""


class Handler(BaseHTTPRequestHandler):
    """`/` and `/version`, to those who asked for this machine by its own name."""

    server: Server
    server_version = "fedlgd"
    sys_version = ""
    timeout = 30

    def do_GET(self) -> None:
        if not self._is_for_us():
            self._send(HTTPStatus.FORBIDDEN, f"open {self.server.url}\n".encode())
        elif self.path == "/":
            page = self.server.watcher.page()
            self._send(HTTPStatus.OK, page.body, "text/html", page.policy)
        elif self.path == "/version":
            self._send(HTTPStatus.OK, self.server.watcher.version().encode())
        else:
            self._send(HTTPStatus.NOT_FOUND, b"there is only / here\n")

    def _is_for_us(self) -> bool:
        """Another site's name for 127.0.0.1 is refused: a page elsewhere must not read this one (DNS rebinding)."""
        name, _, port = self.headers.get("Host", "").partition(":")
        return name in NAMES and port in ("", str(self.server.server_port))

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
        """Requests of one's own browser are not worth a line each."""
