"""Which parts explain a difference in energy a step: modules, types, kinds of op or phases of one rail of each side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from stepscope.analysis.attribution.parts import Z
from stepscope.analysis.compare_parts import Explanation, Parts, explained, samples_per_step, types_of
from stepscope.analysis.intervals import Floats
from stepscope.analysis.run import Run

BY = ("module", "type", "kind", "phase")
_WHOLE = ("total", "device")  # components that stand for the whole
_DRAWS = 300
_Z_90 = Z


@dataclass(frozen=True)
class _Of:
    """Energy of one run by name: value and half width of 90 %, NaN where it has none."""

    names: tuple[str, ...]
    joules: Floats
    half: Floats


def energy_explained(first: Sequence[Run], other: Sequence[Run], by: str, per_sample: bool = False) -> Explanation:
    """The difference in energy a step, J, of the component that both sides measured alike (the whole device first)."""
    why = _unlike(first, other)
    component = None if why else _component([*first, *other], by)
    if component is None:
        return Explanation("energy", by, "J", reason=why or "no supply line was measured on both sides and attributed")
    sides = [_side(runs, by, component, per_sample, seed) for seed, runs in enumerate((first, other))]
    if sides[0] is None or sides[1] is None:
        return Explanation("energy", by, "J", reason="energy could not be handed to operations on both sides")
    found = explained("energy", by, "J", sides[0], sides[1], f"energy of '{component}' a step, attributed")
    # The errors of parts cancel each other in their sum, which draws of each by itself do not know: no interval of it.
    return replace(found, low=None, high=None)


def _unlike(first: Sequence[Run], other: Sequence[Run]) -> str:
    """Why the energy of the two cannot be compared at all."""
    kinds = {(run.simulated is not None, run.attribution == "model") for run in (*first, *other)}
    return "" if len(kinds) == 1 else "measured, simulated and estimated energy are not compared with each other"


def _component(runs: Sequence[Run], by: str) -> str | None:
    """The component that all runs have values of: the whole device, else the one with most energy."""
    frames = [_frame(run, by) for run in runs]
    shared = set.intersection(*(set(frame["component"]) for frame in frames)) if frames else set()
    for name in _WHOLE:
        if name in shared:
            return name
    spent = frames[0].filter(pl.col("component").is_in(list(shared))).group_by("component")
    ordered = spent.agg(pl.col("joules_per_step").sum()).sort("joules_per_step", descending=True)
    return None if ordered.is_empty() else str(ordered["component"][0])


def _frame(run: Run, by: str) -> pl.DataFrame:
    frame = run.energy(by="module" if by == "type" else by)
    return frame.filter(pl.col("joules_per_step").is_not_null())


def _side(runs: Sequence[Run], by: str, component: str, per_sample: bool, seed: int) -> Parts | None:
    """Mean of the repeats with draws from their intervals, and over the repeats where there are several."""
    each = []
    for run in runs:
        scale = samples_per_step(run) if per_sample else 1.0
        found = _of_run(run, by, component, scale) if scale else None
        if found is None:
            return None
        each.append(found)
    names = list(dict.fromkeys(name for one in each for name in one.names))
    joules = np.stack([_placed(one.names, one.joules, names) for one in each])
    half = np.stack([_placed(one.names, one.half, names) for one in each])
    if np.isnan(half).any():
        return Parts(tuple(names), joules.mean(axis=0), None)
    random = np.random.default_rng(seed)
    picks = random.integers(0, len(each), (_DRAWS, len(each)))
    noise = random.standard_normal((_DRAWS, len(each), len(names)))
    draws = (joules[picks] + noise * half[picks] / _Z_90).mean(axis=1)
    return Parts(tuple(names), joules.mean(axis=0), draws)


def _placed(names: Sequence[str], values: Floats, order: Sequence[str]) -> Floats:
    place = dict(zip(names, values.tolist(), strict=True))
    return np.array([place.get(name, 0.0) for name in order])


def _of_run(run: Run, by: str, component: str, scale: float) -> _Of | None:
    frame = _frame(run, by).filter(pl.col("component") == component)
    if frame.is_empty():
        return None
    frame = frame.filter(pl.col("rail") == frame["rail"][0])  # two meters of one component are not added
    if by == "type":
        kept = types_of(run)
        frame = frame.with_columns(pl.col("name").replace_strict(kept, default=pl.col("name"), return_dtype=pl.String))
    # Intervals of the phases of a module are added up: that can only be too wide. Below 0 an end was cut off.
    half = pl.max_horizontal(pl.col("high") - pl.col("joules_per_step"), pl.col("joules_per_step") - pl.col("low"))
    certain = pl.when(pl.col("name") == "(residual)").then(0.0).otherwise(half)
    rows = frame.group_by("name", maintain_order=True).agg(pl.col("joules_per_step").sum(), certain.sum().alias("half"))
    unknown = frame.filter(pl.col("high").is_null(), pl.col("name") != "(residual)")
    halves = rows["half"].to_numpy() if unknown.is_empty() else np.full(len(rows), np.nan)
    return _Of(tuple(rows["name"]), rows["joules_per_step"].to_numpy() / scale, np.asarray(halves) / scale)
