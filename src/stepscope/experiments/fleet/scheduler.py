"""The scheduler of a fleet: devices wait here for orders, one at a time each; a gatherer orders and gets the answers.

A device is whoever its certificate says. It hears the orders for itself alone, and is heard only as the answer to one;
it can neither order nor learn of another device. What it answers is passed on unread.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import signal
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.experiments.fleet.agent import hold_folder, publish_state, set_event_when_unneeded
from stepscope.experiments.fleet.certificates import (
    DEVICE,
    GATHERER,
    SCHEDULER,
    Identity,
    NotAdmitted,
    tls_context,
    verify_peer,
)
from stepscope.experiments.fleet.protocol import BadMessage, Link

_MOST_CONNECTIONS = 512
_HANDSHAKE_S = 10.0
_MOST_PING_S = 10.0
_GONE = (OSError, BadMessage, NotAdmitted)


def run_scheduler(orders: Mapping[str, Any]) -> None:
    """Run the scheduler until SIGTERM, or until the process `lives_with` has ended.

    orders: folder, host, port, tls (folder), forget_after_s, and lives_with where it is given.
    """
    folder = Path(orders["folder"])
    with hold_folder(folder):
        asyncio.run(_serve_until_signal(folder, orders))


async def _serve_until_signal(folder: Path, orders: Mapping[str, Any]) -> None:
    end = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end.set)
    scheduler = Scheduler(Path(orders["tls"]), float(orders["forget_after_s"]))
    async with scheduler.listening(orders["host"], orders["port"]):
        publish_state(folder, {key: orders[key] for key in ("host", "port", "forget_after_s")})
        watch = asyncio.ensure_future(set_event_when_unneeded(folder, orders.get("lives_with"), end))
        await end.wait()
        watch.cancel()


@dataclass(eq=False)
class _Order:
    """An order of a gatherer, with the number that the gatherer knows it by, and its other orders."""

    gatherer: Link
    others: dict[int, _Order]
    id: int
    do: str
    body: bytes
    cancelled: bool = False

    async def answer(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Answer, if the gatherer is still there and still waits."""
        self.others.pop(self.id, None)
        if not self.cancelled:
            with contextlib.suppress(ConnectionError):
                await self.gatherer.send({"id": self.id, **head}, body)


@dataclass(eq=False)
class _Device:
    """A device that is connected, and the orders that wait for it."""

    link: Link
    holder: Identity
    address: str
    orders: asyncio.Queue[_Order] = field(default_factory=asyncio.Queue)
    current: _Order | None = None
    number: int = 0  # of the order that it is at, as the device knows it
    answer: asyncio.Future[tuple[bool, bytes]] | None = None
    unanswered: int | None = None  # how often it was looked for the answer to the last ping; null: it is there


class Scheduler:
    """The connections of one scheduler. tls: the folder of all certificates; silence of forget_after_s ends one."""

    def __init__(self, tls: Path, forget_after_s: float) -> None:
        self._tls, self._forget_after_s = tls, forget_after_s
        self._ping_s = min(forget_after_s / 3, _MOST_PING_S)
        self._devices: dict[str, _Device] = {}
        self._numbers = itertools.count(1)
        self._connections: set[asyncio.Task[Any]] = set()

    @contextlib.asynccontextmanager
    async def listening(self, host: str, port: int) -> AsyncIterator[None]:
        """Listen while the context lasts; the connections end with it."""
        server = await asyncio.start_server(
            self._handle_connection, host, port, ssl=tls_context(self._tls / SCHEDULER, server=True),
            ssl_handshake_timeout=_HANDSHAKE_S,
        )  # fmt: skip
        try:
            yield
        finally:
            server.close()
            for task in self._connections:
                task.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _handle_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        link = Link(reader, writer)
        try:
            if len(self._connections) <= _MOST_CONNECTIONS:
                await self._serve(link)
        except (*_GONE, asyncio.CancelledError):
            pass  # whoever it was may come again
        finally:
            link.close()
            self._connections.discard(task)

    async def _serve(self, link: Link) -> None:
        holder = verify_peer(self._tls, link.certificate)
        serve = {DEVICE: self._serve_device, GATHERER: self._serve_gatherer}.get(holder.role)
        if serve is None:
            raise NotAdmitted(f"{holder.role} is not a role of a caller")
        await serve(link, holder)

    async def _serve_device(self, link: Link, holder: Identity) -> None:
        """Serve a device until it is gone, silent, no longer admitted, or sends something unrequested."""
        if any(device.holder.name == holder.name for device in self._devices.values()):
            raise NotAdmitted(f"{holder.name} is connected already")
        device = _Device(link, holder, f"{holder.name}#{next(self._numbers)}")
        self._devices[device.address] = device
        parts = [self._receive_answers(device), self._send_orders(device), self._ping_until_lost(device)]
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            await link.send({"hello": DEVICE, "ping_s": self._ping_s})
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._devices[device.address]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while not device.orders.empty():
                await device.orders.get_nowait().answer({"gone": True})
            if device.current is not None:
                await device.current.answer({"gone": True})

    async def _receive_answers(self, device: _Device) -> None:
        while True:
            head, body = await device.link.receive()
            if head.get("pong") and device.unanswered is not None:
                device.unanswered = None
            elif device.answer is not None and head.get("id") == device.number and isinstance(head.get("ok"), bool):
                device.answer.set_result((head["ok"], body))
                device.answer = None
            else:
                raise BadMessage(f"{device.holder.name} answers a request that was not made")

    async def _send_orders(self, device: _Device) -> None:
        """Order after order; an order whose gatherer has gone before it was sent is not sent."""
        while True:
            device.current = order = await device.orders.get()
            if not order.cancelled:
                device.number += 1
                device.answer = answer = asyncio.get_running_loop().create_future()
                await device.link.send({"id": device.number, "do": order.do}, order.body)
                ok, body = await answer
                device.current = None
                await order.answer({"ok": ok}, body)
            device.current = None

    async def _ping_until_lost(self, device: _Device) -> None:
        while True:
            await asyncio.sleep(self._ping_s)
            if verify_peer(self._tls, device.link.certificate) != device.holder:
                raise NotAdmitted(f"{device.holder.name} has another certificate now")
            if device.unanswered is None:
                device.unanswered = 0
                await device.link.send({"ping": True})
                continue
            device.unanswered += 1  # and not by the clock: time in which this process did not listen is no silence
            if device.unanswered * self._ping_s > self._forget_after_s:
                raise ConnectionResetError(f"{device.holder.name} is silent")

    async def _serve_gatherer(self, link: Link, _: Identity) -> None:
        await link.send({"hello": GATHERER})
        orders: dict[int, _Order] = {}
        try:
            while True:
                head, body = await link.receive()
                verify_peer(self._tls, link.certificate)
                cancelled = orders.pop(head["cancel"], None) if "cancel" in head else None
                if cancelled is not None:
                    cancelled.cancelled = True
                elif head.get("do") == "devices":
                    await link.send({"id": head["id"], "ok": True}, self._devices_as_json())
                elif "do" in head:
                    order = orders[head["id"]] = _Order(link, orders, head["id"], head["do"], body)
                    device = self._devices.get(head.get("to", ""))
                    if device is None:
                        await order.answer({"gone": True})
                    else:
                        device.orders.put_nowait(order)
        finally:
            for order in orders.values():
                order.cancelled = True

    def _devices_as_json(self) -> bytes:
        present = [
            {"name": device.holder.name, "board": device.holder.board, "address": device.address}
            for device in self._devices.values()
        ]
        return json.dumps({"devices": present}).encode()
