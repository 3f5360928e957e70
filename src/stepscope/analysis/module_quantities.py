"""Energy, memory and floating-point operations of each module and of what is inside it, beside its time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from stepscope.analysis.energy_shown import main_rail
from stepscope.analysis.intervals import Floats
from stepscope.analysis.own_time import RESIDUAL
from stepscope.analysis.steady import recorded_steps

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

PHASES = ("forward", "backward", "optimizer")
QUANTITIES = {"time": "ns", "energy": "J", "memory": "B", "flops": "FLOP"}
SCHEMA = {
    "module": pl.String,
    "parent": pl.String,
    "quantity": pl.String,
    "unit": pl.String,
    **dict.fromkeys((*PHASES, "own", "total"), pl.Float64),  # all of the subtree but `own`
    "source": pl.String,  # where it is from, or what it stands for
}
_OWN = {"module": pl.String, "phase": pl.String, "value": pl.Float64}


def module_quantities(run: Run) -> pl.DataFrame:
    """Subtree sums of each module in the order of the tree, forward, backward, optimizer and in all, a step.

    time: medians (`Run.modules`); energy: of the rail of the whole device (`Run.energy`); memory: bytes alive at the
    peak, by the phase that allocated them (`Run.peak`); flops: of the operations that state them. A quantity that was
    not measured has no rows; a phase that cannot be told is null.
    """
    modules = run.modules().filter(pl.col("module").is_not_null() & (pl.col("module") != RESIDUAL))
    if modules.is_empty():
        return pl.DataFrame(schema=SCHEMA)
    frames = [frame for frame in (_time(modules), *_added_up(run, modules)) if len(frame)]
    return pl.concat([pl.DataFrame(schema=SCHEMA), *(frame.select(list(SCHEMA)) for frame in frames)])


def _time(modules: pl.DataFrame) -> pl.DataFrame:
    known = modules.filter(pl.col("tree_total_ns").is_not_null())
    phases = {phase: pl.col(f"tree_{phase}_ns") for phase in PHASES}
    texts = {"quantity": pl.lit("time"), "unit": pl.lit("ns"), "source": pl.lit("median of the recorded steps")}
    return known.select("module", "parent", **texts, **phases, own="total_ns", total="tree_total_ns")


def _added_up(run: Run, modules: pl.DataFrame) -> Iterator[pl.DataFrame]:
    parents = dict(modules.select("module", "parent").iter_rows())
    for quantity, own, source in (("energy", *_energy(run)), ("memory", *_memory(run)), ("flops", *_flops(run))):
        inside = own.filter(pl.col("module").is_in(list(parents)))
        if not inside.is_empty():
            yield _subtrees(inside, parents, quantity, source)


def _energy(run: Run) -> tuple[pl.DataFrame, str]:
    """Own joules of each module by phase, of one rail: rails lie inside each other and are never added."""
    rows = run.energy(by="module").filter(pl.col("joules_per_step").is_not_null())
    rail = main_rail(rows)
    if rail is None:
        return pl.DataFrame(schema=_OWN), ""
    said = f"{rail}, by '{run.attribution}'"
    return rows.filter(pl.col("rail") == rail).select(module="name", phase="phase", value="joules_per_step"), said


def _memory(run: Run) -> tuple[pl.DataFrame, str]:
    peak = run.peak()
    if peak is None:
        return pl.DataFrame(schema=_OWN), ""
    alive = peak.tensors.select("module", "phase", value=pl.col("bytes").cast(pl.Float64))
    return alive, f"alive at the peak of step {peak.step}, by the phase that allocated it"


def _flops(run: Run) -> tuple[pl.DataFrame, str]:
    steps = max(len(recorded_steps(run)), 1)
    stated = run.own_times.filter(pl.col("flops").is_not_null())
    return stated.select("module", "phase", value=pl.col("flops") / steps), "of the operations that state them"


def _subtrees(own: pl.DataFrame, parents: dict[str, str | None], quantity: str, source: str) -> pl.DataFrame:
    """Own values summed up the tree; children come after their parents, so one pass from the end does."""
    place = {name: row for row, name in enumerate(parents)}
    columns: Floats = np.zeros((len(place), len(PHASES) + 1))
    for module, phase, value in own.iter_rows():
        at = PHASES.index(phase) if phase in PHASES else len(PHASES)
        columns[place[module], at] += max(value, 0.0)
    alone = columns.sum(axis=1)
    for name, parent in reversed(parents.items()):
        if parent is not None:
            columns[place[parent]] += columns[place[name]]
    known = [columns[:, at] if columns[:, at].any() else np.full(len(place), np.nan) for at in range(len(PHASES))]
    frame = {"module": list(parents), "parent": list(parents.values()), **dict(zip(PHASES, known, strict=True))}
    frame |= {"own": alone, "total": columns.sum(axis=1)}
    texts = {"quantity": quantity, "unit": QUANTITIES[quantity], "source": source}
    schema = {"module": pl.String, "parent": pl.String, **dict.fromkeys((*PHASES, "own", "total"), pl.Float64)}
    return pl.DataFrame(frame, schema=schema, nan_to_null=True).with_columns(**{k: pl.lit(v) for k, v in texts.items()})
