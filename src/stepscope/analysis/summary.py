"""summary.json, and the tables that reports show beside those of `Run`: process memory, energy and FLOPs of modules."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.energy.fit_inputs import BETWEEN, PAUSES
from stepscope.analysis.energy.rail_fits import CLAIM, COARSE, RESOLVED
from stepscope.analysis.energy.rails import WHOLE_DEVICE
from stepscope.analysis.process_scopes import OWN
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD
from stepscope.analysis.time.steps import observed_batch, profiled_steps
from stepscope.analysis.time.tables import steps_with_costs
from stepscope.arrays import Floats
from stepscope.files import read_json_object, replace_json
from stepscope.quantities import simulated_badge
from stepscope.units import bytes_, duration, number, percent, roughly, si

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


_FILE = "summary.json"


def summary(run: Run, of_operators: bool = True) -> dict[str, Any]:
    """Verdict, metrics with unit and CI, profiling overhead, phases and what was not measured; SI units.

    of_operators: with what takes a fit of each sensor; else those parts are null, and named in `pending`.
    """
    verdict, workload = run.verdict(), run.meta.get("workload")
    if isinstance(workload, dict) and workload.get("batch_size") is None:
        workload = {**workload, "batch_size": observed_batch(run)}  # a script does not state it
    return {
        "id": run.id,
        "status": run.status,
        "workload": workload,
        "steps": run.steps.height,
        "verdict": {"bound": verdict.bound, "sentence": verdict.sentence, "next": list(verdict.next)},
        "metrics": run.metrics().to_dicts(),
        "overhead": run.overhead().to_dicts(),
        "memory": memory_facts(run),
        "simulated": run.simulated,
        "board": {"name": run.board.name, "title": run.board.title},
        "energy": run.energy_totals().to_dicts(),
        **(_facts_of_operators(run) if of_operators else dict.fromkeys(_FITTED)),
        "pending": [] if of_operators else list(_FITTED),
        "phases": run.phases().to_dicts(),
        "communication": run.communication().to_dicts(),
        "ranks": run.rank_table().to_dicts() if len(run.ranks) > 1 else [],
        "result": run.meta.get("result"),
        "not_measured": [asdict(entry) for entry in run.not_measured()],
    }


_FITTED = "energy_of_ops", "use_of_ops", "energy_notes"


def _facts_of_operators(run: Run) -> dict[str, Any]:
    energy = energy_facts(run) if run.rails.lines else None
    facts = energy, run.utilisation(by="kind").to_dicts(), list(run.energy_tables.notes)
    return dict(zip(_FITTED, facts, strict=True))


def write_summary(run: Run, of_operators: bool = True) -> Path:
    """Write summary.json into the run folder, replaced as a whole; OSError where the folder cannot be written."""
    path = run.path / _FILE
    replace_json(path, {"key": run.results.key, **summary(run, of_operators)})
    return path


def is_summary_current(run: Run, of_operators: bool = True) -> bool:
    """Return whether summary.json was found in the very files that the run has now; of_operators: and is whole."""
    stored = read_json_object(run.path / _FILE)
    return stored.get("key") == run.results.key and not (of_operators and stored.get("pending"))


PROCESS_SCHEMA = {"part": pl.String, "bytes": pl.Int64, "source": pl.String}
COMPUTED = "computed on tensors without data"
EMPTY, TENSORS, ALLOCATOR, PEAK = "empty process", "live tensors", "allocator and unattributed", "process peak"


def process_parts(run: Run) -> pl.DataFrame:
    """Parts of the process's peak resident memory, B, the whole last: part, bytes, source.

    The whole is at least the largest reading; the live tensors are those on the CPU at their own peak in the profiled
    steps. The rest is the difference: what malloc holds beyond the tensors, kernels' scratch, this recorder. Empty
    where the peak, the tensors or the empty process (see `stepscope fit`) were not measured.
    """
    peaks = run.metrics().filter((pl.col("metric") == "peak_memory") & pl.col("scope").is_in(OWN))
    resident = peaks.filter(pl.col("source").is_in(["peak_rss", "rss"]))["value"].drop_nulls()
    empty = (run.meta.get("malloc") or {}).get("empty_process_bytes")
    live = run.peak("cpu")
    if resident.is_empty() or empty is None or live is None:
        return pl.DataFrame(schema=PROCESS_SCHEMA)
    whole, source = int(resident[0]), COMPUTED if live.computed else "allocations of the profiled steps"
    there = min(live.bytes, max(whole - int(empty), 0))  # tensors that were never written, or swapped out, are not
    elsewhere = f"; {bytes_(live.bytes - there)} more were not resident" if live.bytes > there else ""
    rows = [
        (EMPTY, min(int(empty), whole), "measured once on this device"),
        (TENSORS, there, f"{source}{elsewhere}"),
        (ALLOCATOR, whole - min(int(empty), whole) - there, "difference"),
        (PEAK, whole, "resident memory of the process"),
    ]
    return pl.DataFrame(rows, schema=PROCESS_SCHEMA, orient="row")


def reserved_bytes(run: Run) -> dict[str, int]:
    """The most that the allocator of each device was seen to hold, B: on the CPU glibc's malloc at few instants."""
    stated = (run.meta.get("recorder") or {}).get("reserved_bytes") or {}
    return {str(device): int(size) for device, size in stated.items() if isinstance(size, int) and size > 0}


def memory_facts(run: Run) -> dict[str, Any] | None:
    """Return the memory of the step for summary.json, B; None where no allocation was recorded. Sizes in B."""
    peak = run.peak()
    if peak is None:
        return None
    return {
        "computed": peak.computed,
        "device": peak.device,
        "live_peak_bytes": peak.bytes,
        "step": peak.step,
        "op": peak.op,
        "module": peak.module,
        "phase": peak.phase,
        "categories": dict(peak.categories.select("category", "bytes").iter_rows()),
        "residual_bytes": peak.residual_bytes,
        "reserved_bytes": reserved_bytes(run),
        "malloc": run.meta.get("malloc"),
        "process": process_parts(run).to_dicts(),
    }


METHOD_LABELS = {
    "fit": "regression of the readings on the operators",
    "nearest": "the sample nearest in time (the 2019 paper's way): blurs what is shorter than the sensor's period",
    "overlap": "power taken as constant between samples: blurs what is shorter than the sensor's period",
    "model": "ESTIMATED by the power model that was given, not measured",
}
VERDICT_LABELS = {
    "resolved": "within 10 %",
    "coarse": "within 30 %",
    "not identifiable": "below sensor resolution",
    "no interval": "no CI",
}
_NOTABLE_SHARE = 0.01  # of a rail's energy
_PHASES = ("forward", "backward", "optimizer")


def energy_badge(run: Run) -> str:
    """Return what a reader must know of every number: SIMULATED, ESTIMATED, or "" for what was measured here."""
    return " · ".join(filter(None, (simulated_badge(run.simulated), "ESTIMATED" if run.attribution == "model" else "")))


def energy_kinds(run: Run) -> tuple[str, ...]:
    """Return "simulated" and "estimated", as far as the joules of a run are so; none of what was measured here."""
    kinds = {"simulated": run.simulated is not None, "estimated": run.attribution == "model"}
    return tuple(kind for kind, is_so in kinds.items() if is_so)


def memory_is_computed(run: Run) -> bool:
    """Return whether the live tensors of a run are those of a step on tensors without data."""
    return run.memory_events.is_empty() and not run.allocations.is_empty()


def main_rail(frame: pl.DataFrame) -> str | None:
    """The rail that stands for the whole device: that of the total, or else the one with most energy."""
    if frame.is_empty():
        return None
    whole = frame.filter(pl.col("component").is_in(WHOLE_DEVICE))
    rails = (whole if len(whole) else frame).group_by("rail", maintain_order=True)
    spent = rails.agg(pl.col("joules_per_step").sum()).sort("joules_per_step", descending=True, nulls_last=True)
    return str(spent["rail"][0])


def rows_of_main_rail(frame: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the rail that stands for the whole device; none where there is none."""
    return frame.filter(pl.col("rail") == (main_rail(frame) or ""))


def module_rows(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Modules of one rail, most energy first: their J a step by phase beside the sum over phases.

    The interval of a sum is that of its phases added up: it can only be too wide.
    """
    groups: dict[str, list[dict[str, Any]]] = {}
    for row in frame.iter_rows(named=True):
        groups.setdefault(row["name"], []).append(row)
    rows = [_module_row(name, parts) for name, parts in groups.items()]
    return sorted(rows, key=lambda row: -(row["joules_per_step"] or 0.0))


def _module_row(name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    joules, seconds = _sum_or_none(parts, "joules_per_step"), _sum_or_none(parts, "seconds_per_step")
    by_phase = {part["phase"]: part["joules_per_step"] for part in parts}
    verdict, reason = _verdict_of_sum(parts)
    return {
        "name": name,
        **{phase: by_phase.get(phase) for phase in _PHASES},
        "joules_per_step": joules,
        "low": _sum_or_none(parts, "low"),
        "high": _sum_or_none(parts, "high"),
        "share": _sum_or_none(parts, "share"),
        "watts": joules / seconds if joules is not None and seconds else None,
        "above_idle": _sum_or_none(parts, "above_idle"),
        "verdict": verdict,
        "reason": reason,
    }


def _verdict_of_sum(parts: list[dict[str, Any]]) -> tuple[str, str | None]:
    """Return the verdict of a sum over phases, and the reason where it is not within 10 %.

    An interval that what is supposed of every operator has made narrow tells nothing: of a phase below sensor
    resolution all of its energy is in doubt, at the least.
    """
    joules = _sum_or_none(parts, "joules_per_step")
    if not joules or any(part["high"] is None for part in parts):
        worst = max(parts, key=lambda part: part["joules_per_step"] or 0.0)
        return str(worst["verdict"]), worst["reason"]
    doubts = [_phase_uncertainty_j(part) for part in parts]
    half = sum(doubts)
    if half <= RESOLVED * (joules - half):
        return "resolved", None
    verdict = "coarse" if half <= COARSE * (joules - half) else "not identifiable"
    order = sorted(range(len(parts)), key=lambda number: -doubts[number])
    return verdict, next((parts[number]["reason"] for number in order if parts[number]["reason"]), None)


def _phase_uncertainty_j(part: dict[str, Any]) -> float:
    """Half of the 99 % CI of a phase, J a step; of one below sensor resolution all that it has, where that is more."""
    half = CLAIM * float(part["high"] - part["joules_per_step"])
    return max(half, float(part["joules_per_step"])) if part["verdict"] == "not identifiable" else half


def _sum_or_none(parts: list[dict[str, Any]], name: str) -> float | None:
    values = [part[name] for part in parts if part[name] is not None]
    return sum(values) if len(values) == len(parts) else None


def between_steps_sentences(kinds: pl.DataFrame, rail: str) -> list[str]:
    """Return sentences on a rail's energy between steps: tables of operators hold it, the total of a step does not."""
    own = kinds.filter((pl.col("rail") == rail) & pl.col("joules_per_step").is_not_null())
    outside = float(own.filter(pl.col("name").is_in([BETWEEN, PAUSES]))["joules_per_step"].sum())
    whole = float(own["joules_per_step"].sum())
    if not whole or outside < _NOTABLE_SHARE * whole:
        return []
    return [f"{rail}: {si(outside, 'J')} of {si(whole, 'J')} a step lie between the steps (evaluation, saving, pauses)"]


def resolution_sentences(resolution: pl.DataFrame) -> list[str]:
    """Return sentences on what each rail can resolve and what it would take, and on a lock of sampler and step. The
    total first.
    """
    order = pl.col("component").is_in(WHOLE_DEVICE)
    return [
        _resolution_sentence(row) + _stuck_note(row)
        for row in resolution.sort(order, descending=True, maintain_order=True).to_dicts()
    ]


def _resolution_sentence(row: dict[str, Any]) -> str:
    rail = row["rail"]
    if row["resolved_share"] is None:
        return f"{rail}: no energy per operator: {row['note']}"
    if row["note"] and not row["resolved_share"]:
        locked = "PHASE LOCK: " if row["locked"] else ""
        return f"{rail}: everything is below sensor resolution: {locked}{row['note']}"
    shortest = row["shortest_op_s"]
    reach = f", operators from {duration(shortest * 1e9)}" if shortest is not None else ""
    text = f"{rail}: {percent(row['resolved_share'], 0)} of the energy is within 10 %{reach}"
    text = f"{text}; {_steps_note(row)}" if row["resolved_share"] < 0.9 else text
    return f"{text}; CIs are wider since {row['note']}" if row["note"] else text


def _stuck_note(row: dict[str, Any]) -> str:
    stuck_s = row.get("stuck_s")
    return f"; it stood still for {number(stuck_s)} s, which is excluded" if stuck_s else ""


def _steps_note(row: dict[str, Any]) -> str:
    steps = row["more_steps"]
    if not steps:
        return "more steps of this kind would not bring 90 % within 10 %"
    return f"about {roughly(steps)} more steps would bring 90 % within 10 %"


def energy_facts(run: Run) -> dict[str, Any]:
    """Return the energy of summary.json: by operator, module and phase, J a step, and the resolution of each rail."""
    resolution = run.energy_resolution()
    by = {name: run.energy(by=name).to_dicts() for name in ("kind", "module", "phase", "component")}
    return {
        "method": run.attribution,
        "stamp": energy_badge(run) or None,
        "resolution": resolution.to_dicts(),
        "sentences": resolution_sentences(resolution),
        **by,
    }


PHASES = ("forward", "backward", "optimizer")
QUANTITIES = {"time": "ns", "energy": "J", "memory": "B", "flops": "FLOP"}
MODULE_SCHEMA = {
    "module": pl.String,
    "parent": pl.String,
    "quantity": pl.String,
    "unit": pl.String,
    **dict.fromkeys((*PHASES, "own", "total"), pl.Float64),  # all of the subtree but `own`
    "source": pl.String,  # where it is from, or what it stands for
}
_SELF_SCHEMA = {"module": pl.String, "phase": pl.String, "value": pl.Float64}


def module_quantities(run: Run) -> pl.DataFrame:
    """Subtree sums of each module in the order of the tree, forward, backward, optimizer and in all, a step.

    time: medians (`Run.modules`); energy: of the rail of the whole device (`Run.energy`); memory: bytes live at the
    peak, by the phase that allocated them (`Run.peak`); flops: of the operators that state them. A quantity that was
    not measured has no rows; a phase that cannot be told is null.
    """
    modules = run.modules().filter(pl.col("module").is_not_null() & (pl.col("module") != FRAMEWORK_OVERHEAD))
    if modules.is_empty():
        return pl.DataFrame(schema=MODULE_SCHEMA)
    frames = [frame for frame in (_module_time(modules), *_subtree_sums(run, modules)) if len(frame)]
    return pl.concat([pl.DataFrame(schema=MODULE_SCHEMA), *(frame.select(list(MODULE_SCHEMA)) for frame in frames)])


def _module_time(modules: pl.DataFrame) -> pl.DataFrame:
    timed = modules.filter(pl.col("tree_total_ns").is_not_null())
    phases = {phase: pl.col(f"tree_{phase}_ns") for phase in PHASES}
    texts = {"quantity": pl.lit("time"), "unit": pl.lit("ns"), "source": pl.lit("profiled steps, corrected")}
    return timed.select("module", "parent", **texts, **phases, own="total_ns", total="tree_total_ns")


def _subtree_sums(run: Run, modules: pl.DataFrame) -> Iterator[pl.DataFrame]:
    parents = dict(modules.select("module", "parent").iter_rows())
    for quantity, own, source in (
        ("energy", *_module_energy(run)),
        ("memory", *_module_memory(run)),
        ("flops", *_module_flops(run)),
    ):
        inside = own.filter(pl.col("module").is_in(list(parents)))
        if not inside.is_empty():
            yield _subtrees(inside, parents, quantity, source)


def _module_energy(run: Run) -> tuple[pl.DataFrame, str]:
    """Own joules of each module by phase, of one rail: rails lie inside each other and are never added."""
    rows = run.energy(by="module").filter(pl.col("joules_per_step").is_not_null())
    rail = main_rail(rows)
    if rail is None:
        return pl.DataFrame(schema=_SELF_SCHEMA), ""
    text = f"{rail}, by '{run.attribution}'"
    return rows.filter(pl.col("rail") == rail).select(module="name", phase="phase", value="joules_per_step"), text


def _module_memory(run: Run) -> tuple[pl.DataFrame, str]:
    peak = run.peak()
    if peak is None:
        return pl.DataFrame(schema=_SELF_SCHEMA), ""
    live = peak.tensors.select("module", "phase", value=pl.col("bytes").cast(pl.Float64))
    source = f"live at the peak {COMPUTED if peak.computed else f'of step {peak.step}'}"
    return live, f"{source}, by the phase that allocated it"


def _module_flops(run: Run) -> tuple[pl.DataFrame, str]:
    table, step_numbers = steps_with_costs(run.self_times, profiled_steps(run)["step"].cast(pl.Int64))
    steps, stated = max(len(step_numbers), 1), table.filter(pl.col("flops").is_not_null())
    sums = stated.group_by("module", "phase").agg(value=pl.col("flops").sum() / steps)
    return sums, "of the operators that state them"


def _subtrees(own: pl.DataFrame, parents: dict[str, str | None], quantity: str, source: str) -> pl.DataFrame:
    """Own values summed up the tree; children come after their parents, so one pass from the end does."""
    place = {name: row for row, name in enumerate(parents)}
    columns: Floats = np.zeros((len(place), len(PHASES) + 1))
    sums = own.group_by("module", "phase").agg(pl.col("value").clip(lower_bound=0.0).sum())
    for module, phase, value in sums.iter_rows():
        at = PHASES.index(phase) if phase in PHASES else len(PHASES)
        columns[place[module], at] += value
    alone = columns.sum(axis=1)
    for name, parent in reversed(parents.items()):
        if parent is not None:
            columns[place[parent]] += columns[place[name]]
    phase_columns = [
        columns[:, at] if columns[:, at].any() else np.full(len(place), np.nan) for at in range(len(PHASES))
    ]
    frame = {"module": list(parents), "parent": list(parents.values()), **dict(zip(PHASES, phase_columns, strict=True))}
    frame |= {"own": alone, "total": columns.sum(axis=1)}
    texts = {"quantity": quantity, "unit": QUANTITIES[quantity], "source": source}
    schema = {"module": pl.String, "parent": pl.String, **dict.fromkeys((*PHASES, "own", "total"), pl.Float64)}
    return pl.DataFrame(frame, schema=schema, nan_to_null=True).with_columns(**{k: pl.lit(v) for k, v in texts.items()})
