"""The tables of a run by name, as CSV, Parquet and JSON have them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import polars as pl

from stepscope.report.exports._excerpt import Excerpt

_CHANNEL = ("id", "sensor", "quantity", "unit", "kind", "scope")


def raw_tables(excerpt: Excerpt) -> dict[str, Callable[[], pl.DataFrame]]:
    """What was recorded and sampled in the chosen steps, as large as the run; each is made when it is asked for."""
    return {
        "ops": lambda: excerpt.ops.drop("row"),
        "samples": lambda: samples(excerpt),
        "memory_events": lambda: excerpt.memory_events,
    }


def small_tables(excerpt: Excerpt) -> dict[str, Callable[[], pl.DataFrame]]:
    """What analysis makes of the whole run, and the steps, channels and events that were chosen."""
    run = excerpt.run
    return {
        "steps": lambda: excerpt.steps,
        "phases": run.phases,
        "modules": run.modules,
        "op_kinds": run.op_kinds,
        "metrics": run.metrics,
        "overhead": run.overhead,
        "energy": run.energy_totals,
        "rail_energy": run.rail_energy,
        "step_energy": run.step_energy,
        **{f"energy_by_{by}": partial(run.energy, by) for by in ("module", "op", "kind", "phase")},
        "use_by_kind": run.utilisation,
        "model": lambda: run.model,
        "channels": lambda: _channels(excerpt),
        "events": lambda: _events(excerpt),
    }


def samples(excerpt: Excerpt) -> pl.DataFrame:
    """Every reading of every channel, a row each: t0_ns, t1_ns, channel, quantity, unit, kind, scope, value."""
    parts = []
    for channel in excerpt.channels:
        said = [pl.lit(str(channel.get(key)), dtype=pl.String).alias(key) for key in _CHANNEL if key != "sensor"]
        frame = excerpt.samples(channel).select("t0_ns", "t1_ns", *said, "value")
        parts.append(frame.rename({"id": "channel"}))
    names = ("channel", "quantity", "unit", "kind", "scope")
    schema = {"t0_ns": pl.Int64, "t1_ns": pl.Int64, **dict.fromkeys(names, pl.String), "value": pl.Float64}
    return pl.concat(parts) if parts else pl.DataFrame(schema=schema)


def _channels(excerpt: Excerpt) -> pl.DataFrame:
    names = (*_CHANNEL, "rail", "parent_scope", "source")
    rows = [{name: _text(channel.get(name)) for name in names} for channel in excerpt.channels]
    return pl.DataFrame(rows, schema=dict.fromkeys(names, pl.String))


def _events(excerpt: Excerpt) -> pl.DataFrame:
    rows = [{"t_ns": int(event.get("t_ns", 0)), **_said(event)} for event in excerpt.events]
    return pl.DataFrame(rows, schema={"t_ns": pl.Int64, **dict.fromkeys(("source", "kind", "message"), pl.String)})


def _said(event: dict[str, Any]) -> dict[str, str | None]:
    return {name: _text(event.get(name)) for name in ("source", "kind", "message")}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)
