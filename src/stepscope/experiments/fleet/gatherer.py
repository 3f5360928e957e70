"""The gatherer's end of a fleet: the devices that are there, what they answer, checked, and whose signature it has."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepscope import __version__
from stepscope.clock import monotonic_ns
from stepscope.errors import FleetError, RunDamaged
from stepscope.experiments.fleet.certificates import CA, DEVICE, Identity, NotAdmitted, verify_signature
from stepscope.experiments.fleet.hosts import SchedulerAddress
from stepscope.experiments.fleet.protocol import BadMessage, Head, Link, open_link, parse_message, with_timeout
from stepscope.experiments.fleet.worker import Piece
from stepscope.runfolder.validation import DEVICE as DEVICE_SHAPE
from stepscope.runfolder.validation import Fields, FileName, IntegerRange

_ANSWERS_WITHIN_S = 30.0
ASKED_WITHIN_S = 120.0  # for what takes a device no time; it may be at a run of an earlier connection
_MOST_ERROR = 300  # characters
_DEVICES = {"devices": [Fields(dict.fromkeys(("name", "board", "address"), str), ("name", "board", "address"))]}
_FACTS = {"device": DEVICE_SHAPE, "versions": {...: str}, "unix_ns": int, "pid": int}
_SIGNED = dict.fromkeys(("signed", "signature", "certificate"), str)
_FILE = Fields({"name": str, "size_bytes": IntegerRange(0, 1 << 50), "sha256": str}, ("name", "size_bytes", "sha256"))
_COOLED = {"waited_s": float, "from_celsius": float, "to_celsius": float, "reached": bool}
_ENDED = {
    "sweep": FileName, "name": FileName, "status": str, "reason": str, "wall_s": float, "run": str,
    "cooled": Fields(_COOLED, ("waited_s", "reached")), "slept_s": float, "disk_full": bool, "files": [_FILE],
}  # fmt: skip
_STATUSES = (
    "ok", "oom", "killed", "crashed", "timeout", "failed", "interrupted", "not installed", "no data", "refused",
)  # fmt: skip


class OtherVersion(FleetError):
    """A device has another Stepscope than this machine: what they measure could not be compared."""


class DeviceLost(Exception):
    """A device went away: its request will not be answered."""


class DeviceUnfit(Exception):
    """Error: a device failed an order: full disk, broken installation, no answer, or an impossible one."""


class SchedulerLost(Exception):
    """The scheduler went away; what the devices are doing goes on."""


@dataclass(frozen=True)
class Device:
    """A device as its certificate names it; `address` is another one each time that it connects."""

    name: str
    board: str
    address: str


@dataclass(frozen=True)
class DeviceInfo:
    """A device as it describes itself, and how far its wall clock is ahead of ours: offset_s, right within within_s."""

    about: Mapping[str, Any]
    offset_s: float
    within_s: float


@dataclass(frozen=True)
class EndedRun:
    """The end of a run as its device has signed it, and the signed text with its signature and certificate."""

    ended: Mapping[str, Any]
    signed: Mapping[str, str]


class Gatherer:
    """A connection to the scheduler as the one who orders."""

    def __init__(self, link: Link, tls: Path) -> None:
        self._link, self._tls = link, tls
        self._ids = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[tuple[Head, bytes]]] = {}
        self._lost: SchedulerLost | None = None

    async def dispatch_answers(self) -> None:
        """Hand each answer to who waits for it, until the scheduler goes away."""
        try:
            while True:
                head, body = await self._link.receive()
                waiting = self._waiting.pop(head.get("id", 0), None)
                if waiting is not None and not waiting.done():
                    waiting.set_result((head, body))
        except (OSError, BadMessage) as error:
            self._lost = SchedulerLost("the scheduler has gone away")
            self._lost.__cause__ = error
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(self._lost)

    async def devices(self) -> list[Device]:
        """Return the devices that are there now; SchedulerLost where the scheduler does not say."""
        try:
            _, body = await self._request_answer({"do": "devices"}, b"", _ANSWERS_WITHIN_S)
        except asyncio.TimeoutError as error:
            raise SchedulerLost("the scheduler does not answer") from error
        return [Device(**fields) for fields in parse_message(body, _DEVICES, ("devices",))["devices"]]

    async def ask(self, device: Device, do: str, within_s: float = ASKED_WITHIN_S, **arguments: Any) -> bytes:
        """Return what a device answers to an order, unchecked, after whatever is going on there."""
        try:
            head, body = await self._request_answer(
                {"do": do, "to": device.address}, json.dumps(arguments).encode(), within_s
            )
        except asyncio.TimeoutError as error:
            raise DeviceUnfit(f"{device.name}: no answer within {within_s:g} s") from error
        if head.get("gone"):
            raise DeviceLost(f"{device.name} went away")
        if not head.get("ok"):
            with _reject_false_answers(device):
                reason = parse_message(body, {"error": str}, ("error",))["error"]
            raise DeviceUnfit(f"{device.name}: {reason[:_MOST_ERROR]}")
        return body

    async def _request_answer(self, head: Head, body: bytes, within_s: float) -> tuple[Head, bytes]:
        if self._lost is not None:
            raise self._lost
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            await self._link.send({"id": number, **head}, body)
            return await with_timeout(answer, within_s)
        except ConnectionError as error:
            raise SchedulerLost("the scheduler has gone away") from error
        finally:
            if self._waiting.pop(number, None) is not None and self._lost is None:
                with contextlib.suppress(ConnectionError):
                    await asyncio.shield(self._link.send({"cancel": number}))

    async def query_device_info(self, device: Device, within_s: float = ASKED_WITHIN_S) -> DeviceInfo:
        """Return the device, and how its clock differs; OtherVersion where it has not the Stepscope of this machine.

        Offset: F. Cristian, Probabilistic clock synchronization, Distributed Computing 3, 1989; the best of three.
        """
        body = await self.ask(device, "facts", within_s)
        with _reject_false_answers(device):
            about = parse_message(body, _FACTS, ("device", "versions", "unix_ns"))
        there = about["versions"].get("stepscope")
        if there != __version__:
            text = f"{device.name} has Stepscope {there}, and this machine {__version__}"
            raise OtherVersion(text, "install the same version on both; stepscope fleet up checks it")
        tries = [await self._measure_clock_offset(device) for _ in range(3)]
        offset_s, within_s = min(tries, key=lambda attempt: attempt[1])
        return DeviceInfo(about, offset_s, within_s)

    async def _measure_clock_offset(self, device: Device) -> tuple[float, float]:
        """Return how far its clock is ahead of ours, and half of how long the question took, s."""
        sent_ns, here_ns = monotonic_ns(), time.time_ns()
        body = await self.ask(device, "clock")
        with _reject_false_answers(device):
            there_ns = parse_message(body, {"unix_ns": int}, ("unix_ns",))["unix_ns"]
        return clock_offset(here_ns, there_ns, monotonic_ns() - sent_ns)

    async def request_run(self, device: Device, within_s: float, sweep: str, name: str, **orders: Any) -> EndedRun:
        """Have a run made; DeviceUnfit where the answer is not signed by this device and for this run."""
        body = await self.ask(device, "make", within_s, sweep=sweep, name=name, **orders)
        with _reject_false_answers(device):
            signed = parse_signed_answer(body)
            text, signature = signed["signed"].encode(), base64.b64decode(signed["signature"], validate=True)
            holder = verify_signature(self._tls / CA, signed["certificate"], signature, text)
            if holder != Identity(DEVICE, device.name, device.board):
                raise BadMessage(f"it is signed by {holder.name or holder.role}")
            needs = ("sweep", "name", "status", "wall_s", "cooled", "slept_s", "disk_full", "files")
            ended = parse_message(text, _ENDED, needs, strict=True)
            if (ended["sweep"], ended["name"]) != (sweep, name):
                raise BadMessage("it is signed for another run")
            if ended["status"] not in _STATUSES:
                raise BadMessage(f"it ended with the status {ended['status'][:40]!r}")
        return EndedRun({"reason": None, "run": None, **ended}, signed)

    async def fetch_file_pieces(self, device: Device, sweep: str, name: str, pieces: Sequence[Piece]) -> list[bytes]:
        """Fetch parts of the files of a run; RunDamaged where they are not as large as was asked."""
        body = await self.ask(device, "pieces", sweep=sweep, name=name, pieces=list(pieces))
        asked_bytes = sum(size for *_, size in pieces)
        if len(body) != asked_bytes:
            raise RunDamaged(f"the device sent {len(body)} bytes instead of {asked_bytes}", "look at the device")
        ends = list(itertools.accumulate(size for *_, size in pieces))
        return [body[end - size : end] for end, (*_, size) in zip(ends, pieces, strict=True)]

    async def forget(self, device: Device, sweep: str, name: str) -> None:
        """Let the device remove a run that is home."""
        await self.ask(device, "forget", sweep=sweep, name=name)


@contextlib.asynccontextmanager
async def connect(where: SchedulerAddress) -> AsyncIterator[Gatherer]:
    """Connect as the gatherer; FleetUnreachable where the scheduler does not answer, or not to this TLS material."""
    link, _ = await open_link(where.url, where.tls)
    gatherer = Gatherer(link, where.tls)
    listening = asyncio.ensure_future(gatherer.dispatch_answers())
    try:
        yield gatherer
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await link.close_and_wait()


def parse_signed_answer(body: bytes) -> dict[str, str]:
    """Return the signed text of an answer as it was signed, with signature and certificate; BadMessage otherwise."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadMessage("an answer that is no JSON") from error
    if not isinstance(content, dict) or set(content) != set(_SIGNED):
        raise BadMessage("an answer that is not signed")
    if not all(isinstance(text, str) and text.isascii() for text in content.values()):
        raise BadMessage("an answer that is not signed")
    return content


@contextlib.contextmanager
def _reject_false_answers(device: Device) -> Iterator[None]:
    """An answer that cannot be true makes a device unfit, and harms nothing else."""
    try:
        yield
    except (BadMessage, NotAdmitted, ValueError) as error:
        raise DeviceUnfit(f"{device.name}: an answer that is not taken: {error}") from error


def clock_offset(here_ns: int, there_ns: int, took_ns: int) -> tuple[float, float]:
    """Return the clock offset and its half-width, s, from our times of request and answer, and theirs in between."""
    return (there_ns - here_ns - took_ns / 2) / 1e9, took_ns / 2e9
