"""Messages of a fleet: data alone, each of bounded size, between peers that TLS has told apart.

A message is two sizes (4 bytes each, big-endian), a JSON object that is the head, and a body of bytes. Nothing in it is
ever imported, evaluated or unpickled. Bodies of orders are JSON; bodies of answers are JSON, or the pieces of files.

scheduler -> device      {id, do} with arguments            device -> scheduler      {id, ok} with the answer
                         {ping}                                                      {pong}
gatherer -> scheduler    {id, do, to} with arguments        scheduler -> gatherer    {id, ok} with the answer
                         {id, do: "devices"}, {cancel: id}                           {id, gone}: the device went away
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import struct
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from stepscope.errors import FleetError
from stepscope.experiments.fleet.certificates import SCHEDULER, tls_context
from stepscope.runfolder.validation import Fields, IntegerRange, parse

MOST_HEAD_BYTES = 4096
MOST_BODY_BYTES = 8 << 20
_STALL_S = 60.0  # for the rest of a message that has begun, and until a peer has taken one
_TRY_S = 10.0
_SIZES = struct.Struct("!II")
_ID = IntegerRange(0, 1 << 53)
_HEAD = {
    **dict.fromkeys(("id", "cancel"), _ID),
    **dict.fromkeys(("do", "to", "hello"), str),
    **dict.fromkeys(("ok", "ping", "pong", "gone"), bool),
    "ping_s": float,
}
Head = dict[str, Any]
_Result = TypeVar("_Result")


class BadMessage(Exception):
    """A peer sent what is no message, or one that is too large or not awaited: the connection ends."""


class FleetUnreachable(FleetError):
    """The scheduler of the fleet does not answer, or not to us."""


async def with_timeout(awaitable: Awaitable[_Result], seconds: float | None) -> _Result:
    """Return what is awaited, or raise asyncio.TimeoutError after so many seconds (null: never).

    Unlike asyncio.wait_for before Python 3.12, which drops a cancellation that comes in the moment of the result: who
    has cancelled such a task then waits for ever for its end.
    """
    task = asyncio.ensure_future(awaitable)
    try:
        await asyncio.wait({task}, timeout=seconds)
    finally:
        task.cancel()
        await asyncio.wait({task})
    if task.cancelled():
        raise asyncio.TimeoutError
    return task.result()


class Link:
    """One end of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._sending = asyncio.Lock()

    @property
    def certificate(self) -> bytes:
        """The certificate that the peer has shown (DER)."""
        try:
            der: bytes | None = self._writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        except AttributeError as error:  # asyncio has taken the connection apart
            raise ConnectionResetError("the peer is gone") from error
        if der is None:
            raise BadMessage("a peer without a certificate")
        return der

    async def send(self, head: Mapping[str, Any], body: bytes = b"") -> None:
        """Send a message; ConnectionError where the peer is gone or does not take it."""
        text = json.dumps(head).encode()
        async with self._sending:
            self._writer.writelines([_SIZES.pack(len(text), len(body)), text, body])
            try:
                await with_timeout(self._writer.drain(), _STALL_S)
            except (OSError, asyncio.TimeoutError) as error:
                self.close()
                raise ConnectionResetError("the peer takes no message") from error

    async def receive(self, idle_s: float | None = None) -> tuple[Head, bytes]:
        """Return the next message; ConnectionError where there is none (within idle_s), BadMessage where it is bad."""
        try:
            sizes = await with_timeout(self._reader.readexactly(_SIZES.size), idle_s)
            head_bytes, body_bytes = _SIZES.unpack(sizes)
            if head_bytes > MOST_HEAD_BYTES or body_bytes > MOST_BODY_BYTES:
                raise BadMessage(f"a message of {head_bytes + body_bytes:,} bytes")
            content = await with_timeout(self._reader.readexactly(head_bytes + body_bytes), _STALL_S)
            head, dropped = parse(content[:head_bytes], _HEAD)
        except (OSError, EOFError, asyncio.TimeoutError) as error:
            raise ConnectionResetError("the peer is gone, or slow") from error
        except ValueError as error:
            raise BadMessage(f"a head that is no JSON: {error}") from error
        if not isinstance(head, dict) or dropped:
            raise BadMessage("a head with other fields")
        return head, content[head_bytes:]

    def close(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()

    async def close_and_wait(self) -> None:
        """End the connection, and wait until it is."""
        self._writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await with_timeout(self._writer.wait_closed(), 1.0)


async def open_link(url: str, tls: Path) -> tuple[Link, Head]:
    """Connect to the scheduler as the holder of a folder; FleetUnreachable where it does not answer, or not to us."""
    parts, context = urlsplit(url), tls_context(tls)
    try:
        opened = asyncio.open_connection(parts.hostname, parts.port, ssl=context, server_hostname=SCHEDULER)
        link = Link(*await with_timeout(opened, _TRY_S))
    except (OSError, asyncio.TimeoutError) as error:
        raise _unreachable_error(url, error) from error
    try:
        hello, _ = await link.receive(_TRY_S)  # with TLS 1.3 a refusal comes after the handshake
    except (OSError, BadMessage) as error:
        link.close()
        raise _unreachable_error(url, error.__cause__ or error, refused=True) from error
    return link, hello


def _unreachable_error(url: str, error: BaseException, refused: bool = False) -> FleetUnreachable:
    if refused or isinstance(error, ssl.SSLError):
        hint = "scheduler, devices and gatherer need certificates of one authority: stepscope fleet up makes them"
        reason = str(error) or type(error).__name__
        return FleetUnreachable(f"the scheduler at {url} does not take this TLS material: {reason}", hint)
    reason = str(error) or type(error).__name__
    return FleetUnreachable(f"no scheduler answers at {url}: {reason}", "start it: stepscope fleet up hosts.toml")


def parse_message(
    body: bytes, shape: Mapping[Any, Any], needs: tuple[str, ...], strict: bool = False
) -> dict[str, Any]:
    """Return what of the JSON of a body has this shape; BadMessage without these keys, and if strict for any other."""
    try:
        content, dropped = parse(body, Fields(dict(shape), needs))
    except ValueError as error:
        raise BadMessage(f"an answer that is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise BadMessage(f"an answer without {', '.join(needs)}")
    if strict and dropped:
        raise BadMessage(f"an answer with {dropped[0]} that cannot be")
    return content
