"""The files of a run folder that grows: JSON that is replaced, rows that are appended, and runs that appear."""

from __future__ import annotations

import contextlib
import json
import math
import os
import struct
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from stepscope.files import read_json_object
from stepscope.liveness import is_process_of_run_alive
from stepscope.part_names import STEPS, parts_in_use, parts_of_stem, rows_file_name
from stepscope.quantities import find_quantity
from stepscope.run_paths import newest_runs, run_folders


class JsonFile:
    """One JSON file: its object, empty where there is none; `changed` tells whether the last `look` read it anew."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self.content: dict[str, Any] = {}

    def reload_if_changed(self) -> bool:
        """Read it if it has been replaced; True where the content is new."""
        try:
            state = self._path.stat()
            if (state.st_mtime_ns, state.st_ino) == self._seen:
                return False
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return False
        self._seen = (state.st_mtime_ns, state.st_ino)
        self.content = content if isinstance(content, dict) else {}
        return True


def status_from_header(header: dict[str, Any], run: Path) -> str:
    """running, ok, failed, oom or interrupted; a running run whose training process is gone is "interrupted"."""
    status, pid = str(header.get("status", "interrupted")), header.get("pid")  # no pid so far: not known yet
    return (
        "interrupted" if status == "running" and not (pid is None or is_process_of_run_alive(header, run)) else status
    )


def planned_steps(header: dict[str, Any]) -> int | None:
    """Return how many steps the run is going to have; None where nobody knows, as of a script."""
    workload = header.get("workload")
    stated = header.get("planned_steps") or (workload.get("steps") if isinstance(workload, dict) else None)
    if isinstance(stated, int):
        return stated
    words = header.get("argv")
    argv = [str(word) for word in words] if isinstance(words, list) else []
    if not argv or "stepscope" not in Path(argv[0]).parts[-2:]:
        return None  # the words of another program: its --steps may count anything
    if "--" in argv:
        argv = argv[: argv.index("--")]
    for at, word in enumerate(argv):
        name, _, value = word.partition("=")
        text = value or (argv[at + 1] if at + 1 < len(argv) else "")
        if name == "--steps" and text.isdigit():
            return int(text)
    return None


_LOOK_EVERY_S = 0.5


def wait_for(
    find_run: Callable[[], Path | None], given_up: Callable[[], bool], sleep: Callable[[float], None] = time.sleep
) -> Path | None:
    """The first run that is found, looked for twice a second; None once `given_up`."""
    while True:
        is_over = given_up()  # before the last look, which sees all that was there then
        run = find_run()
        if run is not None or is_over:
            return run
        sleep(_LOOK_EVERY_S)


def newest_running(runs: Path) -> Path | None:
    """The newest run below a folder that is still going on."""
    running = (
        run
        for run, header in _runs_with_headers(runs)
        if header.get("status") == "running" and status_from_header(header, run) == "running"
    )
    return next(running, None)


def find_run_of_process(runs: Path, pid: int, since_ns: int) -> Path | None:
    """The newest run below a folder that this process has begun since then, monotonic ns."""
    own = (
        (run, header.get("clock"))
        for run, header in _runs_with_headers(runs)
        if pid in (header.get("pid"), header.get("launcher_pid"))
    )
    begun = ((run, clock.get("monotonic_ns")) for run, clock in own if isinstance(clock, dict))
    return next((run for run, t_ns in begun if isinstance(t_ns, int) and t_ns >= since_ns), None)


def _runs_with_headers(runs: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every run with its run.json, the newest first."""
    folders = run_folders(runs)
    for folder in reversed(newest_runs(folders, len(folders))):
        if header := read_json_object(folder / "run.json"):  # else it is being replaced, or foreign: looked at again
            yield folder, header


_FIRST_LOOK_BYTES = 65_536  # of a run that has gone on for long, only its end is of interest
_MOST_BYTES = 1_048_576  # a look


class RowTail:
    """Rows of one struct, part after part; the file may come later, and once open it is read even without its name."""

    def __init__(self, path: Path, row: struct.Struct) -> None:
        self._path, self._row = path, row
        self._stem = path.name.removesuffix(".rows")
        self._number = -1  # of the part that is open
        self._file: int | None = None
        self._at = 0

    @property
    def is_open(self) -> bool:
        return self._file is not None

    def read_new_rows(self) -> Iterator[tuple[Any, ...]]:
        """The rows since the last call; of a long file that is seen first, those at its end."""
        if not self._open():
            return iter(())
        assert self._file is not None
        size, row = os.fstat(self._file).st_size, self._row.size
        most = _MOST_BYTES if self._at else _FIRST_LOOK_BYTES
        end = size - size % row
        begin = max(self._at, end - most // row * row)
        if end <= begin:
            if self._newest() > self._number:
                self.close()
                self._at = 0
            return iter(())
        data = os.pread(self._file, end - begin, begin)
        self._at = begin + len(data) - len(data) % row
        return self._row.iter_unpack(data[: len(data) - len(data) % row])

    def first(self) -> tuple[Any, ...] | None:
        """The first row of all."""
        if not self._open():
            return None
        assert self._file is not None
        data = os.pread(self._file, self._row.size, 0)
        return self._row.unpack(data) if len(data) == self._row.size else None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> bool:
        if self._file is None:
            self._number = self._newest()
            try:
                path = self._path.with_name(rows_file_name(self._stem, self._number)) if self._number else self._path
                self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return False
        return True

    def _newest(self) -> int:
        """The number of the newest part that is not packed."""
        try:
            parts = parts_of_stem(self._stem, os.listdir(self._path.parent))  # noqa: PTH208 - names, once a look
        except OSError:
            return 0
        return max((part.last for part in parts if not part.packed), default=0)


class LineTail:
    """New whole lines of a text file, such as events.jsonl."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read_new_lines(self) -> list[str]:
        """The lines since the last call; a line that is still being written waits for the next."""
        try:
            if self._path.stat().st_size <= self._at:
                return []
            with self._path.open("rb") as file:
                file.seek(self._at)
                data = file.read(_MOST_BYTES)
        except OSError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._at += len(whole)
        return whole.decode("utf-8", errors="replace").splitlines()


STEP_ROW = struct.Struct("<4qdq")  # as runfolder.schema has it: step, t0_ns, t1_ns, samples, loss, recorded
_NO_SAMPLES = -1
_RECENT = 50  # steps


@dataclass(frozen=True)
class Pace:
    """Steps done; step time, ns, of the middle and on average with what lies between, over the last steps."""

    done: int = 0
    began_ns: int | None = None
    ended_ns: int | None = None
    step_ns: float | None = None
    mean_ns: float | None = None
    samples_per_s: float | None = None
    loss: float | None = None


class StepFollower:
    """Follows the rows of steps."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._tail = RowTail(run / "steps.rows", STEP_ROW)
        self._recent: deque[tuple[int, int, int, int, float, int]] = deque(maxlen=_RECENT)
        self._began_ns: int | None = None

    def read_pace(self) -> Pace:
        """The pace with the steps that have come since the last look."""
        self._recent.extend(self._tail.read_new_rows())
        if not self._recent:
            self._recent.extend(self._packed())
        if not self._recent:
            return Pace()
        if self._began_ns is None and (first := self._tail.first()) is not None:
            self._began_ns = int(first[1])
        return _pace(list(self._recent), self._began_ns)

    def close(self) -> None:
        """Close the file."""
        self._tail.close()

    def _packed(self) -> Iterator[tuple[int, int, int, int, float, int]]:
        """The last steps of a run that has ended: its rows are tables then."""
        try:
            parts = parts_in_use(STEPS, os.listdir(self._run))  # noqa: PTH208 - names, once a look
        except OSError:
            return
        if not parts or not all(part.packed for part in (parts[0], parts[-1])):
            return
        import polars as pl  # a view of a run that goes on needs none

        columns = ["step", "t0_ns", "t1_ns", "samples", "loss", "recorded"]
        with contextlib.suppress(OSError, pl.exceptions.PolarsError):  # damaged: no pace, as where it is gone
            first = pl.scan_parquet(self._run / parts[0].name).select("t0_ns").head(1).collect()
            rows = pl.scan_parquet(self._run / parts[-1].name).select(columns).tail(_RECENT).collect()
            self._began_ns = first["t0_ns"].item() if len(first) else None
            filled = rows.with_columns(pl.col("samples").fill_null(_NO_SAMPLES), pl.col("loss").fill_null(math.nan))
            yield from filled.iter_rows()


def _pace(recent: list[tuple[int, int, int, int, float, int]], began_ns: int | None) -> Pace:
    lengths = [t1 - t0 for _, t0, t1, *_ in recent]
    first, last = recent[0], recent[-1]
    span_ns = last[2] - first[1]
    counted = all(row[3] != _NO_SAMPLES for row in recent)
    loss = last[4]
    return Pace(
        done=last[0] + 1,
        began_ns=began_ns,
        ended_ns=last[2],
        step_ns=median(lengths),
        mean_ns=span_ns / len(recent),
        samples_per_s=sum(row[3] for row in recent) * 1e9 / span_ns if counted and span_ns > 0 else None,
        loss=None if math.isnan(loss) else loss,  # NaN is "not given"
    )


_WINDOW_NS = 1_000_000_000  # of a counter
_STALE_NS = 5_000_000_000  # after so long without a reading, a value is not known


class Channel:
    """The newest value of one channel, in its unit, or of a counter in its unit a second."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.quantity, self.scope = str(facts.get("quantity")), str(facts.get("scope"))
        self.rail, self.estimated = facts.get("rail"), facts.get("kind") == "estimate"
        self.unit, self.parent_scope = str(facts.get("unit")), facts.get("parent_scope")
        self._counter = facts.get("kind") == "counter"
        self._points: deque[tuple[int, float]] = deque()
        self._value: float | None = None
        self._read_ns = self._moved_ns = 0

    @property
    def ns_without_growth(self) -> int:
        """Return how long a counter has stood still, as far as it was read, ns."""
        return self._read_ns - self._moved_ns

    @property
    def shown_unit(self) -> str:
        """The unit of `value`: of a counter, its own a second."""
        return f"{self.unit}/s" if self._counter else self.unit

    def add_readings(self, readings: list[tuple[int, float]]) -> None:
        """New readings, (time ns, value) without those that failed."""
        if not readings:
            return
        self._read_ns = readings[-1][0]
        if not self._counter:
            self._value = sum(value for _, value in readings) / len(readings)
            return
        points = self._points
        before = points[-1] if points else readings[0]
        if readings[-1][1] != before[1]:
            self._moved_ns = self._read_ns
        elif not points:
            self._moved_ns = before[0]
        points.extend((readings[0], readings[-1]) if not points else readings[-1:])
        while len(points) > 2 and points[-1][0] - points[1][0] >= _WINDOW_NS:
            points.popleft()
        (t0, v0), (t1, v1) = points[0], points[-1]
        self._value = (v1 - v0) * 1e9 / (t1 - t0) if t1 > t0 and v1 >= v0 else None
        if v1 < v0:
            points.clear()  # set back or wrapped: what it counted in between is not known

    def value(self, newest_ns: int) -> float | None:
        """The value, or None where nothing was read lately."""
        return None if newest_ns - self._read_ns > _STALE_NS else self._value


class Readings:
    """Follows samples/*.rows of the channels of a channels.json."""

    def __init__(self, run: Path) -> None:
        self._run = run
        self._tails: dict[str, tuple[RowTail, list[tuple[int, Channel]]]] = {}
        self._newest_ns = 0

    @property
    def channels(self) -> list[Channel]:
        """Every channel of a quantity that is shown, in the order of channels.json within its sensor."""
        return [channel for _, channels in self._tails.values() for _, channel in channels]

    def describe(self, facts: Iterable[dict[str, Any]]) -> None:
        """Take channels.json as it is now: a sensor that joined is followed from here on."""
        by_sensor: dict[str, list[dict[str, Any]]] = {}
        for channel in facts:
            by_sensor.setdefault(str(channel.get("sensor")), []).append(channel)
        for sensor, described in by_sensor.items():
            if sensor not in self._tails and Path(sensor).name == sensor:
                row = struct.Struct(f"<qq{len(described)}d")
                tail = RowTail(self._run / "samples" / f"{sensor}.rows", row)
                channels = [(place, Channel(stated)) for place, stated in enumerate(described, 2)]
                used = [(place, channel) for place, channel in channels if find_quantity(channel.quantity).live]
                self._tails[sensor] = (tail, used)

    def read_new_samples(self, now_ns: int = 0) -> None:
        """Read what is new; now_ns: of a run that goes on, for which readings may have ended."""
        self._newest_ns = max(self._newest_ns, now_ns)
        for tail, channels in self._tails.values():
            rows = list(tail.read_new_rows())
            if rows:
                self._newest_ns = max(self._newest_ns, rows[-1][1])
            for place, channel in channels:
                channel.add_readings([(row[0], row[place]) for row in rows if not math.isnan(row[place])])

    def value(self, channel: Channel) -> float | None:
        """Return its newest value; None where nothing was read lately."""
        return channel.value(self._newest_ns)

    def close(self) -> None:
        """Close the files."""
        for tail, _ in self._tails.values():
            tail.close()
