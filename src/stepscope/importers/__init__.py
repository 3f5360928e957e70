"""Measurements of other tools become run folders: torch.profiler's JSON, and the logs of tools that read sensors.

A file says less than a recorded run, and nothing is made up: what it lacks stands in run.json (`imported`) and is
among what the run has not measured. `import_file` is the way in; docs/guide-import.md is the page for users.
"""

from __future__ import annotations

import contextlib
import math
import shutil
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope import __version__
from stepscope.errors import OutputNotWritable, UnknownName, UsageError
from stepscope.files import sha256_of
from stepscope.importers import sensor_logs
from stepscope.importers.chrome_events import read_beginning, read_events
from stepscope.importers.sensor_logs import Clock, LogKind, SensorLog, duplicate_sensors, write_logs
from stepscope.importers.torch_profiler import Lack, ProfilerFile, accelerators, read_profiler_file, write_profiler_file
from stepscope.record.meter_csv import decode_log, read_log_text
from stepscope.runfolder import MODEL, OPS, PHASES, STATUSES, RunWriter, part_of
from stepscope.runfolder.pack import pack

__all__ = ["Options", "import_file"]

# A Chrome export of this program is a run again: steps, ops, layers, setting and device as the run had them. What was
# sampled is in it as it is drawn and not as it was read, so it is not taken back: the folder of the run has it.
OWN = "stepscope-chrome"
MARK = b'"otherData":{"stepscope":'
LACKS: tuple[Lack, ...] = (
    ("utilisation, power and temperature", "such a file has them as drawn, not as read", "the folder of the run"),
    ("memory by layer", "such a file does not have it", "the folder of the run"),
)
_WHOLE = ("row", "parent", "self_ns", "flops", "bytes", "step")
_NONE = -1
_LARGEST = 1 << 62


@dataclass
class _FileContent:
    """Content of the file so far; times in ns from the file's zero."""

    names: dict[str, int] = field(default_factory=dict)
    threads: dict[int, tuple[str, int]] = field(default_factory=dict)  # of the viewer: device and thread
    steps: list[tuple[int, int, int, int | None, float | None, bool]] = field(default_factory=list)
    columns: dict[str, array[int]] = field(default_factory=lambda: {name: array("q") for name in (
        "name", "module", "phase", "tid", "t0_ns", "t1_ns", *_WHOLE)})  # fmt: skip

    def add_event(self, event: dict[str, Any]) -> None:
        """Keep a step, an op, or what a thread of the viewer stands for."""
        args = event.get("args")
        if not isinstance(args, dict):
            return
        if event.get("ph") == "M" and "device" in args:
            self.threads[int(event["tid"])] = (str(args["device"]), int(args["thread"]))
        elif event.get("ph") == "X" and args.get("of") == "step":
            t0, t1 = _begin_and_end_ns(event)
            loss, samples = args["loss"], args["samples"]
            loss = float(loss) if loss is not None and math.isfinite(loss) else None
            row = (int(args["step"]), t0, t1, None if samples is None else int(samples), loss)
            self.steps.append((*row, bool(args["recorded"])))
        elif event.get("ph") == "X" and "self_ns" in args:
            self._append_op(event, args)

    def _append_op(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        t0, t1 = _begin_and_end_ns(event)
        module = args["module"]
        texts = (
            self._text_number(args.get("op", event["name"])),
            _NONE if module is None else self._text_number(module),
        )
        whole = [_NONE if args[name] is None else int(args[name]) for name in _WHOLE]
        row = (*texts, self._text_number(event["cat"]), int(event["tid"]), t0, t1, *whole)
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)

    def _text_number(self, text: object) -> int:
        return self.names.setdefault(str(text), len(self.names))


@dataclass(frozen=True)
class StepscopeExport:
    """Steps as `RunWriter.step` takes them, ops as `OPS`, and what the file says of the run."""

    steps: list[tuple[int, int, int, int | None, float | None, bool]]
    ops: pl.DataFrame
    modules: list[dict[str, Any]]
    meta: dict[str, Any]
    device: dict[str, Any]
    run: str
    cut_off: bool


def read_stepscope_export(path: Path, most_bytes: int) -> StepscopeExport:
    """Read a file; raises UsageError where it is not as this program writes it."""
    content = _FileContent()
    try:
        facts = read_events(path, content.add_event, most_bytes)
        about = facts["otherData"]
        zero_ns = int(about["zero_ns"])
        steps = sorted((step, t0 + zero_ns, t1 + zero_ns, samples, loss, recorded)
                       for step, t0, t1, samples, loss, recorded in content.steps)  # fmt: skip
        modules = [{name: row.get(name) for name in MODEL} for row in about["modules"]]
        meta, device = dict(about["meta"]), dict(about["device"])
        ops = _ops_frame(content, zero_ns)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, pl.exceptions.PolarsError) as error:
        raise UsageError(
            f"'{path}' is an export of Stepscope that was changed since: {error!r}",
            "export the run again: stepscope export RUN --to chrome",
        ) from error
    return StepscopeExport(steps, ops, modules, meta, device, str(about["run"]), bool(facts.get("cut_off")))


def write_stepscope_export(writer: RunWriter, file: StepscopeExport) -> None:
    """Write steps, ops and the tree of modules."""
    for step in file.steps:
        writer.append_step(*step)
    if file.modules:
        writer.write_model(file.modules)
    if len(file.ops):
        writer.write_ops(part_of(file.ops, "ops"))


def _ops_frame(content: _FileContent, zero_ns: int) -> pl.DataFrame:
    """The ops in the order of step and row, which `parent` counts; ValueError for what no run has."""
    texts, places = pl.Series(list(content.names), dtype=pl.String), content.threads
    columns = pl.DataFrame({name: pl.Series(column, dtype=pl.Int64) for name, column in content.columns.items()})
    device = {tid: place[0] for tid, place in places.items()}
    thread = {tid: place[1] for tid, place in places.items()}
    frame = columns.sort("step", "row").with_columns(
        *(pl.Series(name, texts.gather(columns.sort("step", "row")[name].replace(_NONE, None)))
          for name in ("name", "module", "phase")),
        *(pl.when(pl.col(name) != _NONE).then(name).alias(name) for name in ("parent", "flops", "bytes")),
        (pl.col("t0_ns") + zero_ns).alias("t0_ns"),
        (pl.col("t1_ns") + zero_ns).alias("t1_ns"),
        device=pl.col("tid").replace_strict(device, return_dtype=pl.String),
        thread=pl.col("tid").replace_strict(thread, return_dtype=pl.Int64),
    )  # fmt: skip
    within = pl.col("parent").is_null() | pl.col("parent").is_between(0, pl.len().over("step") - 1)
    if not frame.select((within & pl.col("phase").is_in(PHASES)).all()).item():
        raise ValueError("an op without a phase or a parent in its step")
    return frame.select(pl.col(name).cast(dtype) for name, dtype in OPS.items())


def _begin_and_end_ns(event: dict[str, Any]) -> tuple[int, int]:
    """Begin and end, ns; the file has us with three decimals."""
    t0 = round(float(event["ts"]) * 1000)
    t1 = t0 + round(float(event["dur"]) * 1000)
    if not -_LARGEST < t0 <= t1 < _LARGEST:
        raise ValueError(f"a time of {event['ts']} us")
    return t0, t1


TORCH = "torch-profiler"
WARMUP_STEPS = 3
FEW = 6  # steps that must be left for a median with an interval
MOST_BYTES = 64 << 30
_PEEK = 1 << 16
_HEAD = 200  # bytes
CUT_OFF: Lack = ("end of the file", "it is cut off in the midst of the events", "export it again")
NAMES = (TORCH, OWN, *(kind.name for kind in sensor_logs.KINDS))


@dataclass(frozen=True)
class Options:
    """Facts that a file does not state and the user may: see `stepscope import --help`."""

    kind: str | None = None
    name: str | None = None  # of the workload; None: of the file
    batch_size: int | None = None
    warmup: int | None = None  # steps; None: 3 by the profiler's own count, where enough are left
    board: str | None = None
    clock: Clock = field(default_factory=Clock)
    most_bytes: int = MOST_BYTES


def import_file(
    path: str | Path, beside: Sequence[str | Path] = (), out: str | Path = "runs", options: Options | None = None
) -> Path:
    """Write a run folder below `out` from a torch.profiler JSON or a sensor log, with the logs beside it; its path.

    Raises UsageError for a file that is of no known kind, cannot be understood or lies at another time than the others;
    OutputNotWritable where there is no space. Nothing is left of a run that could not be imported.
    """
    options, source = options or Options(), Path(path)
    kind = _detect_kind(source, options.kind, options.clock.columns)
    if kind == OWN:
        return _import_stepscope_export(source, beside, out, options)
    file = read_profiler_file(source, options.batch_size, options.most_bytes) if kind == TORCH else None
    logs = [] if kind == TORCH else _read_logs(source, kind, options.clock)
    for log in map(Path, beside):
        logs += _read_logs(log, _detect_kind(log, None, options.clock.columns), options.clock)
    if duplicate_sensors(logs):
        raise UsageError(f"two logs of {', '.join(duplicate_sensors(logs))} were given", "join them into one file")
    if file is not None:
        _refuse_no_overlap(file, logs)
    origin_ns = file.origin_ns if file is not None else _origin_unix_ns(logs)
    writer = RunWriter.create(out, options.name or source.name.partition(".")[0], unix_s=origin_ns / 1e9)
    with _remove_on_failure(writer, out):
        return _write_run(writer, source, kind, file, logs, origin_ns, options)


def _import_stepscope_export(source: Path, beside: Sequence[str | Path], out: str | Path, options: Options) -> Path:
    """An export of our own: the run that it was made of, without what was sampled."""
    if beside:
        raise UsageError("a log cannot be combined with an export of Stepscope", "stepscope meter adds one to a run")
    file = read_stepscope_export(source, options.most_bytes)
    workload = {**(file.meta.get("workload") or {})}
    workload["name"] = options.name or workload.get("name") or source.name.partition(".")[0]
    workload["batch_size"] = options.batch_size or workload.get("batch_size")
    warmup = {} if options.warmup is None else {"warmup_steps": options.warmup}
    began_ns = (file.meta.get("clock") or {}).get("unix_ns")
    began_s = began_ns / 1e9 if isinstance(began_ns, int) else None
    writer = RunWriter.create(out, str(workload["name"]), unix_s=began_s)
    with _remove_on_failure(writer, out):
        write_stepscope_export(writer, file)
        lacks = [*LACKS, *([CUT_OFF] if file.cut_off else [])]
        write_logs(writer.path, [], [_missing_sensor_row(*lack) for lack in lacks], 0)
        writer.write_device({**file.device, "board": {"name": options.board}} if options.board else file.device)
        stated = [{"what": what, "why": why, "remedy": remedy} for what, why, remedy in lacks]
        writer.update(
            **{**file.meta, "pid": None, "status": "running", "workload": workload, **warmup},
            recorder={"mode": "imported", "steps_from": "the run that was exported", "rows": len(file.ops)},
            versions={"stepscope": __version__, "polars": pl.__version__},
            imported={"kind": OWN, "file": source.name, **_size_and_hash(source), "run": file.run, "lacks": stated},
        )
        status = file.meta.get("status", "ok")
        writer.close(status if status in STATUSES[1:] else "interrupted", file.meta.get("reason"))
        pack(writer.path)
    return writer.path


def _write_run(
    writer: RunWriter,
    source: Path,
    kind: str,
    file: ProfilerFile | None,
    logs: list[SensorLog],
    origin_ns: int,
    options: Options,
) -> Path:
    rows = write_profiler_file(writer, file) if file is not None else 0
    lacks: list[Lack] = [("steps", "a log of a sensor holds no training", None)] if file is None else [*file.lacks]
    if not options.board:
        lacks.append(("device", "the file does not say what it was recorded on", "--board"))
    notes = [note for log in logs for note in log.notes]
    write_logs(writer.path, logs, [_missing_sensor_row(*lack) for lack in lacks], origin_ns)
    writer.write_device({"board": {"name": options.board}, "accelerators": accelerators(file.facts) if file else []})
    writer.update(
        pid=None,
        workload={"name": options.name or source.name.partition(".")[0], "batch_size": options.batch_size},
        clock={"monotonic_ns": 0, "unix_ns": origin_ns, "boottime_ns": None},
        warmup_steps=_warmup_steps(file, options.warmup),
        recorder={"mode": "imported", "steps_from": file.steps.source if file else None, "rows": rows},
        versions={"stepscope": __version__, "polars": pl.__version__},
        imported=_origin_facts(source, kind, file, logs, lacks),
    )
    for note in notes:
        writer.append_event("imported", note, source="import")
    writer.close("ok")
    pack(writer.path)
    return writer.path


def _origin_facts(
    source: Path, kind: str, file: ProfilerFile | None, logs: list[SensorLog], lacks: list[Lack]
) -> dict[str, Any]:
    stated: dict[str, Any] = {"kind": kind, "file": source.name, **_size_and_hash(source)}
    stated |= {"sensors": [log.sensor for log in logs], "lines_not_read": sum(log.skipped for log in logs)}
    stated |= {"clock_steps_back": sum(log.moved for log in logs)}
    stated["lacks"] = [{"what": what, "why": why, "remedy": remedy} for what, why, remedy in lacks]
    if file is not None:
        stated["first_step"] = file.steps.first
        stated["wall_clock"] = file.has_wall_clock
        stated["left_out"] = dict(file.caught.excluded)
        stated["threads"] = list(file.caught.threads)
    return stated


def _size_and_hash(source: Path) -> dict[str, Any]:
    return {"bytes": source.stat().st_size, "sha256": sha256_of(source)}


def _warmup_steps(file: ProfilerFile | None, requested: int | None) -> int:
    """Steps at the begin that do not count; those that the profiler itself has excluded are warm already."""
    if requested is not None or file is None:
        return requested or 0
    remaining = max(WARMUP_STEPS - (file.steps.first or 0), 0)
    return remaining if len(file.steps.spans) >= remaining + FEW else 0


def _detect_kind(path: Path, requested: str | None, columns: tuple[str | None, str | None]) -> str:
    """The kind of a file by its beginning, or the one that was asked for."""
    if requested is not None and requested not in NAMES:
        raise UnknownName("kind of file", requested, NAMES)
    try:
        begin, packed = read_beginning(path, _PEEK)
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror or error}", "check the path") from error
    if requested is None and MARK in begin[:_HEAD]:
        return OWN
    if requested is None and (begin.lstrip()[:1] in (b"{", b"[") or (packed and not begin)):
        return TORCH
    if packed and requested not in (TORCH, OWN):
        raise UsageError(f"'{path}' is packed: of packed files traces alone are read", f"unpack it: gunzip '{path}'")
    if requested is not None:
        return requested
    if not begin.strip():
        raise UsageError(f"'{path}' is empty", "give the log once something has been written to it")
    lines = decode_log(begin).splitlines()
    for kind in sensor_logs.KINDS:
        if kind.fits(lines):
            return kind.name
    if any(columns) and any(mark in line for line in lines[:1] for mark in ",;\t"):
        return "meter-csv"  # a table whose columns the user has named
    hint = f"known: {', '.join(NAMES)}; set it with --kind; columns of a CSV: --time-column, --power-column"
    raise UsageError(f"'{path}' has an unknown format", hint)


def _read_logs(path: Path, kind: str, clock: Clock) -> list[SensorLog]:
    if kind in (TORCH, OWN):
        raise UsageError(f"'{path}' is not a sensor log", "give the torch.profiler file first, and logs by --with")
    reader: LogKind = next(log_kind for log_kind in sensor_logs.KINDS if log_kind.name == kind)
    try:
        logs = reader.read(read_log_text(path), path.name, clock)
    except ValueError as error:
        raise UsageError(f"'{path}': {error}", f"is it a log of {kind}? known: {', '.join(NAMES)}") from error
    return [_shift_times(log, clock.shift_ns) for log in logs]


def _shift_times(log: SensorLog, shift_ns: int) -> SensorLog:
    if not shift_ns:
        return log
    note = f"{log.sensor}: all times were shifted by {shift_ns / 1e9:g} s, as asked"
    return replace(log, t0_ns=log.t0_ns + shift_ns, t1_ns=log.t1_ns + shift_ns, notes=(*log.notes, note))


def _origin_unix_ns(logs: list[SensorLog]) -> int:
    """A whole second before the first reading: one of 0 W that begins and ends at 0 would be a row of zeros."""
    return int(min(min(log.t0_ns.min(), log.t1_ns.min() - 1) for log in logs)) // 1_000_000_000 * 1_000_000_000


def _refuse_no_overlap(file: ProfilerFile, logs: list[SensorLog]) -> None:
    if logs and not file.has_wall_clock:
        text = "the times of this torch.profiler file do not count from 1970, so no log can be combined with it"
        raise UsageError(text, "import them separately, or export the file with torch 2.3 or later")
    if not len(file.events.t0):
        return  # marks of steps alone
    begin, end = int(file.events.t0.min()), int(file.events.t1.max())
    for log in logs:
        first, last = int(log.t0_ns.min()), int(log.t1_ns.max())
        if last < begin or first > end:
            text = f"the {log.sensor} log does not overlap the trace: {_span_text(first, last)}, and the ops at "
            shift = f"of a log that began with the training: --shift {round((begin - first) / 1e9)}"
            hint = f"give the zone of stamps that state none (--utc-offset +02:00); {shift}"
            raise UsageError(f"{text}{_span_text(begin, end)} (UTC)", hint)


def _span_text(t0_ns: int, t1_ns: int) -> str:
    begin, end = (np.datetime64(t // 1_000_000_000, "s") for t in (t0_ns, t1_ns))
    return f"{begin} to {end}"


def _missing_sensor_row(what: str, why: str, remedy: str | None) -> dict[str, Any]:
    return {"sensor": what, "reason": "not in the file", "detail": why, "remedy": remedy}


@contextlib.contextmanager
def _remove_on_failure(writer: RunWriter, out: str | Path) -> Iterator[None]:
    """A run that could not be written is taken back; a full or read-only disk is said in the user's words."""
    try:
        yield
    except OSError as error:
        _remove_partial_run(writer)
        raise OutputNotWritable(
            f"cannot write below '{out}': {error.strerror or error}", "free some space, or choose a folder with --out"
        ) from error
    except BaseException:
        _remove_partial_run(writer)
        raise


def _remove_partial_run(writer: RunWriter) -> None:
    with contextlib.suppress(OSError, pl.exceptions.PolarsError):
        writer.close("failed")  # it closes what is open
    shutil.rmtree(writer.path, ignore_errors=True)
