"""The server of the view over a real socket, and the list in a real browser where there is one."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fabricate import fabricate_run
from tests.patience import HANG_S, until
from tests.report.browser import Browser

pytest.importorskip("altair")

from stepscope.errors import RunNotFound, UsageError
from stepscope.report.view import server as serving
from stepscope.report.view.access import HttpAnswer
from stepscope.report.view.server import BoundedServer, make_server
from stepscope.report.view.site import Site

HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[BoundedServer]:
    for name in ("lenet", HOSTILE):
        fabricate_run(tmp_path / "runs", steps=8, header={"workload": {"name": name, "device": "cpu"}})
    server = make_server(tmp_path / "runs", port=0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def asked(server: BoundedServer, method: str, target: str, **headers: str) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=HANG_S)
    connection.request(method, target, headers=headers)
    answer = connection.getresponse()
    answer.body = answer.read()  # type: ignore[attr-defined]
    connection.close()
    return answer


def test_the_list_is_sent_with_headers_that_keep_it_here(server: BoundedServer) -> None:
    answer = asked(server, "GET", "/")
    assert answer.status == 200
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert answer.headers["X-Frame-Options"] == "DENY"
    assert b"lenet" in answer.body  # type: ignore[attr-defined]
    head = asked(server, "HEAD", "/")
    assert head.body == b""  # type: ignore[attr-defined]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_written(method: str, server: BoundedServer) -> None:
    assert asked(server, method, "/").status == 501


def test_another_host_name_is_refused(server: BoundedServer) -> None:
    assert asked(server, "GET", "/", Host="evil.example").status == 403


@pytest.mark.parametrize("target", ["/?" + "&".join(f"a{n}=1" for n in range(70)), "/?token=[" + "&" * 100])
def test_an_address_that_cannot_be_read_is_the_visitors_fault(
    target: str, server: BoundedServer, capfd: pytest.CaptureFixture[str]
) -> None:
    assert asked(server, "GET", target).status == 400
    assert asked(server, "GET", "/").status == 200
    assert capfd.readouterr().err == ""


def test_a_fault_of_ours_answers_500_and_the_server_goes_on(
    server: BoundedServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fault(*_: object) -> None:
        raise ZeroDivisionError("secret")

    assert isinstance(server.site, Site)
    monkeypatch.setattr(server.site.listing, "list_runs", fault)
    answer = asked(server, "GET", "/runs.json")
    assert answer.status == 500
    assert b"secret" not in answer.body  # type: ignore[attr-defined]
    monkeypatch.undo()
    assert asked(server, "GET", "/runs.json").status == 200
    said = ""

    def told() -> bool:  # the thread that answered says it after its answer
        nonlocal said
        said += capsys.readouterr().err
        return "ZeroDivisionError" in said

    until(told)


def test_a_port_in_use_a_missing_folder_and_a_missing_token_are_refused(server: BoundedServer, tmp_path: Path) -> None:
    port = server.server_address[1]
    with pytest.raises(UsageError, match=f"port {port} of 127.0.0.1 is in use"):
        make_server(tmp_path, port=port)
    with pytest.raises(RunNotFound):
        make_server(tmp_path / "nothing", port=0)
    with pytest.raises(UsageError, match="a token is needed"):
        make_server(tmp_path, host="0.0.0.0", port=0)
    with pytest.raises(UsageError):
        make_server(tmp_path, host="not a host name", port=0, token="t")


def test_an_address_that_others_reach_needs_the_token(tmp_path: Path) -> None:
    server = make_server(tmp_path, host="0.0.0.0", port=0, token="right")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        assert asked(server, "GET", "/", Host="board.local").status == 403
        assert asked(server, "GET", "/", Authorization="Bearer right").status == 200
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def visit(browser: Browser, server: BoundedServer) -> None:
    """Open the list, and wait until it is there."""
    browser.call("Page.navigate", url=f"http://127.0.0.1:{server.server_address[1]}/")
    loaded = "new Promise(r => document.readyState === 'complete' ? r(1) : addEventListener('load', () => r(1)))"
    while browser.run("location.protocol") != "http:":
        pass
    browser.run(loaded)


SHOWN = """(() => {
  const none = { energy_per_step_j: null, simulated_energy_per_step_j: null, estimated_energy_per_step_j: null,
    step_time_ns: 9e10, throughput_per_s: 1230.4, peak_memory_bytes: 1.2e12 };
  rows = [{ board: "B", device: "cpu", simulated_energy_per_step_j: 2 },
    { board: "A", device: "cuda", energy_per_step_j: 1 },
    { board: "C", device: "cpu", estimated_energy_per_step_j: 3 }].map((row) => ({ ...rows[0], ...none, ...row }));
  choices();
  const cells = (place) => [...document.querySelectorAll("#table tbody tr")].map((row) => row.cells[place].textContent);
  const heading = (place) => document.querySelectorAll("#table th button")[place - 1].click();
  heading(4);
  const devices = cells(4), options = [...$("device").options].map((option) => option.value);
  heading(8);
  const energies = cells(8);
  $("device").value = "B, cpu";
  show();
  return JSON.stringify({ devices, options, energies, left: cells(4), numbers: [6, 7, 9].map((at) => cells(at)[0]) });
})()"""


def test_a_column_is_sorted_and_filtered_by_what_it_shows(server: BoundedServer, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        visit(browser, server)
        found = json.loads(browser.run(SHOWN))
    assert found["devices"] == ["A, cuda", "B, cpu", "C, cpu"]
    assert found["options"] == ["", *found["devices"]]
    assert found["energies"] == ["3 J estimated", "2 J simulated", "1 J"]
    assert found["left"] == ["B, cpu"]
    assert found["numbers"] == ["1.5 min", "1,230", "1.2 TB"], "as reports write them"


def test_the_list_filters_sorts_and_compares_in_a_browser(server: BoundedServer, tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        visit(browser, server)
        count = "document.querySelectorAll('#table tbody tr').length"
        assert browser.run(count) == 2
        assert browser.run("document.querySelectorAll('img').length") == 0
        browser.run("(search.value = 'LENET', search.dispatchEvent(new Event('input')))")
        assert browser.run(count) == 1
        browser.run("(search.value = 'onerror', search.dispatchEvent(new Event('input')))")
        assert browser.run(count) == 1
        browser.run("(search.value = '', search.dispatchEvent(new Event('input')))")
        assert browser.run("compare.disabled") is True
        browser.run("document.querySelectorAll('#table input')[0].click()")
        browser.run("document.querySelectorAll('#table input')[1].click()")
        assert browser.run("compare.textContent") == "Compare 2"
        browser.run("document.querySelector('#table th:nth-child(2) button').click()")
        assert browser.run("document.querySelector('#table th:nth-child(2)').getAttribute('aria-sort')") == "ascending"
        assert not browser.said
        assert all(address.startswith(("http://127.0.0.1:", "data:")) for address in browser.asked)


def opened(server: BoundedServer) -> socket.socket:
    return socket.create_connection(("127.0.0.1", server.server_address[1]), timeout=HANG_S)


def rest(visitor: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    got = b""
    try:
        while piece := visitor.recv(65_536):
            got += piece
    except ConnectionResetError:
        pass
    return got


@pytest.mark.parametrize("sent", [b"", b"G", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_beyond_the_bound_who_keeps_the_server_waiting_longest_makes_room(server: BoundedServer, sent: bytes) -> None:
    waiting = [opened(server) for _ in range(serving.MOST_CONNECTIONS)]
    for visitor in waiting:
        visitor.sendall(sent)
    until(lambda: server._places._value == 0)
    assert asked(server, "GET", "/runs.json").status == 200
    assert rest(waiting[0]) == b""
    for visitor in waiting:
        visitor.close()
    until(lambda: server._places._value == serving.MOST_CONNECTIONS)
    assert not server._waiting


def test_connections_beyond_the_bound_of_pages_that_are_drawn_are_turned_away(
    server: BoundedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = threading.Event()
    monkeypatch.setattr(serving, "_PLACE_S", 0.01)
    monkeypatch.setattr(server.site, "answer", lambda *_: drawn.wait(HANG_S) and HttpAnswer(200, "drawn"))
    waiting = [opened(server) for _ in range(serving.MOST_CONNECTIONS)]
    for visitor in waiting:
        visitor.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    until(lambda: server._places._value == 0 and not server._waiting)
    with opened(server) as beyond:
        assert rest(beyond) == b""
    drawn.set()
    assert all(rest(visitor).endswith(b"drawn") for visitor in waiting)
    for visitor in waiting:
        visitor.close()


@pytest.mark.parametrize("names", [("localhost", "evil.example"), ("evil.example", "localhost")])
def test_a_request_to_two_host_names_is_refused(server: BoundedServer, names: tuple[str, str]) -> None:
    with opened(server) as twofold:
        hosts = "".join(f"Host: {name}\r\n" for name in names)
        twofold.sendall(f"GET / HTTP/1.1\r\n{hosts}Connection: close\r\n\r\n".encode())
        assert b" 403 " in rest(twofold)


def test_a_slow_visitor_is_cut_off_however_often_a_byte_comes(
    server: BoundedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "REQUEST_S", 0.02)
    with opened(server) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
        assert rest(slow) == b""


@pytest.mark.parametrize("head", [b"Content-Length: 46", b"Transfer-Encoding: chunked"])
def test_the_body_of_a_request_is_not_taken_for_the_next_one(server: BoundedServer, head: bytes) -> None:
    with opened(server) as smuggling:
        smuggling.sendall(b"GET /none HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
        smuggling.sendall(b"GET /runs.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert rest(smuggling).count(b"HTTP/1.1 ") == 1


def test_a_request_without_end_is_refused(server: BoundedServer) -> None:
    with opened(server) as endless:
        head = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
        line = b"X-A: " + b"a" * 1000 + b"\r\n"
        with contextlib.suppress(ConnectionError):
            endless.sendall(head + line * (serving.MOST_REQUEST_BYTES // len(line) + 2))
        assert b"200 OK" not in rest(endless)
    assert asked(server, "GET", "/runs.json").status == 200
