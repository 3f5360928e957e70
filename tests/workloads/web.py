"""A web server on the loopback that serves bytes from memory: in ranges, broken off, or not at all."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class Site:
    """What is served under which path; `asked` is the (path, range) of every request."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.files: dict[str, bytes] = {}
        self.broken_after: dict[str, int] = {}  # bytes of the whole file at which the connection is cut, once
        self.ranges = True
        self.asked: list[tuple[str, str | None]] = []

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


def _handler(sites: list[Site]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            site, name = sites[0], self.path.lstrip("/")
            asked = self.headers.get("Range")
            site.asked.append((name, asked))
            if name not in site.files:
                self.send_error(404)
                return
            whole = site.files[name]
            start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and site.ranges else 0
            if start >= len(whole) > 0:
                self.send_error(416)
                return
            self.send_response(206 if asked and site.ranges else 200)
            self.send_header("Content-Length", str(len(whole) - start))
            self.end_headers()
            self.wfile.write(whole[start : site.broken_after.pop(name, len(whole))])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in http.server
            """Quiet."""

    return Handler


@contextlib.contextmanager
def served() -> Iterator[Site]:
    """A site on a free port."""
    sites: list[Site] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(sites))
    sites.append(Site(f"http://127.0.0.1:{server.server_address[1]}"))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield sites[0]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    """A site for one test."""
    with served() as one:
        yield one
