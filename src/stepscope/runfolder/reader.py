"""The reading half: one run folder, finished, running or broken off, as frames of polars."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import polars as pl

from stepscope.errors import RunError, UnknownName
from stepscope.files import size_of
from stepscope.liveness import is_process_of_run_alive
from stepscope.part_names import PartName, parsed, parts_in_use, parts_of_stem
from stepscope.privacy import clean_and_redact, redacted_sources, withhold_names
from stepscope.quantities import SAMPLED
from stepscope.run_paths import find_run
from stepscope.runfolder import samples, tables, validation
from stepscope.runfolder.checksums import CHECKSUMS, matches_checksum, missing_files, noted_event_count
from stepscope.runfolder.samples import EVER, LongSensor, SampleFile, Unreadable, checked_samples, described_samples
from stepscope.runfolder.schema import FIRST_NS, LAST_NS, PARTS, STATUSES, STEP_ROW, sample_dtype
from stepscope.runfolder.tables import ACCESSES, MEMORY, MODEL, OPS, SOURCES, STEPS, steps_of, whole_rows
from stepscope.runfolder.validation import describe_dropped, read_header

R = TypeVar("R")


class RunReader:
    """A run folder as it lay on disk when this was made: finished, running or broken off.

    Each file is read at most once, when it is first asked for; of a run that goes on, no further than it reached at the
    start. What was read is shared: frames and dictionaries are not to be changed. A missing file reads as empty.

    path: the folder, the name of one in `runs`, or "last" for the newest there.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = find_run(path)
        self.damaged: list[str] = []
        self.meta = read_header(self.path, self.damaged)
        self.framework = str(self.meta.get("framework") or "torch")  # that trained
        self._grows = self.meta.get("status") == "running"
        self._json_files: dict[str, dict[str, Any]] = {}
        self._sensors: dict[str, pl.DataFrame] = {}
        self._exact: dict[str, pl.DataFrame] = {}  # of the whole time, which every channel of a sensor asks for
        self._long_sensors: dict[str, LongSensor | None] = {}
        self._relisted: dict[str, list[str]] = {}  # names of the parts of a stem, where some were packed meanwhile
        if self._grows:  # how far its files reach now, and those that are replaced
            _ = self.files, self.parts
            for name in _REPLACED:
                self._json(name)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}: {self.status}>"

    @property
    def id(self) -> str:
        own = "".join(character if character.isprintable() else "_" for character in self.path.name)
        return str(self.meta.get("id", own))

    @cached_property
    def status(self) -> str:
        """running, ok, failed, oom or interrupted; a running run whose training process is gone is "interrupted"."""
        status = self.meta.get("status")
        status = status if status in STATUSES else "interrupted"
        return "interrupted" if status == "running" and not is_process_of_run_alive(self.meta, self.path) else status

    @property
    def warmup_steps(self) -> int:
        stated = self.meta.get("warmup_steps")
        return 3 if stated is None else int(stated)

    def damaged_files(self) -> list[str]:
        """Return what is damaged of all JSON and of what else was read so far."""
        for name in _REPLACED:
            self._json(name)
        self._mark_damaged(*([] if self._grows else missing_files(self.path, self._checksums)))
        return self.damaged

    @property
    def is_part(self) -> bool:
        """Return whether this is the part of a further process, in the folder of the run."""
        return self.path.resolve().parent.name == PARTS

    @cached_property
    def part_folders(self) -> list[Path]:
        """Folders of the parts that further processes of a distributed training wrote, in order of their names."""
        headers = [] if (self.path / PARTS).is_symlink() else (self.path / PARTS).glob("*/run.json")
        folders = {header.parent for header in headers if not header.parent.is_symlink()}
        return sorted(folders, key=lambda path: (len(path.name), path.name))

    @cached_property
    def parts(self) -> Mapping[Path, RunReader | RunError]:
        """Each of `part_folders` as a reader, or why it cannot be read."""
        return self._open_parts(RunReader)

    @cached_property
    def files(self) -> dict[str, tuple[int, int]]:
        """Size in bytes and time of the last change, ns, of each file with rows or facts, by its name in the folder."""
        return dict(_list_row_files(self.path))

    @cached_property
    def device(self) -> dict[str, Any]:
        """device.json, or an empty dictionary."""
        return self._json("device.json")

    @cached_property
    def sampling(self) -> dict[str, Any]:
        """channels.json: channels, the process that was watched, the sensors that gave nothing; else empty."""
        return self._json("channels.json")

    @cached_property
    def channels(self) -> list[dict[str, Any]]:
        """Return the facts of each sampled column."""
        return list(self.sampling.get("channels") or [])

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """events.jsonl in order of time; a last line that was cut off is excluded, one before it is damage."""
        return sorted(self._event_lines(), key=lambda event: event.get("t_ns") or 0)

    @cached_property
    def model(self) -> pl.DataFrame:
        """The module tree, one row a module, columns as `MODEL`."""
        modules = self._json("model.json").get("modules") or []
        return pl.DataFrame([{k: m.get(k) for k in MODEL} for m in modules], schema=MODEL)

    @cached_property
    def sources(self) -> pl.DataFrame:
        """The line that calls each op of a step, columns as `SOURCES`, in order of turn; empty where none was noted."""
        content = self._json("sources.json")
        texts, rows = content.get("sources") or [], []
        for phase, module, name, lines in validation.rows_of_sources(content):
            alone = len(lines) == 1
            rows += [
                (phase, module, name, None if alone else turn, texts[line] if line >= 0 else None)
                for turn, line in enumerate(lines)
            ]
        return pl.DataFrame(rows, schema=SOURCES, orient="row")

    @cached_property
    def accesses(self) -> pl.DataFrame:
        """Storages that the op calls of one step read or wrote, columns as `ACCESSES`; empty where none were noted."""
        content = self._json("accesses.json")
        columns = [content.get(key) or [] for key in ("rows", "storages", "written")]
        if content.get("step") is None or len({len(column) for column in columns}) != 1:
            return pl.DataFrame(schema=ACCESSES)
        values = dict(zip(("row", "storage", "written"), columns, strict=True))
        whole = pl.DataFrame(values).with_columns(step=pl.lit(content["step"]))
        return whole.select(pl.col(name).cast(kind) for name, kind in ACCESSES.items())

    @cached_property
    def steps(self) -> pl.DataFrame:
        """Every step, columns as `STEPS`, in order; of those that were profiled, where a part of the windows was chosen
        (`max_disk`), the ones that are there.
        """
        frames = [frame for _, frame in self._read_row_files("steps", STEP_ROW, steps_of, _checked_steps)]
        frame = pl.concat(frames) if frames else pl.DataFrame(schema=STEPS)
        del frames  # of a week there are millions of steps: no more copies of them than must be
        whole = self._drop_impossible_rows(frame, _TRUE_STEP & ~_is_zero_row(frame), "steps")
        whole = whole if whole["step"].is_sorted() else whole.sort("step")
        if self.max_disk is None:
            return whole
        there = self.scan_ops().select(pl.col("step").cast(pl.Int64)).unique().collect()["step"]
        return whole.filter(~pl.col("recorded") | pl.col("step").is_in(there.implode()))

    @property
    def max_disk(self) -> int | None:
        """Return the bytes that this run was to keep to; None where it had all the room."""
        most = (self.meta.get("sampler") or {}).get("max_disk")
        return None if most is None else int(most)

    @property
    def thinned_steps(self) -> list[PartName]:
        """Return the files of steps of which not all blocks are there."""
        return [part for part in self._valid_row_files("steps") if part.grain]

    @property
    def windows_recorded(self) -> tuple[int, int]:
        """Return how many windows of operators are there, and how many there were."""
        numbers = {
            int(stem) for name in self.files if name.startswith("ops/") and (stem := name[4:].split(".")[0]).isdecimal()
        }
        stated = int((self.meta.get("recorder") or {}).get("windows") or 0)  # at the end of the run
        return len(numbers), max(stated, max(numbers, default=-1) + 1)

    @property
    def ops(self) -> pl.DataFrame:
        """Every recorded op call, columns as `OPS`, in order of step and row."""
        return self.scan_ops().collect()

    def scan_ops(self) -> pl.LazyFrame:
        """The op calls as a lazy frame: pick columns before collecting a long run."""
        return self._packed_ops

    @cached_property
    def layer_calls(self) -> pl.DataFrame:
        """Module calls, backward nodes and updates of the steps whose layers alone were timed, columns as `OPS`."""
        return self._scan("layers", OPS).collect()

    @cached_property
    def memory_events(self) -> pl.DataFrame:
        """Allocations and frees of the profiled steps, columns as `MEMORY`, in order of time."""
        return self._scan("memory", MEMORY).collect().sort("t_ns", maintain_order=True)

    @cached_property
    def computed_memory_events(self) -> pl.DataFrame:
        """Return the memory events of a dry run, where no step was profiled; `t_ns` is the number of the op."""
        return self._scan("computed", MEMORY).collect().sort("t_ns", maintain_order=True)

    def sensor(self, name: str) -> pl.DataFrame:
        """The samples of one sensor in order of t0_ns: t0_ns, t1_ns and a column a channel, null where not read.

        Where they are more than 262,144 (44 minutes at 10 ms), about so many rows stand for all of them: means of
        gauges, readings of counters, and exact rows around the extremes. `sensor_between` has all rows of a span.
        """
        if name not in self._sensors:
            coarser = self._read_long_sensor(name, LongSensor.read_coarse)
            self._sensors[name] = self._short_sensor(name) if coarser is None else coarser
        return self._sensors[name]

    def sensor_between(self, name: str, t0_ns: int = EVER[0], t1_ns: int = EVER[1]) -> pl.DataFrame:
        """The samples of one sensor that touch a span of time as they were read; of 8,388,608 and more as `sensor`."""
        if (t0_ns, t1_ns) == EVER and name in self._exact:
            return self._exact[name]
        exact = self._read_long_sensor(name, lambda sensor: sensor.between(t0_ns, t1_ns))
        if exact is not None:
            exact = exact.sort("t0_ns", maintain_order=True)
            return self._exact.setdefault(name, exact) if (t0_ns, t1_ns) == EVER else exact
        return self.sensor(name).filter((pl.col("t1_ns") >= t0_ns) & (pl.col("t0_ns") <= t1_ns))

    @property
    def coarser_sensors(self) -> list[str]:
        """Names of the sensors whose rows stand for several each."""
        return [name for name in self._sensor_names if self._long_sensor(name) is not None]

    @cached_property
    def thinned_samples(self) -> list[tuple[int, int, int]]:
        """Spans whose samples are means: begin and end, ns, and their length, s; of all sensors, in order of time."""
        spans = (self._read_long_sensor(name, lambda sensor: sensor.thinned_spans) for name in self._sensor_names)
        return sorted({span for of_sensor in spans for span in of_sensor or ()})

    @property
    def _sensor_names(self) -> list[str]:
        return list(dict.fromkeys(str(channel["sensor"]) for channel in self.channels))

    def _channels_of_sensor(self, name: str) -> list[dict[str, Any]]:
        return [channel for channel in self.channels if channel["sensor"] == name]

    def _short_sensor(self, name: str) -> pl.DataFrame:
        columns = [channel["id"] for channel in self._channels_of_sensor(name)]
        described, check = partial(described_samples, columns), partial(checked_samples, columns)
        frames = self._read_row_files(f"samples/{name}", sample_dtype(columns), described, check)
        if not frames:
            return pl.DataFrame(schema={"t0_ns": pl.Int64, "t1_ns": pl.Int64})
        whole = [self._plausible_samples(part, frame) for part, frame in frames]
        return pl.concat(whole, how="diagonal").sort("t0_ns", maintain_order=True)

    def _plausible_samples(self, part: PartName, frame: pl.DataFrame) -> pl.DataFrame:
        return self._drop_impossible_rows(frame, _TRUE_TIMES & ~_is_zero_row(frame), part.name.rpartition(".")[0])

    def _read_long_sensor(self, name: str, read: Callable[[LongSensor], R]) -> R | None:
        """What is read of a sensor of very many samples; None where there are few."""
        for _ in range(_MOST_TRIES):
            sensor = self._long_sensor(name)
            if sensor is None:
                return None
            try:
                return read(sensor)
            except Unreadable as error:
                self._note_unreadable(error.part)
                del self._long_sensors[name]
        return None

    def _long_sensor(self, name: str) -> LongSensor | None:
        for _ in range(_MOST_TRIES):
            if name not in self._long_sensors:
                try:
                    self._long_sensors[name] = self._open_long_sensor(name)
                except Unreadable as error:
                    self._note_unreadable(error.part)
                    continue
            return self._long_sensors[name]
        return None

    def _open_long_sensor(self, name: str) -> LongSensor | None:
        described = self._channels_of_sensor(name)
        columns = [str(channel["id"]) for channel in described]
        counters = frozenset(str(row["id"]) for row in described if row.get("kind") == "counter")
        parts = self._valid_row_files(f"samples/{name}")
        sizes = (self.files.get(part.name, (0, 0))[0] or size_of(self.path / part.name) for part in parts)
        few = sum(sizes) < samples.LEAST_BYTES
        if not columns or (few and not any(part.grain for part in parts)):
            return None
        files = [
            SampleFile.from_part(
                self.path, part, self._rows_noted(part), columns, counters, partial(self._plausible_samples, part)
            )
            for part in parts
        ]
        if sum(file.rows for file in files) <= samples.MOST_ROWS and not any(part.grain for part in parts):
            return None
        for file in files:
            file.check(self._checksums.get(file.part.name))
        return LongSensor(tuple(file for file in files if file.rows), counters)

    # the parts that rows lie in

    def _valid_row_files(self, stem: str) -> list[PartName]:
        """The files of rows that count, without those that are damaged."""
        return parts_in_use(stem, self._relisted.get(stem, self.files), self.damaged)

    def _rows_noted(self, part: PartName) -> int | None:
        """The bytes of rows that count of the part of a run that goes on; None for all that there are."""
        noted = self.files.get(part.name if not part.packed else f"{part.name.rpartition('.')[0]}.rows")
        return noted[0] if noted and self._grows and (not part.packed or part.name not in self.files) else None

    def _note_unreadable(self, part: PartName) -> None:
        """A file could not be read: it is damaged, or was packed since, and lies elsewhere now."""
        if (self.path / part.name).exists():
            self._mark_damaged(part.name)
            return
        most = max((file.last for file in parts_of_stem(part.stem, self.files)), default=0)
        there = parts_of_stem(part.stem, (name for name, _ in _list_row_files(self.path)))
        now = [file for file in there if file.first <= most]
        self._relisted[part.stem] = [file.name for file in now]

    def samples(self, quantity: str, exact: bool = False) -> pl.DataFrame:
        """All channels of a quantity, long: t0_ns, t1_ns, channel, scope, value (null where not read).

        exact: as `sensor_between` has them, not as `sensor`. Empty where the quantity was not sampled; UnknownName
        where there is no such quantity.
        """
        sampled = {channel["quantity"] for channel in self.channels}
        if sampled and quantity not in sampled | SAMPLED:
            raise UnknownName("quantity", quantity, sampled)
        parts = []
        for channel in self.channels:
            if channel["quantity"] != quantity:
                continue
            frame = (self.sensor_between if exact else self.sensor)(channel["sensor"])
            if channel["id"] in frame.columns:
                value = pl.col(channel["id"]).alias("value")
                tags = [pl.lit(channel[key], dtype=pl.String).alias(key) for key in ("id", "scope")]
                parts.append(frame.select("t0_ns", "t1_ns", *tags, value).rename({"id": "channel"}))
        schema = {"t0_ns": pl.Int64, "t1_ns": pl.Int64, "channel": pl.String, "scope": pl.String, "value": pl.Float64}
        return pl.concat(parts) if parts else pl.DataFrame(schema=schema)

    def _open_parts(self, open_part: Callable[[Path], R]) -> dict[Path, R | RunError]:
        opened: dict[Path, R | RunError] = {}
        for folder in self.part_folders:
            try:
                opened[folder] = open_part(folder)
            except RunError as error:
                opened[folder] = error
        return opened

    @cached_property
    def _packed_ops(self) -> pl.LazyFrame:
        return self._scan("ops", OPS)

    def _bytes(self, name: str) -> bytes:
        """The content of a file as far as it reached: the one place where a file of the folder is opened."""
        content = validation.read_regular(self.path / name, validation.MOST_BYTES if name.endswith(_TEXTS) else None)
        if self._grows and name.endswith(_APPENDED):
            return content[: self.files.get(name, (0, 0))[0]]
        if name in self._checksums and not matches_checksum(content, self._checksums[name]):
            raise ValueError("its content is not what was written")
        return content

    @cached_property
    def _checksums(self) -> dict[str, Any]:
        stated = self._json(CHECKSUMS)
        return {} if any(name.startswith(CHECKSUMS) for name in self.damaged) else stated

    def _json(self, name: str) -> dict[str, Any]:
        if name not in self._json_files:
            self._json_files[name] = {}
            try:
                data = validation.read_regular(self.path / name, validation.MOST_BYTES)
                content, dropped = validation.parse(data, validation.SHAPES.get(name))
            except FileNotFoundError:
                return {}
            except (OSError, ValueError):
                content, dropped = None, []
            if not isinstance(content, dict):
                self._mark_damaged(name)
                return {}
            self._mark_damaged(*describe_dropped(name, dropped))
            without = name in ("channels.json", "device.json")  # the others say names, which tables have too
            plain = redacted_sources(content) if name == "sources.json" else content
            self._json_files[name] = clean_and_redact(content) if without else withhold_names(plain)
        return self._json_files[name]

    def _event_lines(self) -> Iterator[dict[str, Any]]:
        lines: list[bytes] = []
        with contextlib.suppress(OSError):
            lines = self._bytes("events.jsonl").splitlines()
        if not self._grows and len(lines) < noted_event_count(self._checksums):
            self._mark_damaged("events.jsonl")
        for number, line in enumerate(lines, 1):
            try:
                event, dropped = validation.parse(line, validation.EVENT)
            except ValueError:
                # The last may be cut off by a crash, and lacks nothing that was whole: its seal then.
                if number < len(lines) or (len(line) > 32 and not line[-32:].strip(b" \t")):
                    self._mark_damaged("events.jsonl")
                continue
            if dropped:
                self._mark_damaged("events.jsonl")
            if isinstance(event, dict):
                yield clean_and_redact({k: value for k, value in event.items() if value is not None or k != "t_ns"})

    def _drop_impossible_rows(self, frame: pl.DataFrame, true: pl.Expr, stem: str) -> pl.DataFrame:
        """The rows that can be; where there are others, their file is called damaged."""
        possible = frame.select(true.alias("true"))["true"].fill_null(False)
        count = int(possible.sum())
        if count == len(frame):
            return frame
        self._mark_damaged(f"{stem}: {len(frame) - count:,} of {len(frame):,} rows")
        return frame.filter(possible)

    def _read_row_files(
        self,
        stem: str,
        dtype: np.dtype[Any],
        frame_of_rows: Callable[[_Rows], pl.DataFrame],
        check: Callable[[pl.DataFrame], pl.DataFrame],
    ) -> list[tuple[PartName, pl.DataFrame]]:
        """The parts of rows that grow, packed or not, in order."""
        read: dict[str, pl.DataFrame] = {}
        for _ in range(_MOST_TRIES):
            parts = self._valid_row_files(stem)
            missing = next((part for part in parts if part.name not in read), None)
            if missing is None:
                return [(part, read[part.name]) for part in parts]
            try:
                data = self._bytes(missing.name)
                frame = check(pl.read_parquet(data) if missing.packed else frame_of_rows(whole_rows(data, dtype)))
            except (OSError, ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
                self._note_unreadable(missing)
                continue
            noted = self._rows_noted(missing)
            # It may have been packed since, with what came then.
            read[missing.name] = frame if noted is None else frame.head(noted // dtype.itemsize)
        return []

    def _scan(self, folder: str, schema: dict[str, Any]) -> pl.LazyFrame:
        """All parts of a folder: Parquet where one was packed, held as it lies on disk, else as it was written."""
        stems = {name.rpartition(".")[0] for name in self.files if name.startswith(f"{folder}/")}
        in_order = sorted(stems, key=lambda stem: (len(stem), stem))
        table = "ops" if schema is OPS else "memory"
        scans: list[pl.LazyFrame] = []
        group: dict[str, tables.ReadPart] = {}
        size = 0
        for stem in in_order:
            part = self._part(stem, table, lambda read: read)
            if part is None:
                continue
            group[stem] = part
            size += int(part.frame.estimated_size())
            if size > tables.JOINED_BYTES:
                scans += self._checked(group, table)
                group, size = {}, 0
        scans += self._checked(group, table)
        return pl.concat(scans, how="vertical") if scans else pl.LazyFrame(schema=schema)

    def _part(self, stem: str, table: str, read: Callable[[tables.ReadPart], R]) -> R | None:
        """What is made of a part of op calls or memory events, packed or as it was written; None where both are
        damaged, or there is neither.

        Packed again at the end: it may have come while the other was looked for.
        """
        for kind, parse in ((".parquet", tables.read_packed), (".part", tables.read_written)) * 2:
            name = stem + kind
            if name in self.damaged or not (self.path / name).exists():
                continue
            try:
                return read(parse(self._bytes(name), table))
            except (OSError, ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
                if (self.path / name).exists():  # else it was packed meanwhile: the rest is still worth reading
                    self._mark_damaged(name)
        return None

    def _checked(self, group: Mapping[str, tables.ReadPart], table: str) -> list[pl.LazyFrame]:
        """The parts as one where all their rows can be, else those whose rows can, one by one."""
        if not group:
            return []
        with contextlib.suppress(ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException):
            return [tables.check_rows([*group.values()], table)]
        parts = (self._part(stem, table, lambda part: tables.check_rows([part], table)) for stem in group)
        return [part for part in parts if part is not None]

    def _mark_damaged(self, *names: str) -> None:
        self.damaged = sorted({*self.damaged, *names})


# As a whole, also while a run goes on.
_REPLACED = ("device.json", "channels.json", "model.json", "sources.json", "accesses.json")
_APPENDED = (".rows", ".jsonl")
_TEXTS = (".json", ".jsonl")
_MOST_TRIES = 100_000  # to read the parts of a stem: more than there can be
_FACTS = {*_REPLACED, "events.jsonl"}
_TABLES = (".parquet", ".part", ".rows")
_Rows = np.ndarray[Any, np.dtype[Any]]


def _list_row_files(run: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, size in bytes and time of the last change, ns, of each file that a reader reads, but run.json."""
    for folder in ("", *validation.FOLDERS):
        with contextlib.suppress(OSError), os.scandir(run / folder) as entries:
            for entry in entries:
                read = entry.name.endswith(_TABLES) and entry.name[0] != "." if folder else _is_of_run(entry.name)
                with contextlib.suppress(OSError):
                    if read and entry.is_file():
                        state = entry.stat()
                        yield f"{folder}/{entry.name}".lstrip("/"), (state.st_size, state.st_mtime_ns)


def _is_of_run(name: str) -> bool:
    part = parsed(name)
    return name in _FACTS or (part is not None and part.stem == "steps")


def _checked_steps(frame: pl.DataFrame) -> pl.DataFrame:
    if dict(frame.schema) != STEPS:
        raise ValueError("its columns are not those of steps")
    return frame


def _is_zero_row(frame: pl.DataFrame) -> pl.Expr:
    """Return whether a row is all zeros, times included: what a power loss leaves in blocks not yet written."""
    zero = [~pl.col(name) if kind == pl.Boolean else pl.col(name) == 0 for name, kind in frame.schema.items()]
    return pl.all_horizontal(zero).fill_null(False)


_TRUE_TIMES = (
    (pl.col("t0_ns") >= FIRST_NS) & (pl.col("t1_ns") < LAST_NS) & (pl.col("t0_ns") <= pl.col("t1_ns"))
).fill_null(False)
_TRUE_STEP = (
    _TRUE_TIMES
    & pl.col("step").is_between(0, (1 << 32) - 1).fill_null(False)
    & pl.col("step").is_first_distinct()
    & pl.col("samples").is_between(0, 1 << 53).fill_null(True)
    & pl.col("recorded").is_not_null()
)
