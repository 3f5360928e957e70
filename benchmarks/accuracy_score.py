"""How far an attributed run is from the truth of the simulated board that it ran beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from stepscope.analysis.energy.fit_inputs import BETWEEN, PAUSES, pause_flags

COUNTED = 0.003


def scores(run: Any, truth: Any, rail: str) -> dict[str, Any]:
    """Scores by kind and by module and phase, the errors of the simpler methods, closure."""
    true = true_energy(run, truth, rail)
    kinds = true.group_by("name").agg(pl.col("joules").sum())
    modules = true.group_by("module", "phase").agg(pl.col("joules").sum())
    # A rail of the board may be shown by the scope of its sensor.
    name = next(line.name for line in run.rails.lines if rail in (line.name, line.best.rail))
    found = {method: run.energy(by="kind", method=method).filter(rail=name) for method in ("fit", "nearest", "overlap")}
    by_module = run.energy(by="module").filter(rail=name)
    whole = run.energy(by="component").filter(rail=name)["joules_per_step"][0]
    parts = found["fit"]["joules_per_step"].sum()
    return {
        "kinds": _score(found["fit"], kinds, ["name"]),
        "modules": _score(by_module, modules.rename({"module": "name"}), ["name", "phase"]),
        "error": {method: _score(frame, kinds, ["name"])["error"] for method, frame in found.items()},
        "closure": abs(parts / whole - 1) if whole else None,
        "total": abs(whole / (true["joules"].sum()) - 1) if whole else None,
        "step_s": float((run.steps["t1_ns"] - run.steps["t0_ns"]).median() / 1e9),
        "lost_marks": truth.lost_marks,
    }


def true_energy(run: Any, truth: Any, rail: str) -> pl.DataFrame:
    """True energy per step, J, of each op's own time (name, module, phase) and of the time between."""
    steps = run.steps.slice(run.warmup_steps)
    ops = run.ops.filter(pl.col("step") >= steps["step"][0])
    own = truth.self_energy(
        rail,
        ops["t0_ns"].to_numpy(),
        ops["t1_ns"].to_numpy(),
        ops["parent"].fill_null(-1).cast(pl.Int64).to_numpy(),
        step=ops["step"].cast(pl.Int64).to_numpy(),
        lane=ops["thread"].cast(pl.Int64).to_numpy(),
    )
    named = pl.DataFrame(
        {
            "name": ops["name"].cast(pl.String),
            "module": ops["module"].cast(pl.String),
            "phase": ops["phase"].cast(pl.String),
            "joules": own,
        }
    )
    t0, t1 = steps["t0_ns"].to_numpy(), steps["t1_ns"].to_numpy()
    inside = truth.energy_between(rail, t0, t1).sum()
    between, long = truth.energy_between(rail, t1[:-1], t0[1:]), pause_flags(t0, t1)
    rest = pl.DataFrame(
        {
            "name": ["(between operations)", BETWEEN, PAUSES],
            "module": [None] * 3,
            "phase": [None] * 3,
            "joules": [float(inside - own.sum()), float(between[~long].sum()), float(between[long].sum())],
        },
        schema=named.schema,
    )
    return pl.concat([named, rest]).with_columns(pl.col("joules") / len(steps))


def _score(found: pl.DataFrame, true: pl.DataFrame, keys: list[str]) -> dict[str, Any]:
    joined = true.filter(~pl.col(keys[0]).is_null()).join(found, on=keys, how="left", nulls_equal=True)
    joined = joined.with_columns(pl.col("joules_per_step").fill_null(0.0))
    real, seen = joined["joules"].to_numpy(), joined["joules_per_step"].to_numpy()
    counted = real > COUNTED * real.sum()
    low, high = (joined[name].fill_null(np.nan).to_numpy() for name in ("low", "high"))
    resolved = (joined["verdict"] == "resolved").fill_null(False).to_numpy()
    right = resolved & (np.abs(seen - real) <= 0.1 * real)
    return {
        "error": float(np.abs(seen - real).sum() / real.sum()),
        "inside": int(((low <= real) & (real <= high))[counted].sum()),
        "counted": int(counted.sum()),
        "resolved": float(real[resolved].sum() / real.sum()),
        "right": float(real[right].sum() / max(real[resolved].sum(), 1e-12)),
    }


def picture(results: list[tuple[Any, dict[str, Any]]], path: Path) -> None:
    """Error per operator of the three methods, by sensor and network."""
    import altair as alt

    rows = [
        {
            "sensor": cell.title,
            "network": f"{cell.model}, {cell.steps} steps",
            "method": {"fit": "Stepscope", "nearest": "nearest sample (2019)", "overlap": "overlap"}[method],
            "error": error,
        }
        for cell, found in results
        for method, error in found["error"].items()
    ]
    chart = (
        alt.Chart(pl.DataFrame(rows))
        .mark_bar()
        .encode(
            x=alt.X("error:Q", axis=alt.Axis(format="%"), title="energy-weighted error per operator"),
            y=alt.Y("method:N", title=None),
            color=alt.Color("method:N", legend=None, scale=alt.Scale(range=["#0072B2", "#BBBBBB", "#E69F00"])),
            row=alt.Row("network:N", title=None, header=alt.Header(labelAngle=0, labelAlign="left")),
            column=alt.Column("sensor:N", title=None),
        )
        .properties(width=170, height=60)
    )
    chart.save(str(path), scale_factor=2)
