"""A small web server on the loopback that can fail in the ways real ones do."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Site:
    """What is served, how it fails, and what was asked for.

    cuts: by path, after how many bytes each of the next answers breaks off. ranges: whether Range is honoured.
    shift: how many bytes early a range begins, as its header says. The path "circle" leads to itself.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    cuts: dict[str, list[int]] = field(default_factory=dict)
    ranges: bool = True
    shift: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[tuple[str, str]] = field(default_factory=list)
    port: int = 0

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path, wanted = self.path.lstrip("/"), self.headers.get("Range", "")
            site.asked.append((path, wanted))
            if path == "circle":
                self.send_response(302)
                self.send_header("Location", "/circle")
                self.end_headers()
                return
            if path not in site.files:
                self.send_error(404)
                return
            begin = int(wanted.removeprefix("bytes=").rstrip("-")) - site.shift if wanted and site.ranges else 0
            self._send(site.files[path], begin, bool(wanted and site.ranges), site.cuts.get(path, []))

        def _send(self, content: bytes, begin: int, partial: bool, cuts: list[int]) -> None:
            if begin >= len(content):
                self.send_error(416)
                return
            self.send_response(206 if partial else 200)
            if partial:
                self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
            self.send_header("Content-Length", str(len(content) - begin))
            for key, value in site.headers.items():
                self.send_header(key, value)
            self.end_headers()
            rest = content[begin:]
            with contextlib.suppress(OSError):
                self.wfile.write(rest[: cuts.pop(0)] if cuts else rest)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    site = Site()
    with ThreadingHTTPServer(("127.0.0.1", 0), handler(site)) as server:
        site.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
