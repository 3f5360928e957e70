"""Smart plugs: their answers as text, and real HTTP servers on loopback that answer well, badly and not at all."""

from __future__ import annotations

import contextlib
import json
import math
import socket
import threading
from collections.abc import Iterator
from dataclasses import astuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stepscope.record.meters import parse_address, parse_shelly, parse_tasmota
from stepscope.record.sensors import smart_plugs
from stepscope.record.sensors.contract import Meter, NoSensor, OpenSensor, Target
from stepscope.record.sensors.smart_plugs import discover_plugs

ROOT = Path("/")
LINES = Path(__file__).parent / "lines"
SHELLY = (LINES / "plug-shelly-gen2.txt").read_text().splitlines()
TASMOTA = (LINES / "plug-tasmota.txt").read_text()
GEN1 = '{"relays":[{"ison":true}],"meters":[{"power":12.5,"is_valid":true,"total":600}],"temperature":40.1}'
GEN2_PAGE, GEN1_PAGE, TASMOTA_PAGE = "/rpc/Switch.GetStatus?id=0", "/status", "/cm?cmnd=Status%208"


class Device:
    """A plug on loopback: pages it has, as (status, body); any other page is a 404."""

    def __init__(self) -> None:
        self.pages: dict[str, tuple[int, str]] = {}
        self.chunked = False
        device = self

        class Answer(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                status, body = device.pages.get(self.path, (404, "No handler for this"))
                data = body.encode()
                self.send_response(status)
                if device.chunked:
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    half = len(data) // 2
                    for part in (data[:half], data[half:], b""):
                        self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                    return
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's own name
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
        self.address = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=lambda: self.server.serve_forever(poll_interval=0.01), daemon=True).start()


@pytest.fixture
def device() -> Iterator[Device]:
    made = Device()
    yield made
    made.server.shutdown()
    made.server.server_close()


def raw_server(answer: bytes, keep_open: bool = False) -> tuple[str, socket.socket]:
    """A server that sends these bytes to whoever connects, whatever is asked."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                link, _ = listening.accept()
                with link:
                    link.recv(4096)
                    link.sendall(answer)
                    while keep_open and link.recv(4096):
                        pass

    threading.Thread(target=serve, daemon=True).start()
    return f"127.0.0.1:{listening.getsockname()[1]}", listening


def nobody() -> str:
    """An address where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        return f"127.0.0.1:{closed.getsockname()[1]}"


def named(*addresses: str, kind: str = "shelly") -> Target:
    return Target(1, meters=tuple(Meter(kind, address, f"{kind}-{n}") for n, address in enumerate(addresses)))


def values(sensor: OpenSensor | NoSensor) -> dict[str, float]:
    assert isinstance(sensor, OpenSensor), sensor
    return dict(zip([channel.id for channel in sensor.channels], sensor.read(), strict=True))


def missing(answer: OpenSensor | NoSensor) -> NoSensor:
    assert isinstance(answer, NoSensor), answer
    return answer


def test_the_answers_of_real_plugs_are_read_in_si_units() -> None:
    assert astuple(parse_shelly(SHELLY[0])) == (0.0, 0.0, 123.3, 0.0)
    assert astuple(parse_shelly(SHELLY[1])) == (0.0, pytest.approx(62758.285 * 3600), 237.0, 0.0)
    assert astuple(parse_tasmota(TASMOTA)) == (20.0, pytest.approx(6.04 * 3.6e6), 234.0, 0.111)


def test_the_first_generation_counts_watt_minutes_and_its_three_phase_meters_watt_hours() -> None:
    reading = parse_shelly(GEN1)
    assert (reading.power_w, reading.energy_j) == (12.5, 36_000.0)
    assert math.isnan(reading.voltage_v)
    assert parse_shelly('{"emeters":[{"power":1,"total":2,"voltage":230.1}]}').energy_j == 7200.0


def test_a_meter_that_calls_itself_invalid_has_no_reading() -> None:
    assert math.isnan(parse_shelly('{"meters":[{"power":0,"is_valid":false,"total":0}]}').power_w)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "<html>Login</html>",
        "[1, 2]",
        "null",
        '{"id":0, "apow',
        '{"relays":[]}',
        '{"meters":[]}',
        '{"meters":[{"power":1},{"power":2}]}',
        '{"meters":["x"]}',
        '{"StatusSNS":{"Time":"2022"}}',
        '{"StatusSNS":{"ENERGY":{"Power":[1,2]}}}',
        '{"StatusSNS":{"ENERGY":{}}}',
        "[" * 100_000,
    ],
)
def test_an_answer_that_is_no_reading_is_refused_in_words(text: str) -> None:
    for parse in (parse_shelly, parse_tasmota):
        with pytest.raises(ValueError, match=r"\w"):
            parse(text)


@pytest.mark.parametrize("value", ["null", "true", '"12"', "1e999", "-1e300", "NaN", "Infinity", "1" + "0" * 400, "{}"])
def test_a_power_that_is_no_plausible_number_is_not_read(value: str) -> None:
    assert math.isnan(parse_shelly(f'{{"apower": {value}}}').power_w)
    assert math.isnan(parse_tasmota(f'{{"StatusSNS":{{"ENERGY":{{"Power":{value}}}}}}}').power_w)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["apower", "meters", "emeters", "power", "StatusSNS", "ENERGY", "Power", "Total", "x"]),
            inner,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=80)
@given(JSON.map(json.dumps) | st.text(max_size=40))
def test_no_answer_breaks_the_parsers_or_makes_them_invent_a_reading(text: str) -> None:
    for parse in (parse_shelly, parse_tasmota):
        with contextlib.suppress(ValueError):
            for value in astuple(parse(text)):
                assert math.isnan(value) or abs(value) <= 1e15


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("192.168.1.20", "http://192.168.1.20"),
        ("plug.local:80", "http://plug.local"),
        ("http://plug:8080/", "http://plug:8080"),
        ("https://plug", "https://plug"),
        ("[fe80::1]:81", "http://[fe80::1]:81"),
    ],
)
def test_an_address_is_a_host_and_perhaps_a_port(text: str, url: str) -> None:
    assert parse_address(text).url == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ftp://plug",
        "file:///etc/passwd",
        "plug:0",
        "plug:99999",
        "plug:x",
        "user:secret@plug",
        "plug/rpc/Switch.Set?id=0",
        "a b",
        "-plug",
        "[zz::1]",
        "plug\r\nX: y",
        "http://",
        "?x",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        parse_address(text)


@settings(max_examples=80)
@given(st.text(max_size=40))
def test_no_text_breaks_the_address(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse_address(text).url.startswith("http")


def test_a_shelly_gives_power_energy_voltage_and_current(device: Device) -> None:
    device.pages[GEN2_PAGE] = (200, '{"apower":7.5,"voltage":230.0,"current":0.05,"aenergy":{"total":2.0}}')
    sensor = discover_plugs(smart_plugs.SHELLY, ROOT, named(device.address))
    assert values(sensor) == {
        "wall.shelly-0.power": 7.5,
        "wall.shelly-0.energy": 7200.0,
        "wall.shelly-0.voltage": 230.0,
        "wall.shelly-0.current": 0.05,
    }
    assert isinstance(sensor, OpenSensor)
    assert sensor.blocking
    assert sensor.every_ns == 1_000_000_000
    assert {channel.scope for channel in sensor.channels} == {"wall:shelly-0"}
    assert {channel.kind for channel in sensor.channels if channel.quantity == "energy"} == {"counter"}
    sensor.close()


def test_a_first_generation_shelly_is_found_behind_its_own_page(device: Device) -> None:
    device.pages[GEN1_PAGE] = (200, GEN1)
    sensor = discover_plugs(smart_plugs.SHELLY, ROOT, named(device.address))
    assert values(sensor) == {"wall.shelly-0.power": 12.5, "wall.shelly-0.energy": 36_000.0}


def test_a_tasmota_that_answers_in_chunks_is_read(device: Device) -> None:
    device.pages[TASMOTA_PAGE], device.chunked = (200, TASMOTA), True
    read = values(discover_plugs(smart_plugs.TASMOTA, ROOT, named(device.address, kind="tasmota")))
    assert read["wall.tasmota-0.power"] == 20.0


def test_a_plug_that_is_named_and_wants_a_password_is_denied(device: Device) -> None:
    device.pages[GEN2_PAGE] = (401, "")
    answer = missing(discover_plugs(smart_plugs.SHELLY, ROOT, named(device.address)))
    assert answer.reason == "denied"
    assert "password" in str(answer.remedy)


@pytest.mark.parametrize("body", ["<html>router login</html>", '{"StatusSNS":{"Time":"x"}}', "{"])
def test_another_device_at_the_address_is_unsupported(body: str, device: Device) -> None:
    device.pages = dict.fromkeys((GEN2_PAGE, GEN1_PAGE, TASMOTA_PAGE), (200, body))
    for maker in (smart_plugs.SHELLY, smart_plugs.TASMOTA):
        answer = missing(discover_plugs(maker, ROOT, named(device.address, kind=maker.name)))
        assert answer.reason == "unsupported"
        assert device.address in answer.detail


@pytest.mark.parametrize(
    ("answer", "keep_open"),
    [
        (b"", True),
        (b"HTTP/1.1 200 OK\r\nContent-Len", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{", True),
    ],
)
def test_a_plug_that_goes_silent_costs_no_more_than_its_time_limit(
    answer: bytes, keep_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(smart_plugs, "TIMEOUT_S", 0.05)
    address, listening = raw_server(answer, keep_open)
    with listening:
        reason = missing(discover_plugs(smart_plugs.SHELLY, ROOT, named(address)))
    assert reason.reason == "failed"
    assert "in time" in reason.detail or "timed out" in reason.detail


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x00\xff\x00",
        b"SSH-2.0-OpenSSH_9\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n" + b'{"apower":1',
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 40 + b"\r\n\r\n{}",
        b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 50,
    ],
)
def test_half_an_answer_and_no_http_are_typed_reasons(answer: bytes) -> None:
    address, listening = raw_server(answer)
    with listening:
        assert missing(discover_plugs(smart_plugs.SHELLY, ROOT, named(address))).reason in ("failed", "unsupported")


def test_a_plug_that_is_switched_off_is_failed_and_the_remedy_can_be_tried() -> None:
    address = nobody()
    answer = missing(discover_plugs(smart_plugs.TASMOTA, ROOT, named(address, kind="tasmota")))
    assert answer.reason == "failed"
    assert str(answer.remedy).startswith("try: curl")


def test_one_plug_that_does_not_answer_leaves_a_gap_and_the_other_is_read(device: Device) -> None:
    device.pages[GEN2_PAGE] = (200, '{"apower":7.5}')
    address = nobody()
    sensor = discover_plugs(smart_plugs.SHELLY, ROOT, named(address, device.address))
    read = values(sensor)
    assert math.isnan(read["wall.shelly-0.power"])
    assert read["wall.shelly-1.power"] == 7.5


def test_a_plug_that_starts_to_answer_later_is_read_then(device: Device) -> None:
    other = Device()
    device.pages[GEN2_PAGE] = (200, '{"apower":7.5}')
    other.pages["/"] = (200, "")
    sensor = discover_plugs(smart_plugs.SHELLY, ROOT, named(device.address, other.address))
    assert math.isnan(values(sensor)["wall.shelly-1.power"])
    other.pages[GEN1_PAGE] = (200, GEN1)
    assert values(sensor)["wall.shelly-1.power"] == 12.5
    other.server.shutdown()
    other.server.server_close()


def test_a_plug_that_fails_in_mid_run_ends_the_read_and_comes_back(device: Device) -> None:
    device.pages[GEN2_PAGE] = (200, '{"apower":7.5}')
    sensor = discover_plugs(smart_plugs.SHELLY, ROOT, named(device.address))
    assert isinstance(sensor, OpenSensor)
    device.pages[GEN2_PAGE] = (500, "")
    with pytest.raises(OSError, match="500"):
        sensor.read()
    device.pages[GEN2_PAGE] = (200, '{"apower":"n/a"}')
    assert math.isnan(sensor.read()[0])
    device.pages[GEN2_PAGE] = (200, '{"apower":8.0}')
    assert sensor.read() == [8.0]
    sensor.close()


def test_a_bad_address_and_no_plug_at_all_say_what_to_name() -> None:
    assert missing(discover_plugs(smart_plugs.SHELLY, ROOT, named("ftp://x"))).reason == "failed"
    nothing = missing(discover_plugs(smart_plugs.SHELLY, ROOT, Target(1)))
    assert nothing.reason == "absent"
    assert "shelly=" in str(nothing.remedy)


def test_a_shelly_that_clamps_around_a_wire_states_power_and_no_energy() -> None:
    reading = parse_shelly('{"id":"0","current":1.473,"voltage":226.9,"act_power":332.2,"aprt_power":335,"freq":50}')
    assert (reading.power_w, reading.voltage_v, reading.current_a) == (332.2, 226.9, 1.473)
    assert math.isnan(reading.energy_j)
