"""The sweeps of a fleet, one a board: each free device makes the next run of its board; one folder gathers them all.

A run which was made is not made again, nothing else goes on beside a run, and a device that goes away, does not answer,
or answers what cannot be true costs no run of another board. A sweep is begun or resumed for all boards at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

import polars as pl

from stepscope.errors import FleetError, OutputNotWritable, RunDamaged, SchemaTooNew, UnknownName, UsageError
from stepscope.experiments.engine.folder import SweepFolder, fact_differences, translate_sweep_write_errors
from stepscope.experiments.engine.process import Outcome
from stepscope.experiments.engine.sweep_points import SweepPoint, WorkloadEntry, find_entries
from stepscope.experiments.fleet.gatherer import (
    Device,
    DeviceInfo,
    DeviceLost,
    DeviceUnfit,
    EndedRun,
    Gatherer,
    OtherVersion,
    SchedulerLost,
    connect,
)
from stepscope.experiments.fleet.hosts import SchedulerAddress, check_name
from stepscope.experiments.fleet.protocol import FleetUnreachable, with_timeout
from stepscope.experiments.fleet.worker import NoRoomForRun, Piece, gather_run, path_inside
from stepscope.experiments.suite import SuiteRun
from stepscope.experiments.suite.best_changes import changes_table
from stepscope.experiments.suite.plan import chosen_entries, comparable_facts, sweep_grid, sweep_plan
from stepscope.experiments.suite.results import results_of_folder, settings_table
from stepscope.experiments.suite.rules import LONGEST_COOLING_S
from stepscope.experiments.suite.sweep import add_cooling_facts, adopt_finished, orders_of, result_of, skip_result
from stepscope.files import replace_json
from stepscope.units import plural

_LOOK_EVERY_S = 0.5
_SLEPT_S = 0.5
_SPARE_S = 120.0
_GATHERED_WITHIN_S = 300.0
_LEAST_BYTES_PER_S = 50_000
_CLOCK_S = 1.0


class FleetIncomplete(FleetError):
    """The sweep is over, and some board has not made all of its runs."""


@dataclass(frozen=True)
class FleetCallbacks:
    """Events of a fleet: a device begins a run, a run of a board has ended, something happened."""

    begins: Callable[[Device, SweepPoint], None] = lambda device, point: None
    ends: Callable[[str, Device, SweepPoint, Mapping[str, Any]], None] = lambda board, device, point, result: None
    says: Callable[[str], None] = lambda line: None


def run_fleet_sweep(
    folder: FleetFolder,
    where: SchedulerAddress,
    child: Sequence[str],
    watch: FleetCallbacks | None = None,
    wait_s: float = 300.0,
) -> None:
    """Make every run that has not ended on a device of its board.

    child: what follows Python in the command of a run. A board of which no device is there for `wait_s` is given up,
    and so is a scheduler; the rest goes on. FleetIncomplete where runs were not made.
    """
    watch = watch or FleetCallbacks()
    with contextlib.ExitStack() as locks:
        for sweep in folder.boards.values():
            locks.enter_context(sweep.locked())
        boards = {name: BoardQueue(name, sweep) for name, sweep in folder.boards.items()}
        asyncio.run(_FleetRunner(folder, boards, tuple(child), watch, wait_s).work(where))
    missing = [f"{name} ({text})" for name, board in boards.items() if (text := board.missing_runs())]
    if missing:
        go_on = f"bring their devices back, then: stepscope suite run --fleet ... --resume --out {folder.path}"
        raise FleetIncomplete(f"these boards have not made all of their runs: {', '.join(missing)}", go_on)


class _FleetRunner:
    """The devices that are there, and what each is doing."""

    def __init__(
        self,
        folder: FleetFolder,
        boards: Mapping[str, BoardQueue],
        child: Sequence[str],
        watch: FleetCallbacks,
        wait_s: float,
    ) -> None:
        self._folder, self._boards, self._child, self._watch, self._wait_s = folder, boards, child, watch, wait_s
        self._at_work: dict[Device, asyncio.Task[None]] = {}
        self._not_used: set[str] = set()  # addresses: who joins again has another one
        self._gone: set[str] = set()
        self._looked_s = monotonic()  # when the scheduler was last asked who is there
        self._seen_s = dict.fromkeys(boards, self._looked_s)  # when a device of the board was last there
        self._answered = False

    async def work(self, where: SchedulerAddress) -> None:
        """Until nothing is left, or nobody to do it; a scheduler that was there and goes away is waited for."""
        while self._has_work_left():
            try:
                async with connect(where) as gatherer:
                    if not self._answered:
                        self._answered, self._looked_s = True, monotonic()
                        self._seen_s = dict.fromkeys(self._boards, self._looked_s)
                    await self._run_connected(gatherer)
            except (FleetUnreachable, SchedulerLost) as error:
                if not self._answered:
                    raise
                self._looked_s = monotonic()
                self._watch.says(f"{error}; waiting for it")
                await asyncio.sleep(_LOOK_EVERY_S)

    async def _run_connected(self, gatherer: Gatherer) -> None:
        try:
            while self._has_work_left():
                there = await gatherer.devices()
                await self._cancel_devices(
                    [device for device in self._at_work if device not in there], counts_as_try=True
                )
                self._assign_devices(gatherer, there)
                ended = await _wait_for_first(self._at_work.values())
                for device in [device for device, task in self._at_work.items() if task in ended]:
                    self._at_work.pop(device).result()  # what went wrong here, not there, ends the sweep
        finally:
            await self._cancel_devices(list(self._at_work), counts_as_try=False)

    def _assign_devices(self, gatherer: Gatherer, there: Sequence[Device]) -> None:
        self._looked_s = monotonic()
        for device in there:
            board = self._boards.get(device.board)
            if board is None or device.address in self._not_used:
                continue
            self._seen_s[device.board] = self._looked_s
            if board.waiting and device not in self._at_work:
                self._at_work[device] = asyncio.create_task(self._run_board_on_device(gatherer, device, board))

    def _has_work_left(self) -> bool:
        """Return whether something is left to do for a board that is there, or was a short while ago."""
        since, at_work = self._looked_s - self._wait_s, {device.board for device in self._at_work}
        return any(
            board.remaining() and (name in at_work or self._seen_s[name] >= since)
            for name, board in self._boards.items()
        )

    async def _cancel_devices(self, devices: Sequence[Device], counts_as_try: bool) -> None:
        """No longer wait for these; where they are no longer there, what they were at `counts_as_try`."""
        tasks = [self._at_work.pop(device) for device in devices]
        if counts_as_try:
            self._gone |= {device.address for device in devices}
        for task in tasks:
            task.cancel()
        for answer in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(answer, Exception) and not isinstance(answer, SchedulerLost):
                raise answer

    async def _run_board_on_device(self, gatherer: Gatherer, device: Device, board: BoardQueue) -> None:
        """Run after run, as long as its board has some waiting."""
        try:
            met = await gatherer.query_device_info(device, _answer_timeout_s(board))
            self._folder.record_board(device, met.about)
            if abs(met.offset_s) > _CLOCK_S + met.within_s:
                self._watch.says(
                    f"{device.name}: its clock is {met.offset_s:+.1f} s from ours; no result depends on it"
                )
            while board.waiting:
                await self._make_next_run(gatherer, device, board, met)
        except (OtherVersion, DeviceUnfit) as error:
            self._not_used.add(device.address)
            self._watch.says(f"not used any more: {error}")
        except DeviceLost as error:
            self._watch.says(str(error))

    async def _make_next_run(self, gatherer: Gatherer, device: Device, board: BoardQueue, met: DeviceInfo) -> None:
        """The run that is first in the line; it waits again unless it ends."""
        point = board.waiting.popleft()
        try:
            before = board.order[: board.order.index(point)]
            result = skip_result(point, before, board.ended) or adopt_finished(board.sweep, point)
            if result is None:
                self._watch.begins(device, point)
                result = await self._run_and_fetch(gatherer, device, board, point, met)
            board.record_result(point, result)
        except BaseException as error:
            why = self._loss_reason(device, error)
            result = None if why is None else board.count_failure(point, why)
            if result is None:
                board.waiting.appendleft(point)
            else:
                board.record_result(point, result)
                self._watch.ends(board.name, device, point, result)
            if not isinstance(error, RunDamaged):
                raise
            self._watch.says(f"{device.name}: {error}")
            if result is None and board.tries[point.id] == 1:
                return  # the device still has the run: it is fetched once more before it is made anew
        else:
            self._watch.ends(board.name, device, point, result)
        await gatherer.forget(device, self._folder.id, point.id)

    def _loss_reason(self, device: Device, error: BaseException) -> str | None:
        """Return why this counts as a try; None where the run can do nothing for it."""
        if isinstance(error, asyncio.CancelledError):
            return f"{device.name} went away" if device.address in self._gone else None
        return str(error) if isinstance(error, (DeviceLost, RunDamaged)) else None

    async def _run_and_fetch(
        self, gatherer: Gatherer, device: Device, board: BoardQueue, point: SweepPoint, met: DeviceInfo
    ) -> dict[str, Any]:
        """Have it made, and bring it home."""
        plan, name = board.sweep.plan, (self._folder.id, point.id)
        orders: dict[str, Any] = {
            "child": list(self._child),
            "spec": orders_of(point, plan["rules"]),
            "source": _script_text(board, point),
        }
        ended_run = await gatherer.request_run(device, _answer_timeout_s(board), *name, **orders)
        if ended_run.ended["disk_full"]:
            with contextlib.suppress(DeviceLost):
                await gatherer.forget(device, *name)
            raise DeviceUnfit(f"{device.name}: its disk is full")
        try:
            result = await self._fetch_run_files(gatherer, device, board, point, ended_run)
        except (OutputNotWritable, RunDamaged, DeviceLost, DeviceUnfit, SchedulerLost):
            raise
        except Exception as error:  # of what the device sent: it ends no other board's runs
            raise RunDamaged(f"a run of {device.name} cannot be read: {type(error).__name__}: {error}") from error
        clock, slept_s = {"offset_s": met.offset_s, "within_s": met.within_s}, ended_run.ended["slept_s"]
        slept = [f"the device slept for {slept_s:.1f} s in its midst"] if slept_s > _SLEPT_S else []
        return {**result, "flags": [*result.get("flags", []), *slept], "made_by": device.name, "clock": clock}

    async def _fetch_run_files(
        self, gatherer: Gatherer, device: Device, board: BoardQueue, point: SweepPoint, ended_run: EndedRun
    ) -> dict[str, Any]:
        """Fetch the files that the device has signed for, and keep what it signed."""
        ended, where = ended_run.ended, board.sweep.run_folder(point)

        async def fetch(pieces: Sequence[Piece]) -> Sequence[bytes]:
            return await gatherer.fetch_file_pieces(device, self._folder.id, point.id, pieces)

        offered_bytes = sum(file["size_bytes"] for file in ended["files"])
        within_s = _GATHERED_WITHIN_S + offered_bytes / _LEAST_BYTES_PER_S
        try:
            await with_timeout(gather_run(board.sweep, where, ended["files"], fetch), within_s)
        except NoRoomForRun as error:
            raise DeviceUnfit(f"{device.name}: {error}, and it stays on the device") from error
        except asyncio.TimeoutError as error:
            raise DeviceUnfit(f"{device.name}: its files did not come within {within_s:.0f} s") from error
        signatures = board.sweep.path / "signatures"
        with translate_sweep_write_errors(board.sweep.path):
            signatures.mkdir(exist_ok=True)
            replace_json(signatures / f"{point.id}.json", dict(ended_run.signed), durable=True)
        run = None if ended["run"] is None else path_inside(where, ended["run"])
        outcome = Outcome(ended["status"], ended["reason"], run, ended["wall_s"])
        return add_cooling_facts(await asyncio.to_thread(result_of, board.sweep, point, outcome), ended["cooled"])


def _answer_timeout_s(board: BoardQueue) -> float:
    """How long a device may be silent about an order: a run of before it, its own, and their pauses, s."""
    rules = board.sweep.plan.get("rules") or {}
    return 2 * (float(rules.get("time_limit_s", 0)) + float(rules.get("pause_s", 0)) + LONGEST_COOLING_S) + _SPARE_S


def _script_text(board: BoardQueue, point: SweepPoint) -> str | None:
    """The text of a workload that is a file of the user's own: the devices do not have it."""
    path = point.workload.rpartition(":")[0]
    if not path.endswith(".py"):
        return None
    name = str(board.sweep.plan["workloads"][point.workload]["source"])
    return (board.sweep.path / "sources" / name).read_text(encoding="utf-8")


async def _wait_for_first(tasks: Collection[asyncio.Task[None]]) -> set[asyncio.Task[None]]:
    """Those that have ended when the first does, or none after a short while."""
    if not tasks:
        await asyncio.sleep(_LOOK_EVERY_S)
        return set()
    ended, _ = await asyncio.wait(tasks, timeout=_LOOK_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
    return ended


LOST = "lost"  # the run was begun, and its device went away, each time
TRIES = 3


class BoardQueue:
    """Work to do for one board; runs that were lost in an earlier sweep are made anew."""

    def __init__(self, name: str, sweep: SweepFolder) -> None:
        self.name, self.sweep, self.order = name, sweep, sweep.order
        self.ended = {id_: result for id_, result in sweep.results().items() if result.get("status") != LOST}
        self.waiting = deque(point for point in self.order if point.id not in self.ended)
        self.tries: Counter[str] = Counter()  # that came to nothing, by run

    def remaining(self) -> list[SweepPoint]:
        """Return the runs that have not ended, waiting or under way."""
        return [point for point in self.order if point.id not in self.ended]

    def missing_runs(self) -> str:
        """Return what this board has not brought home, in words; empty where nothing is missing."""
        lost = sum(result["status"] == LOST for result in self.ended.values())
        counts = ((len(self.remaining()), "not made"), (lost, LOST))
        return ", ".join(f"{plural(count, 'run')} {how}" for count, how in counts if count)

    def record_result(self, point: SweepPoint, result: Mapping[str, Any]) -> None:
        """Write down what became of it."""
        self.sweep.store_result(point.id, dict(result))
        self.ended[point.id] = dict(result)

    def count_failure(self, point: SweepPoint, why: str) -> dict[str, Any] | None:
        """Count a try that came to nothing; the result after the last one, None while there are more."""
        self.tries[point.id] += 1
        if self.tries[point.id] < TRIES:
            return None
        return {
            "point": point.to_dict(),
            "status": LOST,
            "reason": f"tried {TRIES} times: {why}",
            "wall_s": None,
            "ended_unix_ms": time.time_ns() // 1_000_000,
            "run": None,
        }


# fleet.json                  which boards, and the name under which devices keep the runs of this sweep
# boards/<board>/sweep.json   and all else of a sweep (engine/folder.py)

FLEET_SCHEMA = 1
_FLEET_FILE = "fleet.json"


class FleetFolder:
    """The folder of the sweeps of one fleet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        content = _read_fleet(path)
        self.id = str(content["id"])
        self.boards = {board: SweepFolder(path / "boards" / board) for board in content["boards"]}

    @classmethod
    def create(
        cls, path: Path, boards: Sequence[str], plan: Mapping[str, Any], entries: Sequence[WorkloadEntry]
    ) -> FleetFolder:
        """Begin a sweep; refused where there is one. Device and versions are noted when a board is first met."""
        if is_fleet(path) or (path / "sweep.json").exists():
            go_on = f"go on with it: stepscope suite run --fleet ... --resume --out {path}"
            raise UsageError(f"'{path}' holds a sweep already", go_on)
        for board in boards:
            own = {**plan, "name": f"{plan['name']} on {board}", "device": {}, "versions": {}}
            SweepFolder.create(path / "boards" / check_name("board", board), own, entries)
        with translate_sweep_write_errors(path):
            fleet = {"schema": FLEET_SCHEMA, "id": secrets.token_hex(8), "boards": list(boards)}
            replace_json(path / _FLEET_FILE, fleet, durable=True)
        return cls(path)

    def record_board(self, device: Device, about: Mapping[str, Any]) -> None:
        """Write down what a board is, the first time that one is met; OtherVersion where this device is another."""
        sweep = self.boards[device.board]
        if not sweep.plan["device"]:
            sweep.plan.update(device=about["device"], versions=about["versions"])
            with translate_sweep_write_errors(self.path):
                replace_json(sweep.path / "sweep.json", sweep.plan, durable=True)
        differences = [
            f"{name} {there}, and its runs so far were made with {before}"
            for name, before, there in fact_differences(comparable_facts(sweep.plan), comparable_facts(about))
        ]
        if differences:
            hint = "one table is of one kind of device: give it another board in hosts.toml, or the same versions"
            raise OtherVersion(f"{device.name}, of the board {device.board}, has {'; '.join(differences)}", hint)


def is_fleet(path: Path) -> bool:
    """Return whether a folder holds the sweeps of a fleet."""
    return (path / _FLEET_FILE).exists()


def _read_fleet(path: Path) -> dict[str, Any]:
    try:
        content = json.loads((path / _FLEET_FILE).read_text(encoding="utf-8"))
        schema, boards = content["schema"], content["boards"]
    except FileNotFoundError:
        raise UsageError(f"there is no sweep of a fleet in '{path}'", "begin one: leave --resume out") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunDamaged(f"'{path / _FLEET_FILE}' cannot be read: {error}") from error
    if schema > FLEET_SCHEMA:
        raise SchemaTooNew(
            f"'{path}' has schema {schema}; this Stepscope reads up to {FLEET_SCHEMA}", "update stepscope"
        )
    for board in boards:
        check_name("board", board)
    return dict(content)


def fleet_results(folder: FleetFolder) -> pl.DataFrame:
    """A row for each setting and board: `board`, then the columns of a sweep's table (suite/results.py)."""
    frames = [
        settings_table(results_of_folder(sweep)).select(pl.lit(board).alias("board"), pl.all())
        for board, sweep in folder.boards.items()
    ]
    return pl.concat(frames).sort("workload", "precision", "optimizer", "threads", "device", "batch", "board")


def fleet_changes(folder: FleetFolder) -> pl.DataFrame:
    """A row for each tuned setting and board: `board`, then the columns of suite/best_changes.py."""
    frames = [
        changes_table(results_of_folder(sweep)).select(pl.lit(board).alias("board"), pl.all())
        for board, sweep in folder.boards.items()
    ]
    return pl.concat(frames).sort("workload", "precision", "optimizer", "threads", "device", "batch", "board")


def new_fleet(request: SuiteRun, out: Path, where: SchedulerAddress, says: Callable[[str], None]) -> FleetFolder:
    """Begin a sweep on each board; duplicate requests are reported."""
    axes, entries = sweep_grid(request, here=False), chosen_entries(request)
    twice = axes.duplicates(entries)
    if twice:
        says(f"{twice} settings were given more than once: each is run once")
    boards = _chosen_boards(request.boards, where)
    return FleetFolder.create(out, boards, sweep_plan(request, entries, axes, out.name, here=False), entries)


def resume_fleet(request: SuiteRun, out: Path) -> FleetFolder:
    """Resume a sweep as it was begun, with all its boards or those named; refused where a workload has changed."""
    if request.given_options:
        hint = "leave out all but --fleet, --boards, --resume and --out"
        raise UsageError("a fleet's sweep goes on as it was begun", hint)
    folder = FleetFolder(out)
    for name in request.boards or ():
        if name not in folder.boards:
            raise UnknownName("board", name, folder.boards)
    folder.boards = {name: folder.boards[name] for name in request.boards or folder.boards}
    for sweep in folder.boards.values():
        sweep.refuse_programs_of_others()
    names = list(next(iter(folder.boards.values())).plan["workloads"])
    now = find_entries(names)
    for sweep in folder.boards.values():
        sweep.refuse_changes(now)
    return folder


async def _connected_devices(where: SchedulerAddress) -> list[Device]:
    async with connect(where) as gatherer:
        return await gatherer.devices()


def _chosen_boards(named: Sequence[str] | None, where: SchedulerAddress) -> Sequence[str]:
    """Return the boards of hosts.toml, or those that the scheduler knows now, restricted to the requested ones."""
    there = list(dict.fromkeys(device.board for device in asyncio.run(_connected_devices(where))))
    boards = there if where.hosts is None else where.hosts.boards
    if not boards:
        raise UsageError(
            f"the scheduler at {where.url} knows no device", "start workers: stepscope fleet up hosts.toml"
        )
    requested = named or tuple(boards)
    for name in requested:
        if name not in boards:
            raise UnknownName("board", name, boards)
    return list(dict.fromkeys(requested))
