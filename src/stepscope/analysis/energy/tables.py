"""Energy of a run as tables: by component, by rail and by step; power over time, of rails and of operators."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from scipy import sparse  # type: ignore[import-untyped]

from stepscope.analysis.energy.accuracy import meter_energy
from stepscope.analysis.energy.attribution import Attribution
from stepscope.analysis.energy.fit_span import long_run_notes, slice_to_fit
from stepscope.analysis.energy.mean_step import MeanStep
from stepscope.analysis.energy.measured_energy import (
    Energy,
    energy_over,
    find_unread_phase,
    idle_stretch,
    power_windows,
    subtract_energies,
    sum_energies,
    training_stretches,
    with_model_interval,
)
from stepscope.analysis.energy.rail_fits import COARSE, RailFit, group_energies, reason_unresolvable
from stepscope.analysis.energy.rails import UNUSED, MeasuredRail, RailTree, outermost
from stepscope.analysis.energy.timeline import Timeline
from stepscope.analysis.time.steps import steps_after_warmup
from stepscope.arrays import Flags, Floats, Ints
from stepscope.runfolder import RunReader
from stepscope.units import estimate, number, percent

ESTIMATED = "estimated"  # the kind of what comes of a power model
NO_INTERVAL = "no CI: estimated"
UNATTRIBUTED = "rest"  # what a rail gave beside the measured rails inside it

TOTAL_SCHEMA = {
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
    "joules_per_sample_low": pl.Float64,
    "joules_per_sample_high": pl.Float64,
    "watts_mean": pl.Float64,
    "watts_low": pl.Float64,
    "watts_high": pl.Float64,
    "idle_watts": pl.Float64,
    "covered_s": pl.Float64,
    "gap_s": pl.Float64,
    "windows": pl.Int64,
    "kind": pl.String,
    "meter_joules": pl.Float64,  # what a meter in the supply line would say
    "meter_low": pl.Float64,
    "meter_high": pl.Float64,
    "meter_source": pl.String,
}
RAIL_SCHEMA = {"scope": pl.String, "inside": pl.String, "meaning": pl.String, **TOTAL_SCHEMA}
STEP_SCHEMA = {
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
    """Energy over the steps after warm-up, by component and by rail."""
    spans = training_stretches(run)
    if not len(spans) or not tree.lines:
        return EnergyTables(pl.DataFrame(schema=TOTAL_SCHEMA), pl.DataFrame(schema=RAIL_SCHEMA), tree.notes)
    per = MeanStep.of(run)
    unread = {line.key: find_unread_phase(run, line.best) for line in tree.lines}
    of = {line.key: energy_over(line.best, spans) for line in tree.lines}
    of |= {key: phase.widened(of[key]) for key, phase in unread.items() if phase is not None}
    idle = _idle_power(run, tree)
    simulated = run.meta.get("simulated") is not None
    components = [
        {
            **_energy_row(
                name, lines, sum_energies([of[line.key] for line in lines]), per, simulated, _idle_sum(idle, lines)
            ),
            **meter_energy(lines, [of[line.key] for line in lines], run.device, _is_whole_device(name, lines, tree)),
        }
        for name, lines in tree.components()
    ]
    unattributed = _unattributed(tree, of)
    if unattributed is not None and tree.total is not None:
        row = _energy_row(
            UNATTRIBUTED, tree.total, unattributed, per, simulated, None, f"unattributed in {tree.total[0].name}"
        )
        components.insert(sum(row["kind"] != "estimated" for row in components), row)
    names = {line.key: line.name for line in tree.lines}
    rails = []
    for line in tree.lines:
        entry = {
            "scope": line.scope,
            "inside": names.get(line.parent or ""),
            "meaning": (line.entry.meaning if line.entry else "") or None,
        }
        row = _energy_row(line.component, [line], of[line.key], per, simulated, idle.get(line.key))
        at_meter = meter_energy([line], [of[line.key]], run.device, _whole_device_keys(tree) == {line.key})
        rails.append({**entry, **row, **at_meter})
    locked = [phase.sentence(names[key]) for key, phase in unread.items() if phase is not None]
    notes = (*tree.notes, *locked, *_table_notes(tree, of, spans), *_meter_notes(components), *long_run_notes(run))
    return EnergyTables(pl.DataFrame(components, schema=TOTAL_SCHEMA), pl.DataFrame(rails, schema=RAIL_SCHEMA), notes)


def _whole_device_keys(tree: RailTree) -> set[str]:
    """Lines behind a meter of the device: the total, else all that were measured; and unused cards."""
    measured = [line for line in tree.lines if not line.estimated]
    unused = [line for line in measured if line.component == UNUSED]
    return {line.key for line in (*(tree.total or outermost(measured, tree.lines)), *unused)}


def _is_whole_device(component: str, lines: Sequence[MeasuredRail], tree: RailTree) -> bool:
    return (component == "total" or not tree.total) and _whole_device_keys(tree) == {line.key for line in lines}


def step_energy_table(run: RunReader, tree: RailTree) -> pl.DataFrame:
    """Energy of each step after warm-up by component, J; null in a gap or where the sensor cannot resolve a step."""
    steps = steps_after_warmup(run)
    edges = steps.select("t0_ns", "t1_ns").cast(pl.Float64).to_numpy()
    simulated = run.meta.get("simulated") is not None
    frames = []
    for name, lines in tree.components():
        resolved = edges[:, 1] - edges[:, 0] >= max(line.best.shortest_window_ns for line in lines)
        joules = np.sum([line.best.growth.between(edges[:, 0], edges[:, 1]) for line in lines], axis=0)
        columns: dict[str, Any] = {
            "step": steps["step"],
            "component": [name] * len(steps),
            "rail": [_line_names(lines)] * len(steps),
            "joules": np.where(resolved, joules, np.nan),
            "resolved": resolved,
            "kind": [_source_kind(lines, simulated)] * len(steps),
        }
        frames.append(pl.DataFrame(columns, schema=STEP_SCHEMA, nan_to_null=True))
    return pl.concat(frames) if frames else pl.DataFrame(schema=STEP_SCHEMA)


def _energy_row(
    component: str,
    lines: Sequence[MeasuredRail],
    energy: Energy,
    per: MeanStep,
    simulated: bool,
    idle_w: float | None,
    rail: str | None = None,
) -> dict[str, Any]:
    kind = _source_kind(lines, simulated)
    if kind == ESTIMATED:
        stated = [line.best.uncertainty for line in lines]
        energy = with_model_interval(energy, None if None in stated else max(filter(None, stated)))
    step_j, sample_j = per.energy(energy), per.energy_of_sample(energy)
    return {
        "component": component,
        "rail": rail or _line_names(lines),
        "source": ", ".join(dict.fromkeys(line.best.sensor for line in lines)),
        "joules": energy.joules,
        "low": energy.low_j,
        "high": energy.high_j,
        **dict(zip(("joules_per_step", "joules_per_step_low", "joules_per_step_high"), step_j, strict=True)),
        **dict(zip(("joules_per_sample", "joules_per_sample_low", "joules_per_sample_high"), sample_j, strict=True)),
        "watts_mean": energy.watts,
        "watts_low": energy.low_w,
        "watts_high": energy.high_w,
        "idle_watts": idle_w,
        "covered_s": energy.covered_s,
        "gap_s": energy.gap_s,
        "windows": energy.windows,
        "kind": kind,
    }


def _source_kind(lines: Sequence[MeasuredRail], simulated: bool) -> str:
    if any(line.estimated for line in lines):
        return ESTIMATED
    return "simulated" if simulated else "measured"


def _line_names(lines: Sequence[MeasuredRail]) -> str:
    return " + ".join(line.name for line in lines)


def _idle_power(run: RunReader, tree: RailTree) -> dict[str, float]:
    """Power of each line before the first step, while the training process was idle, W."""
    stretches = {line.key: idle_stretch(run, [line.best]) for line in tree.lines}
    idle = {line.key: energy_over(line.best, stretches[line.key]).watts for line in tree.lines}
    return {key: watts for key, watts in idle.items() if watts is not None}


def _idle_sum(idle: dict[str, float], lines: Sequence[MeasuredRail]) -> float | None:
    return sum(idle[line.key] for line in lines) if all(line.key in idle for line in lines) else None


def _unattributed(tree: RailTree, of: dict[str, Energy]) -> Energy | None:
    """Return the unattributed energy of a total of one rail; None where no rail in it was measured."""
    if tree.total is None or len(tree.total) != 1:
        return None
    inside = [line for line in tree.children(tree.total[0]) if not line.estimated]
    return subtract_energies(of[tree.total[0].key], [of[line.key] for line in inside]) if inside else None


def _table_notes(tree: RailTree, of: dict[str, Energy], spans: Any) -> Iterator[str]:
    estimated = [line for line in tree.lines if line.estimated]
    if unsure := [line.name for line in estimated if line.best.uncertainty is None]:
        yield f"{', '.join(unsure)}: {NO_INTERVAL} by the power model that was given, which no reading checks"
    if sure := [line.name for line in estimated if line.best.uncertainty is not None]:
        share = max(line.best.uncertainty or 0.0 for line in estimated)
        yield f"{', '.join(sure)}: estimated by the power model; the CI is its own, +-{percent(share)}"
    for line in tree.lines:
        yield from line.best.notes
        for other in line.sources[1:]:
            yield from _cross_check(line, other.sensor, of[line.key], energy_over(other, spans))
    yield from _missed_time_notes(tree, of)
    unattributed = _unattributed(tree, of)
    if unattributed is not None and unattributed.high_j is not None and unattributed.high_j < 0 and tree.total:
        yield f"the rails inside {tree.total[0].name} measured more than it: one of them is wrong"


def _meter_notes(components: Sequence[dict[str, Any]]) -> Iterator[str]:
    """What a meter would say of the total, else of each component whose sensor's accuracy is known."""
    metered = [row for row in components if row.get("meter_source") is not None]
    for row in [row for row in metered if row["component"] == "total"] or metered:
        if row["meter_joules"] is None:
            yield f"what a meter in the supply line would show is not known: {row['meter_source']}"
            continue
        energy = estimate(row["meter_joules"], row["meter_low"], row["meter_high"], "J")
        calibrated = row["meter_source"].startswith("calibrated")
        more = "" if "calibrat" in row["meter_source"] else "; `stepscope calibrate` narrows it"
        supplied = "the device" if calibrated else row["rail"]
        yield f"a meter in the supply line of {supplied} would show {energy} ({row['meter_source']}){more}"


def _missed_time_notes(tree: RailTree, of: dict[str, Energy]) -> Iterator[str]:
    """One sentence for all lines that miss the same time."""
    missing: dict[str, list[str]] = {}
    for line in tree.lines:
        if of[line.key].gap_s > 0:
            missing.setdefault(number(of[line.key].gap_s), []).append(line.name)
    for seconds, names in missing.items():
        yield f"{seconds} s of the steps were not covered by {', '.join(names)}; nothing was filled in"


def _cross_check(line: MeasuredRail, sensor: str, best: Energy, other: Energy) -> Iterator[str]:
    if best.watts is None or other.watts is None or best.low_w is None or best.high_w is None:
        return
    if not best.watts:
        if other.low_w:
            yield f"{line.name} by {line.best.sensor}: 0 W; {sensor} says {number(other.watts)} W: they disagree"
        return
    off = other.watts / best.watts - 1
    apart = other.low_w is not None and other.high_w is not None
    apart = apart and (other.low_w > best.high_w or other.high_w < best.low_w)  # type: ignore[operator]
    verdict = "they disagree" if apart else "their readings do not tell whether they agree"
    verdict = "they agree" if abs(off) <= _DISAGREE else verdict
    more = f"{percent(abs(off))} {'more' if off > 0 else 'less'}"
    own = f"{line.name} by {line.best.sensor}: {number(best.watts)} W"
    yield f"{own}; {sensor} says {number(other.watts)} W, {more}: {verdict}"


TIMELINE_SCHEMA = {
    "rail": pl.String,
    "component": pl.String,
    "t0_ns": pl.Int64,
    "t1_ns": pl.Int64,
    "watts": pl.Float64,
    "estimated": pl.Boolean,
}


def power_timeline(tree: RailTree, t0_ns: int, t1_ns: int, most_windows: int = 300) -> pl.DataFrame:
    """Mean power of consecutive windows, W: rail, component, t0_ns, t1_ns, watts (null in gaps), estimated."""
    frames = []
    for line in tree.lines:
        shortest_ns = 2 * max(line.best.refresh_ns, line.best.growth.period_ns, 0.5)
        length_ns = max(shortest_ns, (t1_ns - t0_ns) / most_windows)
        edges, watts = power_windows(line.best, t0_ns, t1_ns, length_ns)
        columns = {
            "rail": [line.name] * len(watts),
            "component": [line.component] * len(watts),
            "t0_ns": edges[: len(watts)].astype(np.int64),
            "t1_ns": edges[1 : len(watts) + 1].astype(np.int64),
            "watts": watts,
            "estimated": [line.estimated] * len(watts),
        }
        frames.append(pl.DataFrame(columns, schema=TIMELINE_SCHEMA, nan_to_null=True))
    return pl.concat(frames) if frames else pl.DataFrame(schema=TIMELINE_SCHEMA)


POWER_SCHEMA = {
    "rail": pl.String,
    "start_ns": pl.Int64,  # from the start of the step
    "end_ns": pl.Int64,
    "power_w": pl.Float64,
    "known": pl.Boolean,  # half of the 95 % CI of what ran is at most 30 % of its power
    "step": pl.Int64,
}
_MOST_PIECES = 1500


def operator_power(run: RunReader, rails: list[RailFit], step: int) -> pl.DataFrame:
    """Mean power of what ran, W, from piece to piece of a step; a row a piece and rail that was measured and fitted.

    The power of an operator is its mean over all steps: what differs from step to step is not in it. A rail of which
    nothing can be resolved has no rows, nor has a step of a long run outside of the stretch that was fitted.
    """
    steps = steps_after_warmup(slice_to_fit(run))
    row = steps.filter(pl.col("step") == step)
    if row.is_empty():
        return pl.DataFrame(schema=POWER_SCHEMA)
    t0, t1 = ((int(row[name][0]) - int(steps["t0_ns"][0])) / 1e9 for name in ("t0_ns", "t1_ns"))
    frames = [
        _rail_power(rail.line.name, rail.fit, t0, t1).with_columns(step=pl.lit(step, dtype=pl.Int64))
        for rail in rails
        if rail.fit is not None and not rail.line.estimated and not reason_unresolvable(rail.fit)
    ]
    return pl.concat([pl.DataFrame(schema=POWER_SCHEMA), *frames])


def _rail_power(name: str, fit: Attribution, t0: float, t1: float) -> pl.DataFrame:
    timeline = fit.timeline
    resolved = group_energies(fit, sparse.identity(timeline.keys.count, format="csr")).resolved(COARSE)
    edges = _piece_edges(timeline, t0, t1)
    keys = [_running_keys(timeline, lane, (edges[:-1] + edges[1:]) / 2) for lane in range(len(timeline.lanes))]
    watts, sure = _power_drawn(np.nan_to_num(fit.watts), resolved, keys, timeline.keys.gap)
    edges, watts, sure = _thin_power_curve(edges, watts, sure)
    at_ns = np.round((edges - t0) * 1e9).astype(np.int64)
    return pl.DataFrame(
        {"rail": [name] * len(watts), "start_ns": at_ns[:-1], "end_ns": at_ns[1:], "power_w": watts, "known": sure}
    )


def _piece_edges(timeline: Timeline, t0: float, t1: float) -> Floats:
    every = np.concatenate([np.concatenate([lane.t0, lane.t1]) for lane in timeline.lanes])
    return np.unique(np.concatenate([[t0, t1], every[(every > t0) & (every < t1)]]))


def _running_keys(timeline: Timeline, lane: int, at: Floats) -> Ints:
    """Key of what runs in a lane at each instant, -1 for nothing."""
    pieces = timeline.lanes[lane]
    if not len(pieces.t0):
        return np.full(len(at), -1)
    place = np.searchsorted(pieces.t0, at, side="right") - 1
    inside = (place >= 0) & (at < pieces.t1[place])
    return np.where(inside, pieces.key[place], -1)


def _power_drawn(watts: Floats, resolved: Flags, keys: list[Ints], gap: int) -> tuple[Floats, Flags]:
    """The first lane always draws power, also between its pieces; the others' comes on top of it."""
    first = np.where(keys[0] >= 0, keys[0], gap)
    power, sure = watts[first], resolved[first]
    for key in keys[1:]:
        power = power + np.where(key >= 0, watts[key], 0.0)
        sure = sure & np.where(key >= 0, resolved[key], True)
    return power, sure


def _thin_power_curve(edges: Floats, watts: Floats, sure: Flags) -> tuple[Floats, Floats, Flags]:
    """Neighbours that are alike as one; and where they are still too many, means over even windows."""
    new = np.append(True, (np.diff(watts) != 0) | (sure[1:] != sure[:-1]))
    at = np.append(edges[:-1][new], edges[-1])
    watts, sure = watts[new], sure[new]
    if len(watts) <= _MOST_PIECES:
        return at, watts, sure
    even = np.linspace(at[0], at[-1], _MOST_PIECES + 1)
    means = [np.diff(np.interp(even, at, np.append(0.0, np.cumsum(of * np.diff(at))))) for of in (watts, sure)]
    width = np.diff(even)
    return even, means[0] / width, means[1] / width > 1 / 2
