"""A plant as a run folder in the documented format, and what the product makes of it beside the truth."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from scipy.special import ndtri  # type: ignore[import-untyped]

import stepscope
from benchmarks.hostile.plant import WARM_UP, Plant
from benchmarks.hostile.sensors import CHANNELS, Readings, Sensor
from benchmarks.hostile.structures import PAUSES
from stepscope.runfolder import Part, RunWriter, sample_dtype

STEPS_A_PART = 32
CLAIMS = {"resolved": 0.1, "within 10 %": 0.1, "coarse": 0.3, "within 30 %": 0.3}
LEAST_SHARE = 0.003  # of the energy: smaller parts are left out of what is counted


def write(plant: Plant, sensor: Sensor, read: Sequence[tuple[dict[str, Any], Readings]], out: Path) -> Path:
    """Write the run below `out` and return its folder."""
    writer = RunWriter.create(out, "plant", unix_s=1_700_000_000)
    workload = {"name": "plant", "batch_size": 8, "optimizer": "SGD", "precision": "float32", "device": "cpu"}
    sampler = {"period_ns": 10_000_000}
    writer.update(workload=workload, warmup_steps=WARM_UP, pid=2**22 + 1, threads=1, sampler=sampler)
    writer.update(recorder={"mode": "all" if plant.profiled.all() else "adaptive", "lost": 0}, seed=0)
    writer.write_device({**CHANNELS[sensor.channel][1], "memory_bytes": 8_000_000_000})
    writer.write_model(plant.step.modules)
    begin = np.rint(plant.edges[0][:, 0] * 1e9).astype(np.int64)
    end = np.rint(plant.edges[0][:, -1] * 1e9).astype(np.int64)
    for step, (t0_ns, t1_ns) in enumerate(zip(begin.tolist(), end.tolist(), strict=True)):
        writer.append_step(step, t0_ns, t1_ns, 8, 1.0, bool(plant.profiled[step]))
    writer.flush_steps()
    chosen = np.flatnonzero(plant.profiled)
    for first in range(0, len(chosen), STEPS_A_PART):
        writer.write_ops(_part(plant, chosen[first : first + STEPS_A_PART]))
    channels = [channel for channel, _ in read]
    content = {"period_ns": 10_000_000, "dither": 0.5, "channels": channels, "missing": [], "pid": 2**22 + 1}
    (writer.path / "channels.json").write_text(json.dumps(content))
    for channel, rows in read:
        table = np.zeros(len(rows.values), dtype=sample_dtype([channel["id"]]))
        table["t0_ns"], table["t1_ns"] = np.rint(rows.t0_s * 1e9), np.rint(rows.t1_s * 1e9)
        table[channel["id"]] = rows.values
        (writer.path / "samples" / f"{channel['sensor']}.rows").write_bytes(table.tobytes())
    writer.close("ok")
    return writer.path


def _part(plant: Plant, steps: Any) -> Part:
    """Op calls of these steps; `parent` counts rows within a step."""
    columns, count = plant.step.columns, len(plant.step.columns["name"])
    t0_ns, t1_ns, own = (np.zeros((len(steps), count)) for _ in range(3))
    for lane, edges in zip(plant.step.lanes, plant.edges, strict=True):
        t0_ns[:, lane.rows], t1_ns[:, lane.rows] = edges[steps][:, lane.first], edges[steps][:, lane.last]
        for place, length in enumerate(np.diff(edges[steps], axis=1)):
            busy = lane.owner >= 0
            own[place] += np.bincount(lane.owner[busy], length[busy], count)
    said = {name: np.tile(columns[name], len(steps)) for name in ("parent", "flops", "bytes", "thread")}
    numbers = {"t0_ns": t0_ns, "t1_ns": t1_ns, "self_ns": own}
    said |= {name: np.rint(values * 1e9).astype(np.int64).ravel() for name, values in numbers.items()}
    texts: dict[str, list[str]] = {}
    for name in ("name", "module", "phase", "device"):
        texts[name] = sorted({text for text in columns[name] if text is not None})
        places = [-1 if text is None else texts[name].index(text) for text in columns[name]]
        said[name] = np.tile(np.array(places, dtype=np.int32), len(steps))
    return Part({"step": np.repeat(steps, count), **said}, texts)


@dataclass(frozen=True)
class Parts:
    """Joules of parts beside the truth, in arrays of one length; an interval that is not stated is NaN."""

    names: list[Any]
    true: Any
    found: Any
    low: Any
    high: Any
    claim: Any  # 0.1, 0.3, or infinity for none

    @property
    def off(self) -> Any:
        """Relative error of each part."""
        return np.abs(self.found / self.true - 1)

    def error(self) -> float:
        """Mean absolute error, weighted by energy."""
        return float(np.abs(self.found - self.true).sum() / self.true.sum())


@dataclass(frozen=True)
class Score:
    """What one run of a plant gave; `refused` is why there is nothing to score."""

    kinds: Parts | None
    modules: Parts | None
    whole_off: float
    whole_holds: bool | None
    meter_holds: bool | None  # does the interval of a meter in the supply line hold the true total
    caused_error: float  # of kinds, against what each op causes
    note: str
    refused: str | None = None


def score(run: stepscope.Run, plant: Plant, true_j: float | None = None) -> Score:
    """Compare `Run.energy` of the first rail with the truth of the plant.

    true_j: J a step as a meter would measure them, where the sensor shows something else.
    """
    rail = rail_of(run)
    # What an operator causes and what flows during its time are two things where the table tells them apart.
    tells = "during_per_step" in run.energy(by="kind").columns
    truth = plant.truth_caused if tells else plant.truth
    kinds = parts_beside(run.energy(by="kind"), rail, truth["kind"], lambda row: row["name"])
    modules = parts_beside(run.energy(by="module"), rail, truth["module"], _module)
    caused = parts_beside(run.energy(by="kind"), rail, plant.truth_caused["kind"], lambda row: row["name"])
    whole = run.energy(by="component").filter(pl.col("rail") == rail)
    off, holds, note = float("nan"), None, ""
    true = plant.truth["whole"][""]
    if len(whole) and whole["joules_per_step"][0] is not None:
        found, low, high = (whole[name][0] for name in ("joules_per_step", "low", "high"))
        low, high = _at_90(found, low, high)
        off = found / true - 1
        holds = None if low is None or high is None else bool(low <= true <= high)
    # Totals of a run leave pauses between steps out.
    meter = _meter_holds(run, (true if true_j is None else true_j) - plant.truth["kind"][PAUSES])
    resolution = run.energy_resolution().filter(pl.col("rail") == rail)
    if len(resolution):
        note = str(resolution["note"][0] or "")
    if kinds is None:
        return Score(None, None, off, holds, meter, float("nan"), note, note or "no energy by kind")
    return Score(kinds, modules, off, holds, meter, caused.error() if caused else float("nan"), note)


def _meter_holds(run: stepscope.Run, true_j: float) -> bool | None:
    """Whether the interval of a meter holds the true total; None where none is stated."""
    totals = run.energy_totals()
    if "meter_low" not in totals.columns or not len(totals) or totals["meter_low"][0] is None:
        return None
    row = totals.row(0, named=True)
    true = true_j * row["joules"] / row["joules_per_step"]
    return bool(row["meter_low"] <= true <= row["meter_high"])


def _module(row: dict[str, Any]) -> tuple[Any, Any]:
    name = row["name"] if row["module"] is None else row["module"]
    return name, row["phase"]


def parts_beside(table: pl.DataFrame, rail: str, true: dict[Any, float], key: Any) -> Parts | None:
    """Rows of the rail that have a truth; what the product does not name was given 0 J by it."""
    rows = {key(row): row for row in table.filter(pl.col("rail") == rail).iter_rows(named=True)}
    known = {name: row for name, row in rows.items() if row["joules_per_step"] is not None}
    if not known.keys() & true.keys():
        return None
    names = [name for name, joules in true.items() if joules > 0]
    found, low, high, claim = [], [], [], []
    for name in names:
        row = known.get(name)
        found.append(0.0 if row is None else row["joules_per_step"])
        ends = (None, None) if row is None else _at_90(row["joules_per_step"], row["low"], row["high"])
        low.append(np.nan if ends[0] is None else ends[0])
        high.append(np.nan if ends[1] is None else ends[1])
        claim.append(np.inf if row is None else CLAIMS.get(str(row["verdict"]), np.inf))
    return Parts(names, np.array([true[name] for name in names]), *map(np.array, (found, low, high, claim)))


def stated_level() -> float:
    """Confidence of the intervals of `Run.energy`, as its documentation states it."""
    stated = re.search(r"(\d+) % CI", stepscope.Run.energy.__doc__ or "")
    return float(stated.group(1)) / 100 if stated else 0.9


def _at_90(found: float, low: float | None, high: float | None) -> tuple[float | None, float | None]:
    """The interval at 90 %, of one that is stated at another level."""
    if low is None or high is None:
        return None, None
    factor = float(ndtri(0.95) / ndtri(0.5 + stated_level() / 2))
    return found - factor * (found - low), found + factor * (high - found)


@dataclass(frozen=True)
class Sums:
    """Several runs together, J: of what is large enough to count."""

    error: float
    stated: float = 0.0  # energy with an interval, of runs that call something within 10 %
    inside: float = 0.0
    energy: float = 0.0
    called: float = 0.0
    true: float = 0.0
    false_10: int = 0  # parts called within 10 % that are off by more than 30 %
    false_30: int = 0  # parts called within 30 % that are, and outside their own interval
    worst: float = 0.0


def together(parts: Sequence[Parts]) -> Sums:
    """Pool runs; those that call nothing within 10 % state no interval that is counted."""
    sums: dict[str, float] = dict.fromkeys(("stated", "inside", "energy", "called", "true"), 0.0)
    false_10 = false_30 = 0
    worst = 0.0
    for part in parts:
        share = part.true / part.true.sum()
        large = share >= LEAST_SHARE
        within = large & (part.claim <= 0.1)
        stated = large & ~np.isnan(part.low)
        inside = stated & (part.low <= part.true) & (part.true <= part.high)
        if within.any():
            sums["stated"] += float(share[stated].sum())
            sums["inside"] += float(share[inside].sum())
        sums["energy"] += float(share[large].sum())
        sums["called"] += float(share[within].sum())
        sums["true"] += float(share[within & (part.off <= 0.1)].sum())
        false_10 += int((within & (part.off > 0.3)).sum())
        false_30 += int((large & (part.claim == 0.3) & (part.off > 0.3) & ~inside).sum())
        if within.any():
            worst = max(worst, float(part.off[within].max()))
    error = float(np.mean([part.error() for part in parts])) if parts else float("nan")
    return Sums(error, **sums, false_10=false_10, false_30=false_30, worst=worst)


def rail_of(run: stepscope.Run) -> str:
    """Name of the first rail that was measured, as the product gives it."""
    rails = run.energy(by="component")["rail"].to_list()
    return str(rails[0]) if rails else ""
