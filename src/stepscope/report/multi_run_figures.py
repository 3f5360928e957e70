"""Figures of several runs in one picture: what the page of a single run has no place for.

`report.figures` names and writes them like the charts of the page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.estimate import mean_interval
from stepscope.analysis.first_screen import headline, machine_name, workload_facts
from stepscope.analysis.time.steps import timed_steps
from stepscope.errors import StepscopeError
from stepscope.units import component_label, cut_in_the_middle, page_name

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

Drawn = tuple[Callable[[int], Any], str]  # chart of a width in px, and what it shows

_MOST_LAYERS, _LAYER_LETTERS = 10, 26
_PHASES = ("forward", "backward", "optimizer")
_SHOWN_SHARE = 0.99  # of the steps: a single stall would squeeze all others into a corner
_FEW_STEPS = 100  # of fewer all are drawn
_MOST_QUANTILES = 1_000  # of a line: more than it has px
_COMPONENTS = {"total": "whole device", "cpu": "CPU", "gpu": "GPU", "soc": "SoC"}
_METRICS = ("step_time", "energy_per_step", "peak_memory")


def distinct_run_labels(runs: Sequence[Run]) -> list[str]:
    """Return a name of each run: the workload and what of its setting differs; the run's own where nothing does."""
    facts = [_setting_labels(run) for run in runs]
    differing = [key for key in facts[0] if key != "name" and len({fact[key] for fact in facts}) > 1]
    labels = [", ".join(part for part in (fact["name"], *(fact[key] for key in differing)) if part) for fact in facts]
    labels = [f"{label} {run.id.rpartition('-')[2]}" if labels.count(label) > 1 else label
             for label, run in zip(labels, runs, strict=True)]  # fmt: skip
    return [page_name(label) for label in labels]


def _setting_labels(run: Run) -> dict[str, str]:
    about = workload_facts(run)
    batch, threads = about.get("batch_size"), run.meta.get("threads")
    return {
        "name": str(about.get("name") or run.id),
        "batch": f"batch {batch}" if batch else "",
        **{key: str(about.get(key) or "") for key in ("optimizer", "precision")},
        "machine": machine_name(run) or "",
        "threads": f"{threads} threads" if threads else "",
        "simulated": "" if run.simulated is None else "simulated",
    }


def layer_bars(runs: Sequence[Run]) -> Drawn:
    """Draw the most expensive layers: by phase of one run, side by side of several, with 95 % CIs."""
    from stepscope.report.charts import across_runs as chart

    tables = [run.layers().filter(pl.col("total_ns") > 0) for run in runs]
    _refuse_runs_without(runs, (len(table) for table in tables), "no operator was recorded")
    every = pl.concat([table.select("layer", "total_ns") for table in tables])
    most = every.group_by("layer").agg(pl.col("total_ns").max()).sort("total_ns", "layer", descending=[True, False])
    chosen = most["layer"].to_list()[:_MOST_LAYERS]
    names = [page_name(name or "(the model)") for name in chosen]
    named = dict(zip(chosen, cut_in_the_middle(names, _LAYER_LETTERS), strict=True))
    ordered = [(label, dict(zip(table["layer"], table.iter_rows(named=True), strict=True)))
               for label, table in zip(distinct_run_labels(runs), tables, strict=True)]  # fmt: skip
    unit = "time in a step, ms"
    caption = f"The {len(chosen)} most expensive layers, self time, 95 % CI"
    if len(runs) == 1:
        rows = ordered[0][1]
        parts = [{"layer": named[name], "phase": phase, "value": (rows[name][f"{phase}_ns"] or 0.0) / 1e6}
                 for name in chosen for phase in _PHASES]  # fmt: skip
        whole = [{"layer": named[name], **_interval_ms(rows[name])} for name in chosen]
        return lambda width: chart.build_layer_phases(
            pl.DataFrame(parts).filter(pl.col("value") > 0), _frame_with_bounds(whole), unit, width
        ), caption
    bars = [
        {"run": label, "layer": named[name], "value": rows[name]["total_ns"] / 1e6, **_interval_ms(rows[name])}
        for name in chosen for label, rows in ordered if name in rows
    ]  # fmt: skip
    return lambda width: chart.build_layer_bars(_frame_with_bounds(bars), unit, width), caption


def _interval_ms(row: dict[str, Any]) -> dict[str, float | None]:
    return {end: None if row[f"{end}_ns"] is None else row[f"{end}_ns"] / 1e6 for end in ("low", "high")}


def _frame_with_bounds(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """The rows, bounds as numbers also where none is known."""
    frame = pl.DataFrame(rows, infer_schema_length=None)
    bounds = [name for name in frame.columns if name.endswith(("low", "high"))]
    return frame.with_columns(pl.col(bounds).cast(pl.Float64))


def energy_breakdown(runs: Sequence[Run]) -> Drawn:
    """Draw the energy of a step by component, a bar a run; the parts add up to the whole device."""
    tables = [run.energy_totals().filter(pl.col("joules_per_step").is_not_null()) for run in runs]
    _refuse_runs_without(runs, (len(table) for table in tables), "no power was measured")
    parts = zip(distinct_run_labels(runs), map(_additive_components, tables), strict=True)
    rows = [
        {"run": label, "part": _component_name(row["component"]), "value": max(row["joules_per_step"], 0.0)}
        for label, table in parts for row in table.iter_rows(named=True)
    ]  # fmt: skip
    largest = max(float(table["joules_per_step"].to_numpy().max()) for table in tables)
    marked = _kinds_beside_measured(kind for table in tables for kind in table["kind"])
    return _energy_chart(rows, largest, "step", marked), f"Energy of a step by component, gross{marked}"


def energy_by_model(runs: Sequence[Run]) -> Drawn:
    """Draw the energy of a sample by model, a bar a model (or setting of one): the mean of its runs, by component.

    The whisker is the 95 % CI of the whole: over the runs of a model, or of the one that there is.
    """
    tables = [run.energy_totals().filter(pl.col("joules_per_sample").is_not_null()) for run in runs]
    why = "no power was measured, or its samples are not known"
    _refuse_runs_without(runs, (len(table) for table in tables), why)
    groups: dict[tuple[str, ...], list[int]] = {}
    for place, run in enumerate(runs):
        groups.setdefault(tuple(_setting_labels(run).values()), []).append(place)
    models = distinct_run_labels([runs[places[0]] for places in groups.values()])
    rows, whole = [], []
    for model, places in zip(models, groups.values(), strict=True):
        parts = pl.concat(
            [_additive_components(tables[place]).select("component", "joules_per_sample") for place in places]
        )
        means = parts.group_by("component", maintain_order=True).agg(pl.col("joules_per_sample").sum() / len(places))
        rows += [
            {"run": model, "part": _component_name(name), "value": max(value, 0.0)} for name, value in means.iter_rows()
        ]
        whole.append({"run": model, **_total_energy_interval([tables[place] for place in places])})
    marked = _kinds_beside_measured(kind for table in tables for kind in table["kind"])
    caption = f"Energy of a sample by model and component, 95 % CI of the whole{marked}"
    return _energy_chart(rows, max(row["value"] for row in rows), "sample", marked, whole), caption


def _energy_chart(
    rows: list[dict[str, Any]], largest_j: float, what: str, marked: str, whole: list[dict[str, Any]] | None = None
) -> Callable[[int], Any]:
    """Return the stacked bars of `rows` (run, part, value in J), in the unit that suits the largest value.

    what: "step" or "sample"; marked: the kinds of energy that are not measured; whole: (run, low, high), J.
    """
    from stepscope.report.charts import across_runs as chart

    scale, unit = next(((by, name) for by, name in ((1.0, "J"), (1e3, "mJ")) if largest_j * by >= 1), (1e6, "uJ"))
    frame = pl.DataFrame(rows).with_columns(pl.col("value") * scale)
    ends = None if whole is None else _frame_with_bounds(whole).with_columns(pl.col("low", "high") * scale)
    return lambda width: chart.build_energy(frame, f"energy of a {what}, {unit}{marked}", width, ends)


def _kinds_beside_measured(kinds: Iterable[str]) -> str:
    """Return " (simulated)", " (estimated, simulated)" or nothing: the kinds of energy that are not measured."""
    others = sorted({*kinds} - {"measured", ""})
    return f" ({', '.join(others)})" if others else ""


def _total_energy_interval(tables: Sequence[pl.DataFrame]) -> dict[str, float | None]:
    """The CI of the energy of a sample, J, of the whole device, or of all components where no rail has it."""
    totals = [table.filter(pl.col("component") == "total") for table in tables]
    if any(total.is_empty() for total in totals):
        return {"low": None, "high": None}
    rows = [total.row(0, named=True) for total in totals]
    if len(rows) > 1:
        _, low, high = mean_interval(np.array([row["joules_per_sample"] for row in rows]))
        return {"low": max(low, 0.0), "high": high}
    return {end: rows[0][f"joules_per_sample_{end}"] for end in ("low", "high")}


def _component_name(name: str) -> str:
    return _COMPONENTS.get(name, component_label(name))


def _additive_components(table: pl.DataFrame) -> pl.DataFrame:
    """The components beside the total, where they are known to add up to it; else the total, or what there is."""
    parts = table.filter(pl.col("component") != "total")
    return parts if "rest" in set(parts["component"]) or len(parts) == len(table) else table.filter(
        pl.col("component") == "total"
    )  # fmt: skip


def memory_stack(runs: Sequence[Run]) -> Drawn:
    """Draw the bytes that are live at the peak by category, a bar a run."""
    from stepscope.report.charts import across_runs as chart

    peaks = [run.peak() for run in runs]
    why = "memory by layer was not recorded (--record-memory)"
    _refuse_runs_without(runs, (peak is not None for peak in peaks), why)
    rows = [
        {"run": label, "part": row["category"], "value": row["bytes"] / 1e6}
        for label, peak in zip(distinct_run_labels(runs), peaks, strict=True) if peak is not None
        for row in peak.categories.iter_rows(named=True) if row["bytes"] > 0
    ]  # fmt: skip
    return lambda width: chart.build_memory(pl.DataFrame(rows), width), "Live tensors at the peak by category"


def step_ecdf(runs: Sequence[Run]) -> Drawn:
    """Draw the distribution of step times, a line a run, of the steps that the step time is taken from."""
    from stepscope.report.charts import across_runs as chart

    lengths = [np.sort(timed_steps(run)[0]["length_ns"].to_numpy().astype(np.float64)) / 1e6 for run in runs]
    _refuse_runs_without(runs, map(len, lengths), "no step after the warm-up")
    parts, excluded = [], False
    for label, times_ms in zip(distinct_run_labels(runs), lengths, strict=True):
        share = np.arange(1, len(times_ms) + 1) / len(times_ms)
        inside = share <= (_SHOWN_SHARE if len(times_ms) >= _FEW_STEPS else 1.0)
        excluded = excluded or not bool(inside.all())
        drawn = np.unique(np.linspace(0, inside.sum() - 1, _MOST_QUANTILES).round().astype(np.int64))
        ms, up_to = np.append(times_ms[:1], times_ms[drawn]), np.append(0.0, share[drawn])
        parts.append(pl.DataFrame({"run": [label] * len(ms), "ms": ms, "share": up_to}))
    frame = pl.concat(parts)
    return lambda width: chart.build_ecdf(frame, excluded, width), "Share of the steps that took at most so long"


def trade_off(runs: Sequence[Run]) -> Drawn:
    """Draw the step time of each run against its energy; where that is not measured of all, against peak memory."""
    from stepscope.report.charts import across_runs as chart

    headlines = [{row.metric: row for row in headline(run)} for run in runs]
    _refuse_runs_without(runs, ("step_time" in rows for rows in headlines), "no step time")
    other = next((metric for metric in _METRICS[1:] if all(metric in rows for rows in headlines)), None)
    _refuse_runs_without(runs[:1], [other], "neither energy nor peak memory is known of all")
    assert other is not None
    scale, title = (1e-6, "peak memory, MB")
    if other == "energy_per_step":
        small = max(rows[other].value for rows in headlines) < 1
        scale, title = (1e3, "energy of a step, mJ") if small else (1.0, "energy of a step, J")
    marked = _kinds_beside_measured(rows[other].kind for rows in headlines)
    rows = [
        {
            "run": label,
            **_point_with_interval("x", rows["step_time"], {"ns": 1e-6, "s": 1e3}[rows["step_time"].unit]),
            **_point_with_interval("y", rows[other], scale),
        }
        for label, rows in zip(distinct_run_labels(runs), headlines, strict=True)
    ]
    caption = f"Step time against {title.partition(',')[0]}{marked}, 95 % CIs"
    return lambda width: chart.build_trade_off(
        _frame_with_bounds(rows), "step time, ms", f"{title}{marked}", width
    ), caption


def _point_with_interval(name: str, row: Any, scale: float) -> dict[str, float | None]:
    bounds = {f"{name}_{end}": getattr(row, end) for end in ("low", "high")}
    return {name: row.value * scale, **{key: None if end is None else end * scale for key, end in bounds.items()}}


def _refuse_runs_without(runs: Sequence[Run], amounts: Iterable[object], why: str) -> None:
    """Raise StepscopeError for the first run that has none of what a figure draws; amounts: of each run."""
    for run, amount in zip(runs, amounts, strict=True):
        if not amount:
            raise StepscopeError(f"{run.id} has nothing to draw: {why}", "leave the run out, or see stepscope doctor")


FIGURES: dict[str, tuple[str, Callable[[Sequence[Run]], Drawn]]] = {
    "layer-bars": ("Layers, with CIs (one or several runs)", layer_bars),
    "energy-breakdown": ("Energy of a step by component (one or several runs)", energy_breakdown),
    "energy-by-model": ("Energy of a sample by model and component, with CIs (several runs)", energy_by_model),
    "memory-stack": ("Live at the peak by category (one or several runs)", memory_stack),
    "step-ecdf": ("Distribution of step times (one or several runs)", step_ecdf),
    "trade-off": ("Step time against energy or memory (several runs)", trade_off),
}


def figure_file_stem(name: str, runs: Sequence[Run]) -> str:
    """Return the file's name without its ending: the figure and its runs."""
    if len(runs) == 1:
        return f"{name}-{runs[0].id}"
    return f"{name}-{'-'.join(run.id.rpartition('-')[2] for run in runs[:4])}{'-and-more' if len(runs) > 4 else ''}"


def described(caption: str, runs: Sequence[Run]) -> Iterator[str]:
    """Yield the parts of a description: the caption and the runs."""
    yield f"{runs[0].id if len(runs) == 1 else f'{len(runs)} runs'}: {caption}"
    if len(runs) > 1:
        yield ", ".join(run.id for run in runs)
