"""The recording half: writes one run folder, and keeps no file open between two calls."""

from __future__ import annotations

import contextlib
import hashlib
import heapq
import json
import os
import secrets
import time
import unicodedata
from collections import deque
from datetime import datetime, timezone
from os import getpid  # as it is now: a training may put another one in its place
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.clock import monotonic_ns
from stepscope.errors import OutputNotWritable, RunDamaged
from stepscope.files import add_checksum, atomic_write, read_json, replace_json
from stepscope.liveness import process_identity
from stepscope.part_names import next_number, rows_file_name
from stepscope.privacy import (
    are_runs_private,
    clean_and_redact,
    cleaned_fields,
    redacted_sources,
    redacted_text,
    redacted_texts,
    withhold_names,
)
from stepscope.runfolder.schema import NO_SAMPLES, PACK_STEP, SCHEMA, STEP_BYTES, STEP_NUMBER

if TYPE_CHECKING:
    from stepscope.runfolder.parts import Part

RESERVE = ".reserve"
RESERVE_BYTES = 32_768  # more than any run.json: given up where the last status would not fit otherwise
MOST_WAITING_STEPS = 100_000  # 4.8 MB: what a disk that refuses steps may keep in RAM
WINDOWS_SHARE = {"ops": 0.12, "layers": 0.04, "memory": 0.04}  # of the disk that a run may take
STEP_PART_BYTES = 48_000_000  # of rows of steps, a million, after which the next file begins
_LAST_PARTS = _LAST_ROWS = 512  # that can still be taken back
_NOT_LETTERS, _NAME_BYTES, _ID_BYTES = "._-", 160, 200  # of what a run is named
_APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC


def is_run_id(text: str) -> bool:
    """Return whether a run can have this name: composed letters and digits of any script, dot, dash, underscore."""
    plain = text[:1].isalnum() and all(c.isalnum() or c in _NOT_LETTERS for c in text)
    return plain and unicodedata.is_normalized("NFC", text) and len(text.encode()) <= _ID_BYTES


class RunWriter:
    """Writes one run folder; a method a file. Raises OSError when the disk does: the session decides what then.

    It belongs to the process that made it: in a forked child every method does nothing.
    """

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.path = path.absolute()
        self.steps_dropped = 0  # that neither the disk nor the RAM had room for
        self._header = header
        self._owner = getpid()
        self._steps = bytearray()
        self._parts: dict[str, int] = {}  # number of the next part of each folder
        self._last_parts: deque[tuple[Path, int, int]] = deque(maxlen=_LAST_PARTS)  # with the first step and the last
        self._steps_part: int | None = None  # that is being written
        self.max_disk: int | None = None  # bytes that the run may take: of windows a random choice stays
        self._windows: dict[str, Reservoir] = {}  # of each folder

    @classmethod
    def create(cls, out: str | Path, workload: str, unix_s: float | None = None) -> RunWriter:
        """Make `out/<UTC stamp>-<workload>-<6 hex>/` and its first run.json (status: running)."""
        stamp = datetime.fromtimestamp(time.time() if unix_s is None else unix_s, tz=timezone.utc)
        text = unicodedata.normalize("NFC", redacted_text(workload))
        name = (
            "".join(c if c.isalnum() or c in _NOT_LETTERS else "_" for c in text)
            .encode()[:_NAME_BYTES]
            .decode(errors="ignore")
        )
        run_id = f"{stamp:%Y%m%dT%H%M%SZ}-{name or 'run'}-{secrets.token_hex(3)}"
        try:
            path = Path(out).absolute() / run_id
            path.mkdir(parents=True, exist_ok=True)
            return cls._begin_run(path, {"schema": SCHEMA, "id": run_id, "status": "running", "reason": None})
        except OSError as error:
            raise OutputNotWritable(
                f"cannot write a run below '{out}': {error.strerror or error}",
                "choose a folder that you can write with --out DIR",
            ) from error

    @classmethod
    def attach(cls, path: str | Path) -> RunWriter:
        """Attach to a run that another process has begun; OSError or RunDamaged where its run.json is missing."""
        run = Path(path).absolute()
        header = _header_of(run)
        if header is None:
            raise RunDamaged(f"'{run / 'run.json'}' does not hold an object")
        return cls(run, header)

    @classmethod
    def create_rank(cls, path: str | Path, number: int) -> RunWriter:
        """Make `ranks/<number>/` within a run, for one of its processes; FileExistsError where it is taken."""
        run = Path(path).absolute()
        folder = run / "ranks" / str(number)
        folder.parent.mkdir(exist_ok=True)
        folder.mkdir()
        header = {"schema": SCHEMA, "id": f"{run.name}/ranks/{number}", "status": "running", "reason": None}
        return cls._begin_run(folder, header)

    @classmethod
    def _begin_run(cls, path: Path, header: dict[str, Any]) -> RunWriter:
        if are_runs_private():
            path.chmod(0o700)
        for folder in ("ops", "memory", "samples"):
            (path / folder).mkdir(exist_ok=True)
        writer = cls(path, header)
        writer.update(**process_identity(getpid()))  # without it the run would be taken for one that is gone
        # Random bytes: a file system that compresses would keep nothing free for zeros.
        (path / RESERVE).write_bytes(os.urandom(RESERVE_BYTES))
        return writer

    @property
    def is_rank(self) -> bool:
        """Return whether this is the part of one process within a run, whose machine another process describes."""
        return self.path.parent.name == "ranks"

    @property
    def header(self) -> dict[str, Any]:
        """Return run.json as it was when it was last read or written."""
        return dict(self._header)

    @property
    def status(self) -> str:
        """Return the status that run.json had when it was last read or written."""
        return str(self._header.get("status", "running"))

    def update(self, **fields: Any) -> None:
        """Merge fields into run.json, over what other processes have said there, and replace it."""
        if not self._is_mine():
            return
        with contextlib.suppress(OSError):
            self._header.update(_header_of(self.path) or {})
        self._header.update(redacted_texts(cleaned_fields(fields)))
        try:
            self._write_header()
        except OSError:
            reserve = self.path / RESERVE
            if fields.get("status", "running") == "running" or not reserve.exists():
                raise
            reserve.unlink()
            self._write_header()

    def write_device(self, facts: dict[str, Any]) -> None:
        """Write device.json."""
        self._write_json("device.json", clean_and_redact(facts))

    def write_model(self, modules: list[dict[str, Any]]) -> None:
        """Write model.json: one object a module, keys as `MODEL`, parents before children."""
        self._write_json("model.json", {"modules": modules})

    def write_source_lines(self, content: dict[str, Any]) -> None:
        """Write sources.json: the lines of the training's code that call layers and operators."""
        self._write_dense_json("sources.json", redacted_sources(content))

    def write_storage_accesses(self, content: dict[str, Any]) -> None:
        """Write accesses.json: the storages that the op calls of one step read and wrote."""
        self._write_dense_json("accesses.json", content)

    def _write_dense_json(self, name: str, content: dict[str, Any]) -> None:
        if self._is_mine():
            text = json.dumps(withhold_names(content), separators=(",", ":"))  # a step has thousands of op calls
            with atomic_write(self.path / name) as part:
                part.write_text(add_checksum(text), encoding="utf-8")

    def append_step(
        self, step: int, t0_ns: int, t1_ns: int, samples: int | None, loss: float | None, recorded: bool
    ) -> None:
        """Append one step in RAM; `flush_steps` brings it to the disk."""
        loss_or_nan = float("nan") if loss is None else loss
        self._steps += PACK_STEP(step, t0_ns, t1_ns, NO_SAMPLES if samples is None else samples, loss_or_nan, recorded)

    def flush_steps(self) -> None:
        """Bring the steps so far to the disk; those that it refuses wait for the next call, up to a bound."""
        if not self._steps or not self._is_mine():
            return
        try:
            if self._steps_part is None:
                self._steps_part = next_number((path.name for path in self.path.iterdir()), "steps")
            reached = _append_rows(self.path / rows_file_name("steps", self._steps_part), self._steps, STEP_BYTES)
            most = STEP_PART_BYTES if self.max_disk is None else min(STEP_PART_BYTES, self.max_disk // 32)
            self._steps_part += reached >= most
        except OSError:
            too_many = len(self._steps) // STEP_BYTES - MOST_WAITING_STEPS
            if too_many > 0:
                del self._steps[: too_many * STEP_BYTES]
                self.steps_dropped += too_many
            raise

    def drop_steps_from(self, step: int) -> bool:
        """Drop the steps from this one on, and the windows of them; False where a file was closed with some of them."""
        if not self._is_mine():
            return False
        waiting = len(self._steps) // STEP_BYTES
        count = next((n for n in range(waiting) if _number_in(self._steps, n) >= step), waiting)
        on_disk = waiting == 0 or _number_in(self._steps, 0) > step
        if on_disk and self._steps_part is not None and not self._cut_steps(step):
            return False
        del self._steps[count * STEP_BYTES :]
        for path, first, last in self._last_parts:
            if first >= step:
                path.unlink(missing_ok=True)
            elif last >= step and path.exists():
                from stepscope.runfolder.parts import bytes_before_step

                _replace_part(path, bytes_before_step(path, step))
        return True

    def _cut_steps(self, step: int) -> bool:
        """Cut the file of steps that is being written where this one begins; False where an earlier file has it."""
        path = self.path / rows_file_name("steps", self._steps_part or 0)
        with contextlib.suppress(FileNotFoundError), path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            begin = file.seek(max(size - _LAST_ROWS * STEP_BYTES, 0))
            rows = bytearray(file.read())
            at = next((n for n in range(len(rows) // STEP_BYTES) if _number_in(rows, n) >= step), None)
            if at == 0 and step:
                return False
            if at is not None:
                file.truncate(begin + at * STEP_BYTES)
            return True
        return step == 0

    def write_ops(self, part: Part) -> int:
        """Write the op calls of one window as a new part; returns its size in bytes."""
        return self._write_part("ops", part)

    def write_layer_calls(self, part: Part) -> int:
        """Write the calls and backward nodes of steps whose layers alone were timed; returns its size in bytes."""
        (self.path / "layers").mkdir(exist_ok=True)
        return self._write_part("layers", part)

    def write_memory_events(self, part: Part) -> int:
        """Write the allocations and frees of one window as a new part; returns its size in bytes."""
        return self._write_part("memory", part)

    def append_event(self, kind: str, message: str, source: str = "session", **fields: Any) -> None:
        """Append a warning, gap or loss to events.jsonl; one write, so that two processes can share the file."""
        if not self._is_mine():
            return
        entry = {"t_ns": monotonic_ns(), "source": source, "kind": kind, "message": message, **fields}
        line = (add_checksum(json.dumps(clean_and_redact(entry), default=str)) + "\n").encode()
        file = os.open(self.path / "events.jsonl", _APPEND, 0o666)
        try:
            written = os.write(file, line)
            try:
                written += os.write(file, line[written:]) if written < len(line) else 0
            finally:
                if written < len(line):
                    os.write(file, b"\n")  # cut off: ends the broken line, so that the next one can be read
        finally:
            os.close(file)

    def close(self, status: str, reason: str | None = None, **facts: Any) -> None:
        """Bring the last steps to the disk and say how the run ended; `pack` makes Parquet of it, elsewhere.

        facts: what else run.json says of the end, for which the reserve makes room as well.
        """
        if not self._is_mine():
            return
        refused = self._flushed()
        self.update(status=status, reason=reason, **facts)
        (self.path / RESERVE).unlink(missing_ok=True)
        if refused is not None and (refused := self._flushed()) is not None:  # the reserve may have made room
            self.steps_dropped += len(self._steps) // STEP_BYTES
            self._steps.clear()
            raise refused

    def _flushed(self) -> OSError | None:
        try:
            self.flush_steps()
        except OSError as error:
            return error
        return None

    def _is_mine(self) -> bool:
        """False in a forked child: what waits here is its parent's to write."""
        return getpid() == self._owner

    def _write_part(self, folder: str, part: Part) -> int:
        if not self._is_mine():
            return 0
        from stepscope.runfolder.parts import to_bytes  # numpy: only where something was profiled

        number = self._parts.get(folder)
        if number is None:
            number = _next_number(self.path / folder)
        data, path = to_bytes(part, folder), self.path / folder / f"{number:06d}.part"
        _replace_part(path, data)
        self._parts[folder] = number + 1
        steps = part.columns["step"]
        first, last = (int(steps[0]), int(steps.max())) if len(part) else (number, number)
        self._last_parts.append((path, first, last))
        if self.max_disk is not None:
            room = int(self.max_disk * WINDOWS_SHARE[folder])
            windows = self._windows.setdefault(folder, Reservoir(room, self.path.name))
            for evicted in windows.add(number, len(data), first):
                (self.path / folder / f"{evicted:06d}.part").unlink(missing_ok=True)
        return len(data)

    def _write_header(self) -> None:
        # Without it nothing of a run can be read: a loss of power leaves the old one or the new one.
        replace_json(self.path / "run.json", self._header, whole=True)

    def _write_json(self, name: str, content: dict[str, Any]) -> None:
        if self._is_mine():
            replace_json(self.path / name, withhold_names(content))


class Reservoir:
    """Which windows stay where all of them are too much: a random choice, uniform over the whole run.

    Each step draws a number; those with the lowest ones stay. What was recorded of one step stays or goes together.
    """

    def __init__(self, room: int, seed: str) -> None:
        self._room, self._seed = room, seed
        self._bytes = 0
        self._windows: dict[int, list[tuple[int, int]]] = {}  # step: number and size of its windows
        self._drawn: list[tuple[int, int]] = []  # a heap: the highest number first, less than zero, with its step
        self._highest = 1 << 64  # a step that drew this or more is gone

    def add(self, number: int, size: int, step: int) -> list[int]:
        """Take a window; return the numbers of those that go."""
        drawn = int.from_bytes(hashlib.blake2b(f"{self._seed}/{step}".encode(), digest_size=8).digest(), "big")
        if drawn >= self._highest:
            return [number]
        if step not in self._windows:
            heapq.heappush(self._drawn, (-drawn, step))
        self._windows.setdefault(step, []).append((number, size))
        self._bytes += size
        evicted: list[int] = []
        while self._bytes > self._room and len(self._drawn) > 1:
            drawn, last = heapq.heappop(self._drawn)
            self._highest = -drawn
            for window, bytes_ in self._windows.pop(last):
                self._bytes -= bytes_
                evicted.append(window)
        return evicted


def _header_of(run: Path) -> dict[str, Any] | None:
    """Return the content of run.json; None where it holds no object, OSError where it cannot be read."""
    try:
        header = read_json(run / "run.json")
    except (ValueError, RecursionError):
        return None
    return header if isinstance(header, dict) else None


def _append_rows(path: Path, rows: bytearray, row_bytes: int) -> int:
    """Append rows and take off those that are on the disk; the file ends on a whole row, also on a full disk.

    Return its size in bytes.
    """
    file = os.open(path, _APPEND, 0o666)
    try:
        before = os.fstat(file).st_size
        if before % row_bytes:  # what a crash left of another process
            before -= before % row_bytes
            os.ftruncate(file, before)
        waiting = memoryview(bytes(rows))
        try:
            while waiting:
                waiting = waiting[os.write(file, waiting) :]
        finally:  # the file says what is in it, also where a signal handler raised after the write
            written = os.fstat(file).st_size - before
            if torn := written % row_bytes:
                os.ftruncate(file, before + written - torn)
            del rows[: written - torn]
        return before + written
    finally:
        os.close(file)


def _replace_part(path: Path, data: bytes) -> None:
    with atomic_write(path) as part:
        part.write_bytes(data)


def _number_in(rows: bytearray, place: int) -> int:
    """Return the number of the step in this place of rows."""
    return int(STEP_NUMBER(rows, place * STEP_BYTES)[0])


def _next_number(folder: Path) -> int:
    """One more than the highest number of a part in the folder."""
    stems = [path.name.partition(".")[0] for path in folder.iterdir()]
    return max((int(stem) for stem in stems if stem.isdecimal()), default=-1) + 1
