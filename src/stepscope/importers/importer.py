"""One file of another tool, and the logs beside it, as one run folder."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope import __version__
from stepscope.errors import OutputNotWritable, UnknownName, UsageError
from stepscope.importers import sensor_logs
from stepscope.importers.own_export import LACKS, MARK, OWN, read_own_export, write_own_export
from stepscope.importers.sensor_logs import Clock, LogKind, SensorLog, duplicate_sensors, log_text, write_logs
from stepscope.importers.torch_profiler import Lack, ProfilerFile, accelerators, read_profiler_file, write_profiler_file
from stepscope.runfolder import RunWriter
from stepscope.runfolder.pack import pack

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

    Raises UsageError for a file that is of no known kind, cannot be understood or lies at another time than the rest;
    OutputNotWritable where there is no space. Nothing is left of a run that could not be imported.
    """
    options, source = options or Options(), Path(path)
    kind = _kind(source, options.kind)
    if kind == OWN:
        return _import_own(source, beside, out, options)
    file = read_profiler_file(source, options.batch_size, options.most_bytes) if kind == TORCH else None
    logs = [] if kind == TORCH else _logs(source, kind, options.clock)
    for log in map(Path, beside):
        logs += _logs(log, _kind(log, None), options.clock)
    if duplicate_sensors(logs):
        raise UsageError(f"two logs of {', '.join(duplicate_sensors(logs))} were given", "join them into one file")
    if file is not None:
        _refuse_another_time(file, logs)
    origin_ns = file.origin_ns if file is not None else _origin(logs)
    writer = RunWriter.create(out, options.name or source.name.partition(".")[0], unix_s=origin_ns / 1e9)
    with _whole_or_nothing(writer, out):
        return _write_run(writer, source, kind, file, logs, origin_ns, options)


def _import_own(source: Path, beside: Sequence[str | Path], out: str | Path, options: Options) -> Path:
    """An export of our own: the run that it was made of, without what was sampled."""
    if beside:
        raise UsageError("a log cannot be laid beside an export of Stepscope", "stepscope meter adds one to a run")
    file = read_own_export(source, options.most_bytes)
    workload = {**(file.meta.get("workload") or {})}
    workload["name"] = options.name or workload.get("name") or source.name.partition(".")[0]
    workload["batch_size"] = options.batch_size or workload.get("batch_size")
    warmup = {} if options.warmup is None else {"warmup_steps": options.warmup}
    began_ns = (file.meta.get("clock") or {}).get("unix_ns")
    began_s = began_ns / 1e9 if isinstance(began_ns, int) else None
    writer = RunWriter.create(out, str(workload["name"]), unix_s=began_s)
    with _whole_or_nothing(writer, out):
        write_own_export(writer, file)
        lacks = [*LACKS, *([CUT_OFF] if file.cut_off else [])]
        write_logs(writer.path, [], [_missing(*lack) for lack in lacks], 0)
        writer.device({**file.device, "board": {"name": options.board}} if options.board else file.device)
        stated = [{"what": what, "why": why, "remedy": remedy} for what, why, remedy in lacks]
        writer.update(
            **{**file.meta, "pid": None, "workload": workload, **warmup},
            recorder={"mode": "imported", "steps_from": "the run that was exported", "rows": len(file.ops)},
            versions={"stepscope": __version__, "polars": pl.__version__},
            imported={"kind": OWN, "file": source.name, **_content(source), "run": file.run, "lacks": stated},
        )
        writer.close("ok")
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
    write_logs(writer.path, logs, [_missing(*lack) for lack in lacks], origin_ns)
    writer.device({"board": {"name": options.board}, "accelerators": accelerators(file.facts) if file else []})
    writer.update(
        pid=None,
        workload={"name": options.name or source.name.partition(".")[0], "batch_size": options.batch_size},
        clock={"monotonic_ns": 0, "unix_ns": origin_ns, "boottime_ns": None},
        warmup_steps=_warmup(file, options.warmup),
        recorder={"mode": "imported", "steps_from": file.steps.source if file else None, "rows": rows},
        versions={"stepscope": __version__, "polars": pl.__version__},
        imported=_stated(source, kind, file, logs, lacks),
    )
    for note in notes:
        writer.event("imported", note, source="import")
    writer.close("ok")
    pack(writer.path)
    return writer.path


def _stated(
    source: Path, kind: str, file: ProfilerFile | None, logs: list[SensorLog], lacks: list[Lack]
) -> dict[str, Any]:
    """Return the origin of this run, for run.json."""
    stated: dict[str, Any] = {"kind": kind, "file": source.name, **_content(source)}
    stated["sensors"] = [log.sensor for log in logs]
    stated["lacks"] = [{"what": what, "why": why, "remedy": remedy} for what, why, remedy in lacks]
    if file is not None:
        stated["first_step"] = file.steps.first
        stated["wall_clock"] = file.has_wall_clock
        stated["left_out"] = dict(file.caught.left_out)
        stated["threads"] = list(file.caught.threads)
    return stated


def _content(source: Path) -> dict[str, Any]:
    digest = hashlib.sha256()
    with source.open("rb") as file:
        while piece := file.read(1 << 22):
            digest.update(piece)
    return {"bytes": source.stat().st_size, "sha256": digest.hexdigest()}


def _warmup(file: ProfilerFile | None, asked: int | None) -> int:
    """Steps at the begin that do not count; those that the profiler itself has excluded are warm already."""
    if asked is not None:
        return asked
    if file is None:
        return 0
    left = max(WARMUP_STEPS - (file.steps.first or 0), 0)
    return left if len(file.steps.spans) >= left + FEW else 0


def _kind(path: Path, asked: str | None) -> str:
    """The kind of a file by its beginning, or the one that was asked for."""
    if asked is not None:
        if asked not in NAMES:
            raise UnknownName("kind of file", asked, NAMES)
        return asked
    try:
        with path.open("rb") as file:
            begin = file.read(_PEEK)
    except OSError as error:
        raise UsageError(f"cannot read '{path}': {error.strerror or error}", "check the path") from error
    if MARK in begin[:_HEAD]:
        return OWN
    if begin[:2] == b"\x1f\x8b" or begin.lstrip()[:1] in (b"{", b"["):
        return TORCH
    lines = begin.decode("utf-8", errors="replace").splitlines()
    for kind in sensor_logs.KINDS:
        if kind.fits(lines):
            return kind.name
    raise UsageError(f"'{path}' is of no kind that is known", f"known: {', '.join(NAMES)}; say which: --kind")


def _logs(path: Path, kind: str, clock: Clock) -> list[SensorLog]:
    if kind == TORCH:
        raise UsageError(f"'{path}' is no log of a sensor", "give the torch.profiler file first, and logs by --with")
    found: LogKind = next(each for each in sensor_logs.KINDS if each.name == kind)
    try:
        logs = found.read(log_text(path), path.name, clock)
    except ValueError as error:
        raise UsageError(f"'{path}': {error}", f"is it a log of {kind}? known: {', '.join(NAMES)}") from error
    return [_shifted(log, clock.shift_ns) for log in logs]


def _shifted(log: SensorLog, shift_ns: int) -> SensorLog:
    if not shift_ns:
        return log
    note = f"{log.sensor}: all times were shifted by {shift_ns / 1e9:g} s, as asked"
    return replace(log, t0_ns=log.t0_ns + shift_ns, t1_ns=log.t1_ns + shift_ns, notes=(*log.notes, note))


def _origin(logs: list[SensorLog]) -> int:
    return int(min(log.t0_ns.min() for log in logs)) // 1_000_000_000 * 1_000_000_000


def _refuse_another_time(file: ProfilerFile, logs: list[SensorLog]) -> None:
    if logs and not file.has_wall_clock:
        raise UsageError(
            "the times of this torch.profiler file do not count from 1970, so no log can be laid beside it",
            "import the two apart, or export the file with torch 2.3 or later",
        )
    begin, end = int(file.events.t0.min()), int(file.events.t1.max())
    for log in logs:
        if int(log.t1_ns.max()) < begin or int(log.t0_ns.min()) > end:
            raise UsageError(
                f"the {log.sensor} log lies at another time: {_span(log.t0_ns.min(), log.t1_ns.max())}, and the "
                f"ops at {_span(begin, end)} (UTC)",
                "give the zone of its stamps, --utc-offset +02:00, or --shift -3600 (seconds)",
            )


def _span(t0_ns: Any, t1_ns: Any) -> str:
    begin, end = (np.datetime64(int(t) // 1_000_000_000, "s") for t in (t0_ns, t1_ns))
    return f"{begin} to {end}"


def _missing(what: str, why: str, remedy: str | None) -> dict[str, Any]:
    return {"sensor": what, "reason": "not in the file", "detail": why, "remedy": remedy}


@contextlib.contextmanager
def _whole_or_nothing(writer: RunWriter, out: str | Path) -> Iterator[None]:
    """A run that could not be written is taken back; a full or read-only disk is said in the user's words."""
    try:
        yield
    except OSError as error:
        _take_back(writer)
        raise OutputNotWritable(
            f"cannot write below '{out}': {error.strerror or error}", "free some space, or choose a folder with --out"
        ) from error
    except BaseException:
        _take_back(writer)
        raise


def _take_back(writer: RunWriter) -> None:
    """Leave nothing of a run that could not be written."""
    with contextlib.suppress(OSError, pl.exceptions.PolarsError):
        writer.close("failed")  # it closes what is open
    shutil.rmtree(writer.path, ignore_errors=True)
