"""The sweeps of a fleet: each free device makes the next run of its board, and what it leaves is gathered at once.

Dask carries, watches and restarts; here is only what it cannot know: that a run which was made is not made again,
that nothing else goes on beside a run, and when to give up.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stepscope.errors import OutputNotWritable, RunDamaged, StepscopeError
from stepscope.studies.fleet import on_device
from stepscope.studies.fleet.address import FleetUnreachable, Reach, connected
from stepscope.studies.fleet.board import Board
from stepscope.studies.fleet.device import Device, DeviceLost, Met, OtherVersion, ask, meet, present
from stepscope.studies.fleet.folder import FleetFolder
from stepscope.studies.fleet.gather import Piece, gather
from stepscope.studies.suite.grid import Point
from stepscope.studies.suite.run_one import Outcome
from stepscope.studies.suite.sweep import adopted, result_of, skipped, with_cooling

if TYPE_CHECKING:
    from distributed import Client

_LOOK_EVERY_S = 0.5
_SLEPT_S = 0.5
_CLOCK_S = 1.0


class FleetIncomplete(StepscopeError):
    """The sweep is over, and some board has not made all of its runs."""


@dataclass(frozen=True)
class FleetWatch:
    """What a fleet tells: a device begins a run, a run of a board has ended, something happened."""

    begins: Callable[[Device, Point], None] = lambda device, point: None
    ends: Callable[[str, Device | None, Point, Mapping[str, Any]], None] = lambda board, device, point, result: None
    says: Callable[[str], None] = lambda line: None


def fleet_sweep(
    folder: FleetFolder, where: Reach, child: Sequence[str], watch: FleetWatch | None = None, wait_s: float = 300.0
) -> None:
    """Make every run that has not ended on a device of its board.

    child: what follows Python in the command of a run. A board of which no device is there for `wait_s` is given up,
    and so is a scheduler; the rest goes on. FleetIncomplete where runs were not made.
    """
    watch = watch or FleetWatch()
    with contextlib.ExitStack() as locks:
        for sweep in folder.boards.values():
            locks.enter_context(sweep.locked())
        boards = {name: Board(name, sweep) for name, sweep in folder.boards.items()}
        asyncio.run(_Crew(folder, boards, tuple(child), watch, wait_s).work(where))
    left = {name: len(board.left()) for name, board in boards.items() if board.left()}
    if left:
        said = ", ".join(f"{name} ({count} runs not made)" for name, count in left.items())
        go_on = f"bring them back, then: stepscope suite run --fleet ... --resume --out {folder.path}"
        raise FleetIncomplete(f"no device of these boards is there any more: {said}", go_on)


class _Crew:
    """Who is there, and what each is doing."""

    def __init__(
        self, folder: FleetFolder, boards: Mapping[str, Board], child: Sequence[str], watch: FleetWatch, wait_s: float
    ) -> None:
        self._folder, self._boards, self._child, self._watch, self._wait_s = folder, boards, child, watch, wait_s
        self._at_work: dict[Device, asyncio.Task[None]] = {}
        self._refused: set[str] = set()
        self._seen_s = dict.fromkeys(boards, time.monotonic())  # when a device of the board was last there

    async def work(self, where: Reach) -> None:
        """Until nothing is left, or nobody to do it; a scheduler that goes away is waited for."""
        answered_s = time.monotonic()
        while self._goes_on():
            try:
                async with connected(where) as client:
                    await self._connected(client)
                return
            except (FleetUnreachable, OSError) as error:
                if isinstance(error, OutputNotWritable):
                    raise
                answered_s = max(answered_s, *self._seen_s.values())
                if time.monotonic() - answered_s > self._wait_s:
                    raise
                self._watch.says(f"{error}; waiting for it")
                await asyncio.sleep(_LOOK_EVERY_S)
            finally:
                await self._leave(list(self._at_work))

    async def _connected(self, client: Client) -> None:
        while self._goes_on():
            there = await asyncio.wait_for(present(client), 30)
            now = time.monotonic()
            for device in there:
                self._seen_s[device.board] = now
            await self._leave([device for device in self._at_work if device not in there])
            for device in there:
                if device.board in self._boards and device.address not in self._refused and self._is_wanted(device):
                    self._at_work[device] = asyncio.create_task(self._serve(client, device))
            if self._at_work:
                ended, _ = await asyncio.wait(
                    self._at_work.values(), timeout=_LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED
                )
                self._raise_from(ended)
            else:
                await asyncio.sleep(_LOOK_EVERY_S)

    def _is_wanted(self, device: Device) -> bool:
        return device not in self._at_work and bool(self._boards[device.board].waiting)

    def _goes_on(self) -> bool:
        """Whether something is left to do for a board that is there, or was a short while ago."""
        now = time.monotonic()
        return any(board.left() and now - self._seen_s[name] <= self._wait_s for name, board in self._boards.items())

    async def _leave(self, devices: Sequence[Device]) -> None:
        """No longer wait for these."""
        tasks = [self._at_work.pop(device) for device in devices]
        for task in tasks:
            task.cancel()
        for answer in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(answer, Exception):
                raise answer

    def _raise_from(self, ended: set[asyncio.Task[None]]) -> None:
        """The device of a task that has ended is free again; what went wrong here, not there, ends the sweep."""
        for device in [device for device, task in self._at_work.items() if task in ended]:
            self._at_work.pop(device).result()

    async def _serve(self, client: Client, device: Device) -> None:
        """Run after run, as long as this board has some waiting."""
        board = self._boards[device.board]
        try:
            met = await self._meet(client, device)
            while board.waiting:
                await self._next(client, device, board, met)
        except OtherVersion as error:
            self._refused.add(device.address)
            self._watch.says(f"not used: {error}")
        except DeviceLost as error:
            self._watch.says(str(error))

    async def _meet(self, client: Client, device: Device) -> Met:
        met = await meet(client, device)
        self._folder.meet(device.board, met.about)
        if abs(met.offset_s) > _CLOCK_S + met.within_s:
            self._watch.says(f"{device.name}: its clock is {met.offset_s:+.1f} s from ours (nothing depends on it)")
        return met

    async def _next(self, client: Client, device: Device, board: Board, met: Met) -> None:
        point = board.take()
        done = False
        try:
            result = skipped(point, board.before(point), board.ended) or adopted(board.sweep, point)
            if result is None:
                self._watch.begins(device, point)
                result = await self._run(client, device, board, point, met)
            self._end(board, device, point, result)
            done = True
            with contextlib.suppress(DeviceLost):  # it is here, and what stays there does no harm
                await ask(client, device, on_device.forget, self._folder.id, point.id)
        except (DeviceLost, RunDamaged) as error:
            if board.failed(point) is not None and not done:
                self._end(board, device, point, board.lost(point, str(error)))
            if isinstance(error, DeviceLost):
                raise
            self._watch.says(f"{device.name}: {error}")
        except asyncio.CancelledError:  # it has gone, or we are ending
            if not done and device in self._gone():
                pass
            raise
        finally:
            if not done:
                board.give_back(point)
