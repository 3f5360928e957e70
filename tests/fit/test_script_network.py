"""What a script would send to a server, by any library, is not sent; what it fetches it gets."""

from __future__ import annotations

import http.server
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fit.test_script import followed

from stepscope.footprint import script_write_guard

UPDATES = "for n in range(2):\n    update(*data[:8])\n"
LIBRARIES = {
    "socket": "import socket\nwith socket.create_connection(('127.0.0.1', {port})) as opened:\n"
    "    opened.sendall(b'{method} / HTTP/1.0\\r\\nContent-Length: 0\\r\\n\\r\\n')\n"
    "    assert b'page' in opened.recv(9999)\n",
    "aiohttp": "import aiohttp, asyncio\nasync def ask():\n    async with aiohttp.ClientSession() as session:\n"
    "        async with session.request('{method}', 'http://127.0.0.1:{port}/') as page:\n"
    "            assert await page.text() == 'page'\nasyncio.run(ask())\n",
    "httpx2": "import httpx2\nassert httpx2.request('{method}', 'http://127.0.0.1:{port}/').text == 'page'\n",
    "requests": "import requests\nassert requests.request('{method}', 'http://127.0.0.1:{port}/').text == 'page'\n",
}


class _Pages(http.server.BaseHTTPRequestHandler):
    received: list[str]

    def _answer(self) -> None:
        self.received.append(self.command)
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"page")

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, list[str]]]:
    """A server that counts as another machine: its port, and the methods of what it received."""
    monkeypatch.setattr(script_write_guard, "_OWN_HOSTS", ())
    received: list[str] = []
    monkeypatch.setattr(_Pages, "received", received, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as opened:
        thread = threading.Thread(target=opened.serve_forever, daemon=True)
        thread.start()
        yield opened.server_address[1], received
        opened.shutdown()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_script_gets_what_it_fetches_and_sends_nothing_by_any_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: tuple[int, list[str]], library: str
) -> None:
    pytest.importorskip(library)
    port, received = server
    fetches, sends = (LIBRARIES[library].format(method=method, port=port) for method in ("GET", "POST"))
    plain = socket.socket.send
    watched = followed(tmp_path, monkeypatch, f"{UPDATES}{fetches}{sends}")
    assert watched.missed[0].startswith("what comes after 2 updates: ")
    assert received == ["GET"]
    assert socket.socket.send is plain


def test_a_script_reaches_no_server_of_grpc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = "import os\nassert os.environ['grpc_proxy'] == 'http://127.0.0.1:9'\n"
    assert followed(tmp_path, monkeypatch, UPDATES + body).missed == ()
    assert "grpc_proxy" not in os.environ
