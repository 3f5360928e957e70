"""Energy of a run as tables: by component, by rail, and by step; and what to know when reading them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.energy import Energy, added, energy_over, idle_stretch, remaining, steady_stretches
from stepscope.analysis.rails import Line, RailTree
from stepscope.analysis.steady import steady_steps
from stepscope.runfolder import RunReader
from stepscope.units import number, percent

ESTIMATED = "estimated"  # the kind of what comes of a power model
NO_INTERVAL = "no interval: estimated"
REST = "rest"  # what a rail gave beside the measured rails inside it

TOTALS = {
    "component": pl.String,
    "rail": pl.String,
    "source": pl.String,
    "joules": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "joules_per_step": pl.Float64,
    "joules_per_step_low": pl.Float64,
    "joules_per_step_high": pl.Float64,
    "joules_per_sample": pl.Float64,
    "watts_mean": pl.Float64,
    "watts_low": pl.Float64,
    "watts_high": pl.Float64,
    "idle_watts": pl.Float64,
    "covered_s": pl.Float64,
    "gap_s": pl.Float64,
    "windows": pl.Int64,
    "kind": pl.String,
}
RAILS = {"scope": pl.String, "inside": pl.String, "meaning": pl.String, **TOTALS}
STEPS = {
    "step": pl.Int64,
    "component": pl.String,
    "rail": pl.String,
    "joules": pl.Float64,
    "resolved": pl.Boolean,
    "kind": pl.String,
}
_DISAGREE = 0.05  # of the better source's power


@dataclass(frozen=True)
class EnergyTables:
    """The energy of a run: one row a component (the total first), one row a rail, and sentences for the reader."""

    totals: pl.DataFrame
    rails: pl.DataFrame
    notes: tuple[str, ...]


def energy_tables(run: RunReader, tree: RailTree) -> EnergyTables:
    """Energy over the steady steps, by component and by rail."""
    spans = steady_stretches(run)
    if not len(spans) or not tree.lines:
        return EnergyTables(pl.DataFrame(schema=TOTALS), pl.DataFrame(schema=RAILS), tree.notes)
    per = _Steps.of(run)
    of = {line.key: energy_over(line.best, spans) for line in tree.lines}
    idle = _idle(run, tree)
    simulated = run.meta.get("simulated") is not None
    components = [
        _row(name, lines, added([of[line.key] for line in lines]), per, simulated, _sum(idle, lines))
        for name, lines in tree.components()
    ]
    rest = _rest(tree, of)
    if rest is not None and tree.total is not None:
        row = _row(REST, tree.total, rest, per, simulated, None, f"rest of {tree.total[0].name}")
        components.insert(sum(row["kind"] != "estimated" for row in components), row)
    names = {line.key: line.name for line in tree.lines}
    rails = []
    for line in tree.lines:
        entry = {
            "scope": line.scope,
            "inside": names.get(line.parent or ""),
            "meaning": (line.entry.meaning if line.entry else "") or None,
        }
        rails.append({**entry, **_row(line.component, [line], of[line.key], per, simulated, idle.get(line.key))})
    notes = (*tree.notes, *_notes(tree, of, spans))
    return EnergyTables(pl.DataFrame(components, schema=TOTALS), pl.DataFrame(rails, schema=RAILS), notes)


def step_energy_table(run: RunReader, tree: RailTree) -> pl.DataFrame:
    """Energy of each steady step by component, J; null where a gap touches it or the sensor cannot resolve a step."""
    steps = steady_steps(run)
    edges = steps.select("t0_ns", "t1_ns").cast(pl.Float64).to_numpy()
    simulated = run.meta.get("simulated") is not None
    frames = []
    for name, lines in tree.components():
        resolved = edges[:, 1] - edges[:, 0] >= max(line.best.resolved_ns for line in lines)
        joules = np.sum([line.best.growth.between(edges[:, 0], edges[:, 1]) for line in lines], axis=0)
        columns: dict[str, Any] = {
            "step": steps["step"],
            "component": [name] * len(steps),
            "rail": [_names(lines)] * len(steps),
            "joules": np.where(resolved, joules, np.nan),
            "resolved": resolved,
            "kind": [_kind(lines, simulated)] * len(steps),
        }
        frames.append(pl.DataFrame(columns, schema=STEPS, nan_to_null=True))
    return pl.concat(frames) if frames else pl.DataFrame(schema=STEPS)


@dataclass(frozen=True)
class _Steps:
    """Mean length of a steady step, s, and mean samples of one; None where they were not counted."""

    length_s: float
    samples: float | None

    @classmethod
    def of(cls, run: RunReader) -> _Steps:
        length = steady_steps(run)["length_ns"].mean()
        assert isinstance(length, float)
        return cls(length / 1e9, samples_per_step(run))


def samples_per_step(run: RunReader) -> float | None:
    """Mean samples of a steady step; None where they were not counted in all of them."""
    samples = steady_steps(run)["samples"]
    mean = samples.mean() if len(samples) and samples.null_count() == 0 else None
    return mean if isinstance(mean, float) and mean > 0 else None


def _row(
    component: str,
    lines: Sequence[Line],
    energy: Energy,
    per: _Steps,
    simulated: bool,
    idle_w: float | None,
    rail: str | None = None,
) -> dict[str, Any]:
    kind = _kind(lines, simulated)
    if kind == ESTIMATED:  # the spread of a model's output says nothing of how wrong the model is
        energy = replace(energy, low_j=None, high_j=None, low_w=None, high_w=None)
    step_j = None if energy.watts is None else energy.watts * per.length_s
    return {
        "component": component,
        "rail": rail or _names(lines),
        "source": ", ".join(dict.fromkeys(line.best.sensor for line in lines)),
        "joules": energy.joules,
        "low": energy.low_j,
        "high": energy.high_j,
        "joules_per_step": step_j,
        "joules_per_step_low": None if energy.low_w is None else energy.low_w * per.length_s,
        "joules_per_step_high": None if energy.high_w is None else energy.high_w * per.length_s,
        "joules_per_sample": None if step_j is None or per.samples is None else step_j / per.samples,
        "watts_mean": energy.watts,
        "watts_low": energy.low_w,
        "watts_high": energy.high_w,
        "idle_watts": idle_w,
        "covered_s": energy.covered_s,
        "gap_s": energy.gap_s,
        "windows": energy.windows,
        "kind": kind,
    }


def _kind(lines: Sequence[Line], simulated: bool) -> str:
    if any(line.estimated for line in lines):
        return ESTIMATED
    return "simulated" if simulated else "measured"


def _names(lines: Sequence[Line]) -> str:
    return " + ".join(line.name for line in lines)


def _idle(run: RunReader, tree: RailTree) -> dict[str, float]:
    """Power of each line before the first step, while the trainer did nothing, W."""
    stretch = idle_stretch(run, [line.best for line in tree.lines])
    found = {line.key: energy_over(line.best, stretch).watts for line in tree.lines} if len(stretch) else {}
    return {key: watts for key, watts in found.items() if watts is not None}


def _sum(idle: dict[str, float], lines: Sequence[Line]) -> float | None:
    return sum(idle[line.key] for line in lines) if all(line.key in idle for line in lines) else None


def _rest(tree: RailTree, of: dict[str, Energy]) -> Energy | None:
    """What a total of one rail gave beside the measured rails in it; None where none of them was measured."""
    if tree.total is None or len(tree.total) != 1:
        return None
    inside = [line for line in tree.children(tree.total[0]) if not line.estimated]
    return remaining(of[tree.total[0].key], [of[line.key] for line in inside]) if inside else None


def _notes(tree: RailTree, of: dict[str, Energy], spans: Any) -> Iterator[str]:
    if estimated := [line.name for line in tree.lines if line.estimated]:
        yield f"{', '.join(estimated)}: {NO_INTERVAL} by the power model that was given, which no reading checks"
    for line in tree.lines:
        yield from line.best.notes
        for other in line.sources[1:]:
            yield from _cross_check(line, other.sensor, of[line.key], energy_over(other, spans))
    yield from _gaps(tree, of)
    rest = _rest(tree, of)
    if rest is not None and rest.high_j is not None and rest.high_j < 0 and tree.total:
        yield f"the rails inside {tree.total[0].name} measured more than it: one of them is wrong"


def _gaps(tree: RailTree, of: dict[str, Energy]) -> Iterator[str]:
    """One sentence for all lines that miss the same time."""
    missing: dict[str, list[str]] = {}
    for line in tree.lines:
        if of[line.key].gap_s > 0:
            missing.setdefault(number(of[line.key].gap_s), []).append(line.name)
    for seconds, names in missing.items():
        yield f"{seconds} s of the steps were not covered by {', '.join(names)}; nothing was filled in"


def _cross_check(line: Line, sensor: str, best: Energy, other: Energy) -> Iterator[str]:
    if not best.watts or other.watts is None or best.low_w is None or best.high_w is None:
        return
    off = other.watts / best.watts - 1
    apart = other.low_w is not None and other.high_w is not None
    apart = apart and (other.low_w > best.high_w or other.high_w < best.low_w)  # type: ignore[operator]
    verdict = "they disagree" if apart and abs(off) > _DISAGREE else "they agree"
    more = f"{percent(abs(off))} {'more' if off > 0 else 'less'}"
    own = f"{line.name} by {line.best.sensor}: {number(best.watts)} W"
    yield f"{own}; {sensor} says {number(other.watts)} W, {more}: {verdict}"
