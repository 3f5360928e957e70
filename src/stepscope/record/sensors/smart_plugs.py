"""Smart plugs that the user names, Shelly or Tasmota: power, energy, voltage and current at the wall, once a second.

A read is one HTTP exchange with a hard deadline. Shelly's push interface is slower (every 30 s or on a change of 10 %);
low loads may read 0. HTTP is imported only where a plug is named: it is a fifth of the sampling process's start-up.
"""

from __future__ import annotations

import io
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import partial
from pathlib import Path

from stepscope.record.meters import NAN, Address, PlugReading, parse_address, parse_shelly, parse_tasmota
from stepscope.record.sensors.contract import Channel, Meter, NamedSensor, NoSensor, OpenSensor, Target, make_channel

EVERY_NS = 1_000_000_000  # plugs refresh about once a second
TIMEOUT_S = 0.8
_LARGEST_ANSWER = 65536
_QUANTITIES = (("power", "W"), ("energy", "J"), ("voltage", "V"), ("current", "A"))  # in the order of PlugReading
_NOTHING = PlugReading(NAN, NAN, NAN, NAN)


class Refused(OSError):
    """A plug wants a password (HTTP 401 or 403)."""


class PlugPageNotFound(ValueError):
    """A plug has no such page (HTTP 404)."""


@dataclass(frozen=True)
class PlugMaker:
    """Traits of the plugs of one maker: pages to try in order, and their grammar."""

    name: str  # of the sensor, and of the kind of meter
    title: str
    pages: tuple[str, ...]
    parse: Callable[[str], PlugReading]


@dataclass(frozen=True)
class _Plug:
    """A plug that was named, the page of it that answers, and its first reading."""

    meter: Meter
    address: Address
    page: str
    first: PlugReading
    failure: NoSensor | None = None


def discover_plugs(maker: PlugMaker, root: Path, target: Target) -> OpenSensor | NoSensor:
    """Channels of every plug of this maker that was named; one that does not answer yet keeps its power channel."""
    meters = [meter for meter in target.meters if meter.kind == maker.name]
    if root != Path("/"):
        return NoSensor("absent", f"{root}: a saved tree has no plugs on the network")
    if not meters:
        return NoSensor("absent", f"{root}: no {maker.title} plug was named", f"--plug {maker.name}=ADDRESS")
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(len(meters), f"{maker.name}-plug")
    plugs = list(pool.map(lambda meter: _probe_plug(maker, meter), meters))
    failures = [plug.failure for plug in plugs if plug.failure is not None]
    if len(failures) == len(plugs):
        pool.shutdown(wait=False)
        return replace(failures[0], detail="; ".join(failure.detail for failure in failures))
    places_of_plug = [_channel_quantities(plug) for plug in plugs]
    channels = [
        _channel(maker, plug, place) for plug, places in zip(plugs, places_of_plug, strict=True) for place in places
    ]

    def read() -> list[float]:
        readings = list(pool.map(lambda plug: _read(maker, plug), plugs))
        if all(isinstance(reading, str) for reading in readings):
            raise OSError("; ".join(str(reading) for reading in readings))
        values = [astuple(_NOTHING if isinstance(reading, str) else reading) for reading in readings]
        return [reading[place] for reading, places in zip(values, places_of_plug, strict=True) for place in places]

    return OpenSensor(tuple(channels), read, lambda: pool.shutdown(wait=False), every_ns=EVERY_NS, blocking=True)


def fetch(address: Address, page: str) -> str:
    """The text of a page; raises OSError (no answer in time, refused) or ValueError (no or half an HTTP answer)."""
    deadline = time.monotonic() + TIMEOUT_S
    place = address.url.partition("//")[2]
    request = f"GET {page} HTTP/1.1\r\nHost: {place}\r\nAccept: application/json\r\nConnection: close\r\n\r\n"
    with socket.create_connection((address.host, address.port), TIMEOUT_S) as plain:
        plain.settimeout(_remaining_s(deadline))
        link = _encrypt_socket(plain, address.host) if address.scheme == "https" else plain
        with link:
            link.sendall(request.encode("ascii"))
            received = _receive_answer(link, deadline)
    return _http_body(received, address.url)


def _receive_answer(link: socket.socket, deadline: float) -> bytes:
    """All that is sent until the other side closes or the answer is whole; raises TimeoutError at the deadline."""
    received = b""
    while len(received) < _LARGEST_ANSWER:
        link.settimeout(_remaining_s(deadline))
        chunk = link.recv(8192)
        received += chunk
        if not chunk or _is_body_complete(received):
            break
    return received


def _is_body_complete(received: bytes) -> bool:
    """Return whether a body of stated length is here, for plugs that keep the connection open."""
    head, separator, body = received.partition(b"\r\n\r\n")
    lower = head.lower()
    if not separator:
        return False
    if b"\r\ncontent-length:" in lower:
        length = lower.split(b"\r\ncontent-length:", 1)[1].split(b"\r\n", 1)[0].strip()
        return length.isdigit() and len(length) < 10 and len(body) >= int(length)
    return b"transfer-encoding: chunked" in lower and body.endswith(b"0\r\n\r\n")


def _http_body(received: bytes, url: str) -> str:
    import http.client

    response = http.client.HTTPResponse(_Received(received), method="GET")  # type: ignore[arg-type]
    try:
        response.begin()
        body = response.read()
    except (http.client.HTTPException, ValueError, OverflowError) as error:
        raise ValueError(f"{url}: half an answer or no HTTP ({type(error).__name__})") from error
    finally:
        response.close()
    if response.status in (401, 403):
        raise Refused(f"{url}: HTTP {response.status}")
    if response.status == 404:
        raise PlugPageNotFound(f"{url}: HTTP 404")
    if response.status != 200:
        raise ValueError(f"{url}: HTTP {response.status}")
    return body.decode("utf-8", errors="replace")


@dataclass(frozen=True)
class _Received:
    """Bytes that were received, as the socket that http.client wants to read."""

    data: bytes

    def makefile(self, mode: str) -> io.BytesIO:
        """The bytes as a file."""
        return io.BytesIO(self.data)


def _encrypt_socket(plain: socket.socket, host: str) -> socket.socket:
    import ssl

    return ssl.create_default_context().wrap_socket(plain, server_hostname=host)


def _remaining_s(deadline: float) -> float:
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError("no whole answer in time")
    return remaining


def _probe_plug(maker: PlugMaker, meter: Meter) -> _Plug:
    """The page of a plug that answers, or why none does."""
    try:
        address = parse_address(meter.address)
    except ValueError as error:
        missing = NoSensor("failed", str(error), f"--plug {maker.name}=HOST or HOST:PORT")
        return _Plug(meter, Address("http", "", 80), "", _NOTHING, missing)
    why = ""
    for page in maker.pages:
        try:
            return _Plug(meter, address, page, maker.parse(fetch(address, page)))
        except PlugPageNotFound as error:
            why = why or str(error)
        except Refused as error:
            missing = NoSensor("denied", f"{error}", f"turn off the password of {address.url} while you measure")
            return _Plug(meter, address, page, _NOTHING, missing)
        except ValueError as error:
            why = str(error) if str(address.url) in str(error) else f"{address.url}: {error}"
        except OSError as error:
            missing = NoSensor(
                "failed", f"{address.url}: {error.strerror or error}", f"try: curl '{address.url}{page}'"
            )
            return _Plug(meter, address, page, _NOTHING, missing)
    missing = NoSensor("unsupported", f"{why}: no {maker.title} plug that measures", f"try: curl '{address.url}'")
    return _Plug(meter, address, maker.pages[0], _NOTHING, missing)


def _read(maker: PlugMaker, plug: _Plug) -> PlugReading | str:
    """Return a reading, or why there is none; for a plug that has never answered, each page is tried again."""
    if plug.failure is not None:
        plug = _probe_plug(maker, plug.meter)
        return plug.first if plug.failure is None else plug.failure.detail
    try:
        return maker.parse(fetch(plug.address, plug.page))
    except OSError as error:
        return f"{plug.address.url}: {error.strerror or error}"
    except ValueError as error:
        return str(error)


def _channel_quantities(plug: _Plug) -> Sequence[int]:
    """Return the quantities that become channels: those that it states, and its power in any case."""
    return [index for index, value in enumerate(astuple(plug.first)) if index == 0 or value == value]


def _channel(maker: PlugMaker, plug: _Plug, place: int) -> Channel:
    quantity, unit = _QUANTITIES[place]
    scope = f"wall:{plug.meter.name}"
    refresh_ns = EVERY_NS if quantity != "energy" else None
    return make_channel(maker.name, scope, quantity, unit, f"{plug.address.url}{plug.page}", refresh_ns=refresh_ns)


SHELLY = PlugMaker(
    "shelly",
    "Shelly",
    (
        "/rpc/Switch.GetStatus?id=0",
        "/rpc/PM1.GetStatus?id=0",
        "/rpc/EM1.GetStatus?id=0",
        "/status",
    ),  # the last one: first generation
    parse_shelly,
)
TASMOTA = PlugMaker("tasmota", "Tasmota", ("/cm?cmnd=Status%208",), parse_tasmota)
SENSORS = tuple(NamedSensor(maker.name, partial(discover_plugs, maker)) for maker in (SHELLY, TASMOTA))
