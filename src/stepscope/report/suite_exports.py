"""A sweep in the formats of others: Markdown, and log lines as MLPerf's checkers read them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import polars as pl

from stepscope.units import NOT_MEASURED, bytes_, number, percent

_ENERGY = tuple(f"{kind}energy_per_{per}_j" for kind in ("", "estimated_", "simulated_") for per in ("step", "sample"))
_FORMS: dict[str, Callable[[float | None], str]] = {
    "step_time_ms": number, "samples_per_s": number, **dict.fromkeys(_ENERGY, number),
    "peak_live_bytes": bytes_, "peak_reserved_bytes": bytes_, "peak_process_bytes": bytes_,
    "cpu_utilisation": percent, "gpu_utilisation": percent, "frames_per_s": number,
}  # fmt: skip
_SETTING = ("workload", "batch", "optimizer", "precision", "threads", "device")


def markdown(table: pl.DataFrame, heading: str, lines: Sequence[str]) -> str:
    """A page with one table; intervals stand in brackets, columns that nobody measured are left out."""
    columns = [name for name in _FORMS if table[name].is_not_null().any()]
    titles = [*_SETTING, *(name.replace("_", " ") for name in columns), "status", "data", "flags"]
    rows = [_cells([*(row[name] for name in _SETTING), *(_number(row, name) for name in columns),
            row["status"], row["data"], row["flags"]]) for row in table.iter_rows(named=True)]  # fmt: skip
    body = [_cells(titles), _cells(["---"] * len(titles)), *rows]
    return "\n".join([f"# {heading}", "", *(f"- {line}" for line in lines), "", *body]) + "\n"


def mlperf(runs: Sequence[Mapping[str, Any]], device: Mapping[str, Any], versions: Mapping[str, Any]) -> Iterator[str]:
    """Lines of MLPerf's logging format (`:::MLLOG`); the keys of ours begin with `stepscope_`.

    This is no MLPerf result: no run trains to a target quality. The time of a line is when its run had ended.
    """
    first_ms = min((run["ended_unix_ms"] for run in runs if run.get("ended_unix_ms")), default=0)
    yield _line(first_ms, "submission_platform", device.get("board") or device.get("cpu"), {})
    yield _line(first_ms, "stepscope_versions", dict(versions), {})
    for run in runs:
        point = run["point"]
        about = {key: point[key] for key in ("workload", "precision", "threads", "device", "repeat")}
        time_ms = run.get("ended_unix_ms") or first_ms
        yield _line(time_ms, "submission_benchmark", point["workload"], about)
        yield _line(time_ms, "global_batch_size", point["batch"], about)
        yield _line(time_ms, "opt_name", point["optimizer"], about)
        for name, measured in (run.get("numbers") or {}).items():
            yield _line(time_ms, f"stepscope_{name}", measured["value"], {**about, **_interval(measured)})
        status = "success" if run["status"] == "ok" else "aborted"
        yield _line(
            time_ms, "run_stop", None, {**about, "status": status, "reason": run.get("reason") or run["status"]}
        )


def _line(time_ms: int, key: str, value: Any, metadata: Mapping[str, Any]) -> str:
    told = {"namespace": "", "time_ms": time_ms, "event_type": "POINT_IN_TIME", "key": key, "value": value}
    return f":::MLLOG {json.dumps({**told, 'metadata': dict(metadata)}, default=str)}"


def _interval(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{end}_95": measured[end] for end in ("low", "high") if measured[end] is not None}


def _number(row: Mapping[str, Any], name: str) -> str:
    form, low, high = _FORMS[name], row[f"{name}_low"], row[f"{name}_high"]
    between = "" if low is None or high is None else f" ({form(low)} to {form(high)})"
    return f"{form(row[name])}{between}"


def _cells(values: Sequence[Any]) -> str:
    texts = (NOT_MEASURED if value in (None, "") else str(value).replace("|", "\\|") for value in values)
    return f"| {' | '.join(texts)} |"
