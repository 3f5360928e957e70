"""A Chrome export of this program as a run again: steps, ops, layers, setting and device as the run had them.

What was sampled is in such a file as it is drawn and not as it was read, so it is not taken back: the folder of the run
has it.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.errors import UsageError
from stepscope.importers.chrome_events import read_events
from stepscope.runfolder import MODEL, OPS, PHASES, RunWriter, part_of

OWN = "stepscope-chrome"
MARK = b'"otherData":{"stepscope":'
Lack = tuple[str, str, str | None]
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

    def take(self, event: dict[str, Any]) -> None:
        """Keep a step, an op, or what a thread of the viewer stands for."""
        args = event.get("args")
        if not isinstance(args, dict):
            return
        if event.get("ph") == "M" and "device" in args:
            self.threads[int(event["tid"])] = (str(args["device"]), int(args["thread"]))
        elif event.get("ph") == "X" and args.get("of") == "step":
            t0, t1 = _times(event)
            loss, samples = args["loss"], args["samples"]
            loss = float(loss) if loss is not None and math.isfinite(loss) else None
            row = (int(args["step"]), t0, t1, None if samples is None else int(samples), loss)
            self.steps.append((*row, bool(args["recorded"])))
        elif event.get("ph") == "X" and "self_ns" in args:
            self._op(event, args)

    def _op(self, event: dict[str, Any], args: dict[str, Any]) -> None:
        t0, t1 = _times(event)
        module = args["module"]
        texts = (self._number(args.get("op", event["name"])), _NONE if module is None else self._number(module))
        whole = [_NONE if args[name] is None else int(args[name]) for name in _WHOLE]
        row = (*texts, self._number(event["cat"]), int(event["tid"]), t0, t1, *whole)
        for column, value in zip(self.columns.values(), row, strict=True):
            column.append(value)

    def _number(self, text: object) -> int:
        return self.names.setdefault(str(text), len(self.names))


@dataclass(frozen=True)
class OwnExport:
    """Steps as `RunWriter.step` takes them, ops as `OPS`, and what the file says of the run."""

    steps: list[tuple[int, int, int, int | None, float | None, bool]]
    ops: pl.DataFrame
    modules: list[dict[str, Any]]
    meta: dict[str, Any]
    device: dict[str, Any]
    run: str
    cut_off: bool


def read_own_export(path: Path, most_bytes: int) -> OwnExport:
    """Read a file; raises UsageError where it is not as this program writes it."""
    taken = _FileContent()
    try:
        facts = read_events(path, taken.take, most_bytes)
        about = facts["otherData"]
        zero_ns = int(about["zero_ns"])
        steps = sorted((step, t0 + zero_ns, t1 + zero_ns, samples, loss, recorded)
                       for step, t0, t1, samples, loss, recorded in taken.steps)  # fmt: skip
        modules = [{name: row.get(name) for name in MODEL} for row in about["modules"]]
        meta, device = dict(about["meta"]), dict(about["device"])
        ops = _ops(taken, zero_ns)
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, pl.exceptions.PolarsError) as error:
        raise UsageError(
            f"'{path}' is an export of Stepscope that was changed since: {error!r}",
            "export the run again: stepscope export RUN --to chrome",
        ) from error
    return OwnExport(steps, ops, modules, meta, device, str(about["run"]), bool(facts.get("cut_off")))


def write_own_export(writer: RunWriter, file: OwnExport) -> None:
    """Write steps, ops and the tree of modules."""
    for step in file.steps:
        writer.step(*step)
    if file.modules:
        writer.model(file.modules)
    if len(file.ops):
        writer.ops(part_of(file.ops, "ops"))


def _ops(taken: _FileContent, zero_ns: int) -> pl.DataFrame:
    """The ops in the order of step and row, which `parent` counts; ValueError for what no run has."""
    texts, places = pl.Series(list(taken.names), dtype=pl.String), taken.threads
    found = pl.DataFrame({name: pl.Series(column, dtype=pl.Int64) for name, column in taken.columns.items()})
    device = {tid: place[0] for tid, place in places.items()}
    thread = {tid: place[1] for tid, place in places.items()}
    frame = found.sort("step", "row").with_columns(
        *(pl.Series(name, texts.gather(found.sort("step", "row")[name].replace(_NONE, None)))
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


def _times(event: dict[str, Any]) -> tuple[int, int]:
    """Begin and end, ns; the file has us with three decimals."""
    t0 = round(float(event["ts"]) * 1000)
    t1 = t0 + round(float(event["dur"]) * 1000)
    if not -_LARGEST < t0 <= t1 < _LARGEST:
        raise ValueError(f"a time of {event['ts']} us")
    return t0, t1
