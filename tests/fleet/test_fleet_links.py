"""Connections of a fleet end when they are told to, and last as long as the other end answers."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from pathlib import Path
from typing import Any, cast

import pytest
from tests.fleet.hostile_fleet import HostileFleet
from tests.patience import until

from stepscope.experiments.fleet.protocol import Link, open_link, with_timeout

MESSAGE = struct.pack("!II", 14, 3) + b'{"pong": true}' + b"abc"


@pytest.mark.parametrize("turns", range(8))
def test_who_is_told_to_end_ends_also_in_the_moment_in_which_a_message_comes(turns: int) -> None:
    """Before Python 3.12, asyncio.wait_for returns the message then, and whoever hears messages goes on for ever."""

    async def heard() -> bool:
        reader = asyncio.StreamReader()
        hearing = asyncio.ensure_future(Link(reader, cast(Any, None)).receive())
        await asyncio.sleep(0)
        reader.feed_data(MESSAGE[:12])
        for _ in range(8):
            await asyncio.sleep(0)
        reader.feed_data(MESSAGE[12:])
        for _ in range(turns):
            await asyncio.sleep(0)
        if hearing.done():
            return hearing.result() == ({"pong": True}, b"abc")
        hearing.cancel()
        await asyncio.wait({hearing})
        return hearing.cancelled()

    assert asyncio.run(heard())


def test_what_comes_in_time_is_returned_and_what_does_not_is_ended() -> None:
    async def tried() -> None:
        assert await with_timeout(asyncio.sleep(0, "result"), 60.0) == "result"
        with pytest.raises(ZeroDivisionError):
            await with_timeout(_failing(), 60.0)
        late = asyncio.ensure_future(asyncio.sleep(60))
        with pytest.raises(asyncio.TimeoutError):
            await with_timeout(late, 0.0)
        assert late.cancelled()

    asyncio.run(tried())


async def _failing() -> None:
    await asyncio.sleep(0)
    raise ZeroDivisionError


def test_time_in_which_the_scheduler_did_not_listen_is_no_silence_of_a_device(tmp_path: Path) -> None:
    stalls: list[Any] = []

    async def serve(url: str, folder: Path) -> None:
        link, _ = await open_link(url, folder)
        with contextlib.closing(link):
            while True:
                head, _ = await link.receive()
                if not stalls:
                    time.sleep(1.0)  # the whole process, with the scheduler in it, between a ping and its answer
                stalls.append(head)
                await link.send({"pong": True})

    with HostileFleet(tmp_path / "fleet").listening() as fleet:
        serving = fleet.start(serve(fleet.url, fleet.device("good").folder))
        until(lambda: serving.done() or len(stalls) > 2)
        assert not serving.done()
