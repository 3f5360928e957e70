"""A scheduler in this process, and devices that say what a test wants: hostile, slow, dying and lying ones."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.patience import HANG_S

from stepscope import __version__
from stepscope.experiments.fleet.certificates import (
    CA,
    CERTIFICATE,
    DEVICE,
    GATHERER,
    Identity,
    device_public_key,
    issue_or_reuse_certificate,
    keep_certificate,
    make_certificates,
    sign,
)
from stepscope.experiments.fleet.hosts import SchedulerAddress
from stepscope.experiments.fleet.protocol import Link, open_link
from stepscope.experiments.fleet.scheduler import Scheduler

CONTENT = b"what a run holds"
Body = bytes | None  # null: no answer


def json_of(content: object) -> bytes:
    """A body as JSON."""
    return json.dumps(content).encode()


@dataclass
class FakeDevice:
    """A device that answers as an honest one does; what a test changes is a method or an entry of `answers`."""

    folder: Path
    name: str
    board: str
    answers: dict[str, Callable[[dict[str, Any]], Body | Awaitable[Body]]] = field(default_factory=dict)
    heard: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def ended(self, orders: dict[str, Any]) -> dict[str, Any]:
        """The end of a run of one file."""
        file = {"name": "a.txt", "size_bytes": len(CONTENT), "sha256": hashlib.sha256(CONTENT).hexdigest()}
        return {
            "sweep": orders["sweep"], "name": orders["name"], "status": "ok", "reason": None, "wall_s": 0.1,
            "run": None, "cooled": {"waited_s": 0.0, "from_celsius": None, "to_celsius": None, "reached": True},
            "slept_s": 0.0, "disk_full": False, "files": [file],
        }  # fmt: skip

    def signed(self, content: object, key: Path | None = None) -> bytes:
        """A content with the signature of this device, or of another's key."""
        text, own = json.dumps(content), key or self.folder
        signature = base64.b64encode(sign(own, text.encode())).decode()
        return json_of({"signed": text, "signature": signature, "certificate": (own / CERTIFICATE).read_text()})

    def honest(self, do: str, orders: dict[str, Any]) -> bytes:
        """What an honest device answers."""
        if do == "facts":
            facts = {"device": self.facts, "versions": {"stepscope": __version__, **self.versions}}
            return json_of({**facts, "unix_ns": 0, "pid": 1})
        if do == "clock":
            return json_of({"unix_ns": 0})
        if do == "make":
            return self.signed(self.ended(orders))
        return CONTENT if do == "pieces" else json_of(None)

    async def serve(self, url: str) -> None:
        """Until the scheduler ends it."""
        link, _ = await open_link(url, self.folder)
        with contextlib.suppress(ConnectionError), contextlib.closing(link):
            while True:
                head, body = await link.receive()
                if head.get("ping"):
                    await link.send({"pong": True})
                    continue
                self.heard.append(head["do"])
                await self.answer(link, head, json.loads(body))

    async def answer(self, link: Link, head: dict[str, Any], orders: dict[str, Any]) -> None:
        """Answer an order."""
        answer = self.answers.get(head["do"])
        given = self.honest(head["do"], orders) if answer is None else answer(orders)
        body = given if isinstance(given, bytes) or given is None else await given
        if body is not None:
            await link.send({"id": head["id"], "ok": True}, body)


class HostileFleet:
    """A scheduler that listens on loopback in a thread of this process, and devices beside it."""

    def __init__(self, folder: Path) -> None:
        self.tls, self.folder = folder / "tls", folder
        make_certificates(self.tls)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"tls://127.0.0.1:{self.port}"
        self.where = SchedulerAddress(self.url, self.tls / GATHERER)
        self.loop = asyncio.new_event_loop()
        self._ready, self._end = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._started: list[Any] = []

    @contextlib.contextmanager
    def listening(self) -> Iterator[HostileFleet]:
        """Listen while the context lasts."""
        self._thread.start()
        try:
            assert self._ready.wait(HANG_S)
            yield self
        finally:
            self.loop.call_soon_threadsafe(self._end.set)
            self._thread.join(HANG_S)

    def device(self, name: str, board: str = "") -> FakeDevice:
        """A device with its own key, and a certificate for its name and board."""
        own = self.folder / "devices" / name
        own.mkdir(parents=True)
        certificate = issue_or_reuse_certificate(
            self.tls, Identity(DEVICE, name, board or name), device_public_key(own)
        )
        keep_certificate(own, (self.tls / CA).read_text(), certificate)
        return FakeDevice(own, name, board or name)

    def start(self, serving: Any) -> Any:
        """Run a coroutine beside the scheduler."""
        self._started.append(asyncio.run_coroutine_threadsafe(serving, self.loop))  # loops hold tasks weakly
        return self._started[-1]

    def do(self, coroutine: Any) -> Any:
        """Run a coroutine beside the scheduler to its end."""
        return self.start(coroutine).result(HANG_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_until_complete(self._serve())
        self.loop.close()

    async def _serve(self) -> None:
        async with Scheduler(self.tls, forget_after_s=0.6).listening("127.0.0.1", self.port):
            self._ready.set()
            await self._end.wait()
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in others:
                task.cancel()
            await asyncio.wait(others)
