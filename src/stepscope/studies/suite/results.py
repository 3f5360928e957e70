"""The results of a sweep: read from its folder or from a file that travelled, as tables over the repeats."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.intervals import known, mean_interval
from stepscope.errors import RunDamaged, RunNotFound, SchemaTooNew
from stepscope.studies.suite.columns import COLUMNS
from stepscope.studies.suite.state import SweepFolder, write_durably, writing

SCHEMA = 1
KIND = "stepscope suite result"
SETTING = ("workload", "batch", "optimizer", "precision", "threads", "device")
WAITING = "not run yet"
SHARES = ("cpu_utilisation", "gpu_utilisation")  # 0 to 1
_SCHEMA_OF_TABLE = {
    **dict.fromkeys(SETTING, pl.String), "batch": pl.Int64, "threads": pl.Int64,
    "repeats": pl.Int64, "status": pl.String, "reason": pl.String, "data": pl.String, "data_sha256": pl.String,
    **{f"{name}{end}": pl.Float64 for name in COLUMNS for end in ("", "_low", "_high")},
    "interval_of": pl.String, "flags": pl.String,
}  # fmt: skip


@dataclass(frozen=True)
class Results:
    """A sweep as it is compared: `content` is what travels, plain JSON."""

    content: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.content["name"])

    @property
    def runs(self) -> list[dict[str, Any]]:
        return list(self.content["runs"])

    @property
    def device(self) -> Mapping[str, Any]:
        return dict(self.content["device"])

    @property
    def workloads(self) -> Mapping[str, Any]:
        return dict(self.content["workloads"])


def read(path: Path) -> Results:
    """The results in a folder of a sweep, finished or not, or in a result file, whose hash must hold."""
    return _of_file(path) if path.is_file() else of_folder(SweepFolder(path))


def of_folder(folder: SweepFolder) -> Results:
    """What has ended so far, and what is still to come, in the order of the plan."""
    ended, plan = folder.ended(), folder.plan
    runs = [ended.get(point.id) or {"point": point.to_dict(), "status": WAITING} for point in folder.order]
    workloads = {
        name: {key: about[key] for key in ("definition", "about")} for name, about in plan["workloads"].items()
    }
    content = {key: plan[key] for key in ("name", "created", "tier", "rules", "device", "versions", "limits")}
    return Results({"kind": KIND, "schema": SCHEMA, **content, "workloads": workloads, "runs": runs})


def table(results: Results) -> pl.DataFrame:
    """A row for each setting: geometric mean over its repeats with the interval of that mean (Student, 95 %).

    Of a single repeat the interval is the one within the run, and `interval_of` says so. Columns: the setting,
    repeats that ended well, status, reason, data, COLUMNS each with _low and _high, interval_of, flags. Units are in
    the names; null is not measured.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for run in results.runs:
        groups.setdefault(tuple(run["point"][name] for name in SETTING), []).append(run)
    rows = [{**dict(zip(SETTING, setting, strict=True)), **_row(runs)} for setting, runs in groups.items()]
    frame = pl.DataFrame(rows, schema=_SCHEMA_OF_TABLE)
    return frame.sort("workload", "precision", "optimizer", "threads", "device", "batch")


def runs_table(results: Results) -> pl.DataFrame:
    """A row for each run: setting, repeat, status, reason, the numbers, temperatures and clocks at both ends, flags."""
    rows = []
    for run in results.runs:
        numbers = {name: (run.get("numbers") or {}).get(name, {}).get("value") for name in COLUMNS}
        ends = {f"{what}_{end}": _most(run, end, key) for end in ("at_start", "at_end") for what, key in _ENDS}
        told = {"status": run["status"], "reason": run.get("reason"), "flags": "; ".join(run.get("flags") or [])}
        rows.append({**run["point"], **told, "steps": run.get("steps"), **numbers, **ends})
    return pl.DataFrame(rows, infer_schema_length=None)


def save(results: Results, path: Path) -> str:
    """Write the file that travels; returns the hash of its content."""
    digest = sha256(results.content)
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_durably(path, {**results.content, "sha256": digest})
    return digest


def sha256(content: Mapping[str, Any]) -> str:
    """Hash of the content in canonical JSON, itself left out."""
    plain = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()


_ENDS = (("celsius", "temperatures_celsius"), ("hz", "frequencies_hz"))


def _most(run: Mapping[str, Any], end: str, key: str) -> float | None:
    """The hottest zone, or the fastest clock, at one end of a run."""
    values = ((run.get(end) or {}).get(key) or {}).values()
    return max((float(value) for value in values if value is not None), default=None)


def _row(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    well = [run for run in runs if run["status"] == "ok"]
    data = next((run["data"] for run in runs if run.get("data")), None) or {}
    row: dict[str, Any] = {
        "repeats": len(well),
        "status": _status(runs),
        "reason": next((run["reason"] for run in runs if run.get("reason")), None),
        "data": data.get("kind"),
        "data_sha256": data.get("sha256"),
        "interval_of": {0: None, 1: "steps"}.get(len(well), "repeats"),
        "flags": "; ".join(_flags(runs)),
    }
    for name in COLUMNS:
        low, value, high = _over([run["numbers"][name] for run in well if name in run.get("numbers", {})])
        if name in SHARES and low is not None and high is not None:
            low, high = max(low, 0.0), min(high, 1.0)
        row.update({f"{name}_low": low, name: value, f"{name}_high": high})
    return row


def _flags(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The flags of the repeats, each kind once with the words of the first that has it."""
    kinds: dict[str, list[str]] = {}
    for flag in (flag for run in runs for flag in run.get("flags") or []):
        kinds.setdefault(flag.partition(":")[0], []).append(flag)
    many = len(runs) > 1
    return [f"{said[0]} ({len(said)} of {len(runs)} repeats)" if many else said[0] for said in kinds.values()]


def _status(runs: Sequence[Mapping[str, Any]]) -> str:
    """`ok`, or each status with how many repeats have it."""
    counted = Counter(str(run["status"]) for run in runs)
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{status} {count} of {len(runs)}" for status, count in counted.most_common())


def _over(repeats: Sequence[Mapping[str, float | None]]) -> tuple[float | None, float | None, float | None]:
    """(low, value, high) over the repeats; on a logarithmic scale, since times, rates and sizes are above 0."""
    if len(repeats) == 1:
        return repeats[0]["low"], repeats[0]["value"], repeats[0]["high"]
    values = np.array([each["value"] for each in repeats], dtype=np.float64)
    if len(values) and values.min() > 0:
        mean, low, high = (known(math.exp(x)) for x in mean_interval(np.log(values)))
    else:
        mean, low, high = (known(x) for x in mean_interval(values))
    return low, mean, high


def _of_file(path: Path) -> Results:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDamaged(f"'{path}' cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise RunNotFound(f"'{path}' is not the result of a suite", "make one: stepscope suite export DIR --to result")
    if content.get("schema", 0) > SCHEMA:
        raise SchemaTooNew(
            f"'{path}' has schema {content['schema']}; this Stepscope reads {SCHEMA}", "update stepscope"
        )
    if content.get("sha256") != sha256(content):
        raise RunDamaged(f"'{path}' is not what was exported: its content has another hash", "export it again")
    return Results(content)
