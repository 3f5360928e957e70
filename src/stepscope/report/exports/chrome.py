"""Chrome's JSON trace events, for viewers older than Perfetto (chrome://tracing and what reads its files)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope import __version__
from stepscope.analysis.time.layers import slice_names
from stepscope.arrays import Ints
from stepscope.quantities import simulated_badge
from stepscope.report.exports import _tracks
from stepscope.report.exports._excerpt import Excerpt
from stepscope.report.exports._tracks import SampledTrack, divide_into_lanes, sampled_tracks

TITLE = "Chrome trace events, for viewers older than Perfetto"
SUFFIX = ".json"

_PER_OP, _PER_SAMPLE, _PER_STEP, _FIXED = 215, 97, 550, 6_000  # bytes, measured
_AT_ONCE = 100_000  # events made to text together
_PROCESS = 1
_OF_OPS = ("flops", "bytes", "step", "row", "parent", "self_ns")
_OF_STEPS = ("step", "samples", "loss", "recorded")


def estimate(excerpt: Excerpt) -> int:
    """Bytes that will be written, roughly."""
    per_step = _PER_STEP * len(excerpt.steps)
    return _FIXED + _PER_OP * excerpt.op_count + _PER_SAMPLE * excerpt.sample_count + per_step


def write(excerpt: Excerpt, path: Path) -> None:
    """Write the events, a line each; times are us with three decimals since the first of all."""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        lines = _EventTexts(excerpt)
        about = json.dumps(origin(excerpt, lines.zero_ns), separators=(",", ":"), default=str)
        file.write('{"displayTimeUnit":"ns","otherData":' + about + ',"traceEvents":[\n')
        separator = ""
        for part in lines.parts():
            file.write(separator + part)
            separator = ",\n"
        file.write("\n]}\n")


class _EventTexts:
    """The events of one excerpt as text; threads of the viewer are numbered as they come."""

    def __init__(self, excerpt: Excerpt) -> None:
        self._excerpt = excerpt
        self._tracks = sampled_tracks(excerpt)
        begins = [int(track.t_ns[0]) for track in self._tracks if len(track.t_ns)]
        span = excerpt.span_ns
        self.zero_ns = min([*begins, *([span[0]] if span else [])], default=0)
        self._thread = 0

    def parts(self) -> Iterator[str]:
        """Texts of one event or many, to be joined by commas."""
        run = self._excerpt.run
        name = ", ".join(filter(None, (f"stepscope {run.id}", simulated_badge(run.simulated))))
        yield _event_line("M", "process_name", args={"name": name})
        yield from self._slice_events("steps", _tracks.steps(self._excerpt))
        yield from self._slice_events("phases", _tracks.phases(self._excerpt.ops).select("name", "t0_ns", "t1_ns"))
        yield from self._op_events(self._excerpt.ops)
        for track in self._tracks:
            if len(track.t_ns):
                yield self._counter_events(track)
            spans = pl.DataFrame({"t0_ns": track.unread[:, 0], "t1_ns": track.unread[:, 1]})
            yield from self._slice_events(f"{track.name}: not read", spans.with_columns(name=pl.lit("not read")))
        for event in self._excerpt.events:
            args = {key: value for key, value in event.items() if key != "t_ns"}
            at = (int(event.get("t_ns", 0)) - self.zero_ns) / 1000  # us
            yield _event_line("i", _tracks.event_name(event), ts=at, s="p", args=args)

    def _slice_events(self, name: str, frame: pl.DataFrame) -> Iterator[str]:
        for lane in divide_into_lanes(frame["t0_ns"].to_numpy(), frame["t1_ns"].to_numpy()):
            yield self._name_next_thread(name if lane.number == 0 else f"{name}, overlapping ({lane.number})")
            yield from self._complete_events(frame, lane.rows)

    def _op_events(self, ops: pl.DataFrame) -> Iterator[str]:
        threads: list[tuple[int, Any]] = []
        for thread in _tracks.thread_lanes(ops):
            yield self._name_next_thread(thread.name, device=thread.device, thread=thread.thread)
            threads.append((self._thread, thread))
            yield from self._complete_events(ops, thread.rows)
        place = np.zeros(len(ops), dtype=np.int64)
        for number, thread in threads:
            place[thread.rows] = number
        pairs = _tracks.forward_backward_pairs(ops).with_row_index("id")
        for kind, column in (("s", "forward"), ("f", "backward")) if len(pairs) else ():
            at = pairs[column].to_numpy()
            times = pl.Series(ops["t0_ns"].to_numpy()[at] - self.zero_ns)
            rows = pl.DataFrame({"id": pairs["id"], "tid": place[at], "ts": times})
            end = ',"bp":"e"' if kind == "f" else ""
            head = f'{{"ph":"{kind}"{end},"name":"backward of","cat":"flow","pid":{_PROCESS},"id":'
            yield _join_rows(
                rows, pl.concat_str(pl.lit(head), "id", pl.lit(',"tid":'), "tid", *_time_field_us("ts"), pl.lit("}"))
            )

    def _name_next_thread(self, name: str, **of: Any) -> str:
        self._thread += 1
        order = _event_line("M", "thread_sort_index", tid=self._thread, args={"sort_index": self._thread})
        return _event_line("M", "thread_name", tid=self._thread, args={"name": name, **of}) + ",\n" + order

    def _complete_events(self, frame: pl.DataFrame, rows: Ints) -> Iterator[str]:
        for first in range(0, len(rows), _AT_ONCE):
            yield self._complete_events_of_rows(frame[rows[first : first + _AT_ONCE]])

    def _complete_events_of_rows(self, rows: pl.DataFrame) -> str:
        """Complete events of rows of one lane; texts are escaped once, not once an event."""
        columns = [_texts_as_json(slice_names(rows) if "module" in rows.columns else rows["name"])]
        parts = [pl.lit('{"ph":"X","pid":1,"tid":' + f'{self._thread},"name":'), pl.col("name")]
        if "phase" in rows.columns:
            columns += [_texts_as_json(rows[name]) for name in ("phase", "module", "source")]
            columns += [_texts_as_json(rows["name"]).alias("op"), *(rows[name] for name in _OF_OPS)]
            parts += [pl.lit(',"cat":'), pl.col("phase"), pl.lit(',"args":{"op":'), pl.col("op")]
            parts += [pl.lit(',"module":'), pl.col("module"), pl.lit(',"source":'), pl.col("source")]
            parts += [*_number_fields(_OF_OPS), pl.lit("}")]
        elif "loss" in rows.columns:
            columns += [rows[name] for name in _OF_STEPS]
            parts += [pl.lit(',"args":{"of":"step"'), *_number_fields(_OF_STEPS), pl.lit("}")]
        columns += [(rows["t0_ns"] - self.zero_ns).alias("ts"), (rows["t1_ns"] - rows["t0_ns"]).alias("dur")]
        parts += [*_time_field_us("ts"), *_time_field_us("dur"), pl.lit("}")]
        return _join_rows(pl.DataFrame(columns), pl.concat_str(parts))

    def _counter_events(self, track: SampledTrack) -> str:
        head = f'{{"ph":"C","pid":{_PROCESS},"name":{json.dumps(f"{track.name} [{track.unit}]")}'
        rows = pl.DataFrame({"ts": track.t_ns - self.zero_ns, "value": track.values})
        value = pl.col("value").cast(pl.String)
        return _join_rows(
            rows, pl.concat_str(pl.lit(head), *_time_field_us("ts"), pl.lit(',"args":{"value":'), value, pl.lit("}}"))
        )


def _number_fields(names: tuple[str, ...]) -> Iterator[pl.Expr]:
    """Numbers and truths as fields of JSON; a loss that is no number is null there."""
    for name in names:
        finite = pl.when(pl.col(name).is_finite()).then(name) if name == "loss" else pl.col(name)
        yield pl.lit(f',"{name}":')
        yield finite.cast(pl.String).fill_null("null")


def _event_line(kind: str, name: str, tid: int = 0, **fields: Any) -> str:
    event = {"ph": kind, "pid": _PROCESS, "tid": tid, "name": name, **fields}
    return json.dumps(event, separators=(",", ":"), default=str)


def _join_rows(rows: pl.DataFrame, text: pl.Expr) -> str:
    return str(rows.select(text.str.join(",\n")).item())


def _time_field_us(column: str) -> tuple[pl.Expr, ...]:
    """A time of ns as a field of us with all its digits."""
    nanoseconds = (pl.col(column) % 1000).cast(pl.String).str.zfill(3)
    return pl.lit(f',"{column}":'), (pl.col(column) // 1000).cast(pl.String), pl.lit("."), nanoseconds


def _texts_as_json(texts: pl.Series) -> pl.Series:
    """Texts as JSON; null for none."""
    distinct = texts.cast(pl.String).drop_nulls().unique(maintain_order=True)
    json_of = pl.Series([json.dumps(text) for text in distinct], dtype=pl.String)
    escaped = texts.cast(pl.String).replace_strict(distinct, json_of, default="null", return_dtype=pl.String)
    named: pl.Series = escaped.fill_null("null").alias(texts.name)
    return named


_ORIGIN_META = ("workload", "clock", "threads", "seed", "simulated", "framework", "reason")
_WHOLE_META = ("overhead", "result")
_ORIGIN_DEVICE = ("board", "cpu", "machine", "cores", "clusters", "memory_bytes", "os", "accelerators")


def origin(excerpt: Excerpt, zero_ns: int) -> dict[str, Any]:
    """The run, its times' zero (CLOCK_MONOTONIC, ns), its setting, its device and the tree of its modules."""
    run = excerpt.run
    stated = (*_ORIGIN_META, *(_WHOLE_META if excerpt.whole else ()))
    before = 0 if excerpt.steps.is_empty() else int(excerpt.steps["step"][0])
    return {
        "stepscope": __version__,
        "run": run.id,
        "zero_ns": zero_ns,
        "meta": {
            **{name: run.meta[name] for name in stated if name in run.meta},
            "warmup_steps": max(run.warmup_steps - before, 0),
            "status": run.status,
        },
        "device": {name: run.device[name] for name in _ORIGIN_DEVICE if name in run.device},
        "modules": run.model.to_dicts(),
    }
