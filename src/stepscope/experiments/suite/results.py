"""The results of a sweep: tables over the repeats, corrected model table, score against a reference device."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.estimate import Estimate, geometric_mean_of_ratios, geometric_mean_of_repeats
from stepscope.errors import RunDamaged, RunNotFound, SchemaTooNew, UnknownName
from stepscope.experiments.engine.folder import SweepFolder, translate_sweep_write_errors
from stepscope.files import replace_json
from stepscope.quantities import SUITE_COLUMNS

COLUMNS = tuple(column.name for column in SUITE_COLUMNS)
RESULT_SCHEMA = 2  # since 2 the batch of a training of the user's own is null
KIND = "stepscope suite result"
SETTING = ("workload", "batch", "optimizer", "precision", "threads", "device")
WAITING = "not run yet"
SHARES = tuple(column.name for column in SUITE_COLUMNS if column.unit == "1")
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


def read_results(path: Path) -> Results:
    """The results in a folder of a sweep, finished or not, or in a result file, whose hash must hold."""
    return _results_of_file(path) if path.is_file() else results_of_folder(SweepFolder(path))


def results_of_folder(folder: SweepFolder) -> Results:
    """Return what has ended so far, and what is still to come, in the order of the plan."""
    ended, plan = folder.results(), folder.plan
    waiting = {"status": WAITING}
    runs = [{"point": point.to_dict(), **(ended.get(point.id) or waiting)} for point in folder.order]
    workloads = {
        name: {key: about[key] for key in ("definition", "about")} for name, about in plan["workloads"].items()
    }
    content = {key: plan[key] for key in ("name", "created", "tier", "rules", "device", "versions", "limits")}
    return Results({"kind": KIND, "schema": RESULT_SCHEMA, **content, "workloads": workloads, "runs": runs})


def settings_table(results: Results) -> pl.DataFrame:
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
        ends = {
            f"{what}_{end}": _extreme_channel_value(run, end, key)
            for end in ("at_start", "at_end")
            for what, key in _ENDS
        }
        outcome = {"status": run["status"], "reason": run.get("reason"), "flags": "; ".join(run.get("flags") or [])}
        rows.append({**run["point"], **outcome, "steps": run.get("steps"), **numbers, **ends})
    return pl.DataFrame(rows, infer_schema_length=None)


def save_results(results: Results, path: Path) -> str:
    """Write the file that travels; returns the hash of its content."""
    digest = sha256(results.content)
    with translate_sweep_write_errors(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_json(path, {**results.content, "sha256": digest}, durable=True)
    return digest


def sha256(content: Mapping[str, Any]) -> str:
    """Hash of the content in canonical JSON, itself excluded."""
    plain = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(plain, sort_keys=True, separators=(",", ":"), default=str).encode()).hexdigest()


_ENDS = (("celsius", "temperatures_celsius"), ("hz", "frequencies_hz"))


def _extreme_channel_value(run: Mapping[str, Any], end: str, key: str) -> float | None:
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
        low, value, high = _over_repeats([run["numbers"][name] for run in well if name in run.get("numbers", {})])
        if name in SHARES and low is not None and high is not None:
            low, high = max(low, 0.0), min(high, 1.0)
        row.update({f"{name}_low": low, name: value, f"{name}_high": high})
    return row


def _flags(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The flags of the repeats, each kind once with the words of the first that has it."""
    kinds: dict[str, list[str]] = {}
    for flag in (flag for run in runs for flag in run.get("flags") or []):
        kinds.setdefault(re.sub(r"\d[\d.,]*", "#", flag.partition(":")[0]), []).append(flag)
    many = len(runs) > 1
    return [
        f"{sentences[0]} ({len(sentences)} of {len(runs)} repeats)" if many else sentences[0]
        for sentences in kinds.values()
    ]


def _status(runs: Sequence[Mapping[str, Any]]) -> str:
    counted = Counter(str(run["status"]) for run in runs)
    if len(counted) == 1:
        return next(iter(counted))
    return ", ".join(f"{status} {count} of {len(runs)}" for status, count in counted.most_common())


def _over_repeats(repeats: Sequence[Mapping[str, float | None]]) -> tuple[float | None, float | None, float | None]:
    """(low, value, high) over the repeats."""
    measured = [
        Estimate(repeat["value"], repeat["low"], repeat["high"]) for repeat in repeats if repeat["value"] is not None
    ]
    if not repeats or len(measured) < len(repeats):
        return None, None, None
    mean = geometric_mean_of_repeats(measured)
    return mean.low, mean.value, mean.high


def _results_of_file(path: Path) -> Results:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDamaged(f"'{path}' cannot be read: {error}") from error
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise RunNotFound(f"'{path}' is not the result of a suite", "make one: stepscope suite export DIR --to result")
    if content.get("schema", 0) > RESULT_SCHEMA:
        raise SchemaTooNew(
            f"'{path}' has schema {content['schema']}; this Stepscope reads {RESULT_SCHEMA}", "update stepscope"
        )
    if content.get("sha256") != sha256(content):
        raise RunDamaged(f"'{path}' is not what was exported: its content has another hash", "export it again")
    return Results(content)


DEVICES = Path(__file__).parent / "reference_devices"
_KEY = ("workload", "batch", "optimizer", "precision")
_PARTS = {
    **dict.fromkeys(_KEY, pl.String), "batch": pl.Int64, "reference": pl.Float64, "here": pl.Float64,
    "ratio": pl.Float64, "low": pl.Float64, "high": pl.Float64, "remark": pl.String,
}  # fmt: skip


@dataclass(frozen=True)
class Score:
    """Geometric mean of reference / here over the parts that both measured; above 1 is better than the reference.

    `low` and `high` carry the intervals of both devices. `parts` has every part of the reference, with a remark where
    it does not count or was trained on other data; a score over other parts is not to be compared with this one.
    """

    column: str
    reference: str
    value: float | None
    low: float | None
    high: float | None
    parts: pl.DataFrame

    @property
    def counted(self) -> int:
        """Parts that count."""
        return int(self.parts["ratio"].is_not_null().sum())


def reference_names() -> list[str]:
    """The stored devices."""
    return sorted(path.stem for path in DEVICES.glob("*.json"))


def read_reference(name: str) -> Results:
    """A stored device, or a result file of the user's own."""
    if Path(name).exists():
        return read_results(Path(name))
    if name not in reference_names():
        raise UnknownName("reference device", name, reference_names())
    return read_results(DEVICES / f"{name}.json")


def score(here: Results, against: Results, column: str = "step_time_ms") -> Score:
    """J. E. Smith, Characterizing computer performance with a single number, CACM 31, 1988, says what it can mean;
    the geometric mean does not depend on which device is the reference."""
    ours, theirs = _best_settings(here, column), _best_settings(against, column)
    rows = [_part(key, theirs[key], ours.get(key), here, against, column) for key in sorted(theirs)]
    parts = pl.DataFrame(rows, schema=_PARTS)
    ratios = parts.drop_nulls("ratio")
    whole = geometric_mean_of_ratios(Estimate(*ends) for ends in ratios.select("ratio", "low", "high").iter_rows())
    if whole is None:
        return Score(column, against.name, None, None, None, parts)
    return Score(column, against.name, *whole.row, parts)


def _best_settings(results: Results, column: str) -> dict[tuple[Any, ...], dict[str, Any]]:
    frame = settings_table(results).sort(column, nulls_last=True, maintain_order=True)
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in frame.iter_rows(named=True):
        best.setdefault(tuple(row[name] for name in _KEY), row)
    return best


def _part(
    key: tuple[Any, ...],
    theirs: Mapping[str, Any],
    ours: Mapping[str, Any] | None,
    here: Results,
    against: Results,
    column: str,
) -> dict[str, Any]:
    part: dict[str, Any] = {**dict(zip(_KEY, key, strict=True)), "reference": theirs[column]}
    name = key[0]
    if theirs[column] is None:
        return {**part, "remark": f"the reference: {theirs['status']}"}
    if ours is None:
        return {**part, "remark": "not in this sweep"}
    if ours[column] is None:
        return {**part, "remark": ours["status"] if ours["status"] != "ok" else "not measured"}
    if _comparable_definition(here, name) != _comparable_definition(against, name):
        return {**part, "here": ours[column], "remark": "the workload is defined differently"}
    data = {row["data_sha256"] for row in (theirs, ours)} - {None}
    remark = "trained on other data" if len(data) > 1 else None
    ratio = _estimate(theirs, column) / _estimate(ours, column)
    ends = (None, None, None) if ratio is None else ratio.row
    return {**part, "here": ours[column], **dict(zip(("ratio", "low", "high"), ends, strict=True)), "remark": remark}


def _estimate(row: Mapping[str, Any], column: str) -> Estimate:
    """A number of a row; an end at or below 0 counts as a tenth of the value."""
    value, low = row[column], row[f"{column}_low"]
    return Estimate(value, None if low is None else max(low, value / 10), row[f"{column}_high"])


def _comparable_definition(results: Results, workload: str) -> object:
    definition = results.workloads.get(workload, {}).get("definition", {})
    own = ("own", "source_sha256", "modules") if "own" in definition else ("model_sha256", "input_shape", "parameters")
    return {key: definition.get(key) for key in own}


def published_figure_rows(results: Results) -> list[dict[str, Any]]:
    """A row for each printed figure; FLOPs are those counted in the runs, per sample, 1 MAC = 2 FLOPs."""
    rows = []
    for name, workload in results.workloads.items():
        true = _counted_figures(results, name, workload["definition"].get("parameters"))
        for printed in workload["about"].get("published", ()):
            figure = {"quantity": printed["quantity"], "printed": f"{printed['value']} ({printed['source']})"}
            rows.append({"workload": name, **figure, "meaning": printed["remark"], **true})
    return rows


def _counted_figures(results: Results, workload: str, parameters: int | None) -> dict[str, Any]:
    runs = [run for run in results.runs if run["point"]["workload"] == workload and run.get("flops_forward")]
    if not runs:
        return {"parameters": parameters, "flops_forward": None, "flops_training": None}
    forward, backward = runs[0]["flops_forward"], runs[0]["flops_backward"]
    training = None if backward is None else forward + backward
    return {"parameters": parameters or runs[0]["parameters"], "flops_forward": forward, "flops_training": training}
