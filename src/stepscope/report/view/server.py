"""The server of the view: the standard library's, a thread a request; only GET and HEAD, nothing is ever written."""

from __future__ import annotations

import contextlib
import errno
import io
import re
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Protocol

from stepscope.errors import RunNotFound, UsageError
from stepscope.report.view.access import Access, HttpAnswer, is_loopback

DEFAULT_PORT = 8321
_TOKEN = re.compile(r"[A-Za-z0-9._~-]+")  # what an address and a cookie carry as it is
_IDLE_S = 30.0  # a client that sends nothing for so long is let go
REQUEST_S = 10.0  # from its first byte to its last a request takes no longer
ANSWER_S = 60.0  # within which an answer is taken
MOST_CONNECTIONS = 64  # at a time; further ones are closed at once
_PLACE_S = 1.0  # within which the place of another is free
MOST_REQUEST_BYTES = 65_536  # of a request with all its headers


class Answering(Protocol):
    """Contract of what a server serves: answers by address and headers; `token` where one is needed."""

    token: str | None

    def answer(self, target: str, headers: Mapping[str, str]) -> HttpAnswer:
        """Return the answer to GET target."""

    def close(self) -> None:
        """Close its files."""


class BoundedServer(ThreadingHTTPServer):
    """Serves until it is shut down, at `address`, which holds the token where one is needed."""

    daemon_threads = True

    def __init__(self, site: Answering, host: str, port: int) -> None:
        self.site = site
        self._places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._waiting: OrderedDict[socket.socket, None] = OrderedDict()  # for their visitors, the longest first
        self._waiting_lock = threading.Lock()
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        super().__init__((host, port), _Request)
        host_in_address = f"[{host}]" if ":" in host else host
        token = "" if site.token is None else f"?token={site.token}"
        self.address = f"http://{host_in_address}:{self.server_address[1]}/{token}"

    def address_of(self, page: str) -> str:
        """Return the address of one of its pages, such as "over-time"."""
        begin, _, token = self.address.partition("/?")
        return f"{begin.rstrip('/')}/{page}{f'?{token}' if token else ''}"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give this connection a thread: where all have one, that of who keeps us waiting longest."""
        if not self._places.acquire(blocking=False):
            self._end_longest_wait()
            if not self._places.acquire(timeout=_PLACE_S):
                self.shutdown_request(request)
                return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._places.release()
            raise

    def note_waiting(self, connection: socket.socket, begins: bool) -> None:
        """Note that a connection begins to wait for its visitor, to send or to take something, or that it does not."""
        with self._waiting_lock:
            self._waiting.pop(connection, None)
            if begins:
                self._waiting[connection] = None

    def _end_longest_wait(self) -> None:
        with self._waiting_lock:
            if self._waiting:
                longest, _ = self._waiting.popitem(last=False)
                with contextlib.suppress(OSError):
                    longest.shutdown(socket.SHUT_RDWR)  # its thread reads the end, and gives its place back

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.note_waiting(request, False)
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A visitor who went away is no fault; any other is shown where the server was started."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    def server_close(self) -> None:
        super().server_close()
        self.site.close()


class _Bounded(io.RawIOBase):
    """What a visitor sends, a request at a time: no larger and no slower than the bounds."""

    def __init__(self, connection: socket.socket, server: BoundedServer) -> None:
        self._connection, self._server = connection, server
        self.begin()

    def begin(self) -> None:
        """Wait for the next request."""
        self._until_s: float | None = None
        self._left = MOST_REQUEST_BYTES
        self._server.note_waiting(self._connection, True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._left <= 0:
            raise ConnectionAbortedError("a request without end")
        wait_s = _IDLE_S if self._until_s is None else self._until_s - time.monotonic()
        if wait_s <= 0:
            raise TimeoutError("a request that does not end")
        self._connection.settimeout(wait_s)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])
        self._until_s = self._until_s or time.monotonic() + REQUEST_S
        self._left -= count
        return count


class _Request(BaseHTTPRequestHandler):
    """One request."""

    protocol_version = "HTTP/1.1"
    server_version, sys_version = "stepscope", ""
    timeout: ClassVar[float] = _IDLE_S
    server: BoundedServer

    def setup(self) -> None:
        super().setup()
        self._sent = _Bounded(self.connection, self.server)
        self.rfile = io.BufferedReader(self._sent)

    def handle_one_request(self) -> None:
        self._sent.begin()
        super().handle_one_request()

    def do_GET(self) -> None:
        self._send(with_body=True)

    def do_HEAD(self) -> None:
        self._send(with_body=False)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as the standard library has it
        """Nobody reads a line for each request."""

    def _send(self, with_body: bool) -> None:
        headers = {name.title(): value for name, value in self.headers.items()}
        if len(self.headers.get_all("Host", [])) > 1:
            headers["Host"] = ""  # whose name counts, nobody can tell
        if "Content-Length" in headers or "Transfer-Encoding" in headers:
            self.close_connection = True  # nobody reads a body, and it is no next request
        fault: Exception | None = None
        self.server.note_waiting(self.connection, False)
        try:
            answer = self.server.site.answer(self.path, headers)
        except Exception as error:
            fault, answer = error, HttpAnswer(500, f"this page could not be made: {type(error).__name__}")
        self.server.note_waiting(self.connection, True)
        body = answer.body.encode("utf-8", errors="replace")
        try:
            self.connection.settimeout(ANSWER_S)  # of all that is sent
            self.send_response(answer.status)
            for name, value in answer.all_headers().items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)
        except (BrokenPipeError, ConnectionResetError, TimeoutError):
            self.close_connection = True  # the visitor has gone, or takes nothing
        if fault is not None:
            raise fault  # to `handle_error`: a fault of ours is not kept from whoever runs this


def make_server(
    root: str | Path, host: str = "127.0.0.1", port: int = DEFAULT_PORT, token: str | None = None
) -> BoundedServer:
    """A server that listens but does not serve yet: call `serve_forever`. Port 0 takes any free one.

    token: needed wherever others than this machine can reach it. UsageError where it cannot listen there, RunNotFound
    where there is no such folder, MissingDependency without the extra `report`.
    """
    from stepscope.report.html import refuse_without_libraries

    refuse_without_libraries()
    from stepscope.report.view.site import Site

    folder = Path(root)
    if not folder.is_dir():
        raise RunNotFound(f"there is no folder '{folder}'", "name the folder that holds your runs: stepscope view DIR")
    if not is_loopback(host) and not token:
        raise UsageError(f"'{host}' can be reached by others: a token is needed", "leave --host out, or give --token")
    if token is not None and _TOKEN.fullmatch(token) is None:
        raise UsageError("this token would not get through an address", "letters, digits and . _ ~ -")
    try:
        return BoundedServer(Site(folder, Access(token)), host, port)
    except OSError as error:
        raise UsageError(*_refusal_to_listen(error, host, port)) from error
    except OverflowError as error:
        raise UsageError(f"there is no port {port}", "choose one from 1024 to 65535, or 0 for any free one") from error


def _refusal_to_listen(error: OSError, host: str, port: int) -> tuple[str, str]:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use", "choose another with --port, or any free one with --port 0"
    if error.errno == errno.EACCES:
        return f"port {port} is for the administrator alone", "choose one above 1023 with --port"
    return f"cannot listen at {host} port {port}: {error.strerror or error}", "choose another --host or --port"
