"""All tables of a run for a terminal: times, energy, utilisation, memory at the peak, ranks, what is not measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from rich.console import Group, RenderableType
from rich.constrain import Constrain
from rich.text import Text

from stepscope.analysis.energy.step_totals import fit_against_readings_sentences
from stepscope.analysis.first_screen import setting_facts, workload_facts
from stepscope.analysis.memory.events import Peak
from stepscope.analysis.memory.headroom import training_peak
from stepscope.analysis.run import Run
from stepscope.analysis.sensor_log import log_table
from stepscope.analysis.suggested_changes import what_to_change
from stepscope.analysis.summary import (
    COMPUTED,
    METHOD_LABELS,
    VERDICT_LABELS,
    between_steps_sentences,
    energy_badge,
    main_rail,
    module_rows,
    reserved_bytes,
    resolution_sentences,
)
from stepscope.analysis.time.collectives import overlap_by_phase
from stepscope.analysis.time.operators import FRAMEWORK_OVERHEAD
from stepscope.analysis.time.ranks import last_rank
from stepscope.analysis.time.steps import are_steps_whole, profiled_sentence
from stepscope.fault_isolation import FailedPart, result_or_failed_part
from stepscope.quantities import simulated_badge
from stepscope.report.sections.sensor_log import log_view
from stepscope.report.table import Column, FittedTable, Row, SplitTable, Table, number_column, text_column
from stepscope.report.terminal_tables import (
    OPERATOR_WIDTH,
    PHASE_WIDTHS,
    WIDTH,
    energy_notes,
    energy_table,
    labelled,
    memory_lines,
    module_table,
    not_measured_lines,
    operator_name,
    operator_table,
    other_quantities,
    phase_table,
    profiling_overhead,
    shares_note,
    speed_lines,
    utilisation_lines,
)
from stepscope.runfolder import AUTOGRAD_NODE
from stepscope.units import bytes_, category_label, duration, estimate, number, percent, row_label, si

STATUS_STYLES = {"ok": "green", "running": "cyan"}


def render(run: Run) -> RenderableType:
    """Everything that the terminal shows of a run, whatever of it exists; `screen` has the answer alone."""
    parts: dict[str, Callable[[], list[RenderableType]]] = {
        "the setting": lambda: [*_heading(run)],
        "the bottleneck": lambda: [
            Text(""),
            Text(run.verdict().sentence, style="bold"),
            labelled("next", *run.verdict().next),
        ],
        "what to change": lambda: [*_tune_findings(run)],
        "the sensor log": lambda: [*_sensor_log(run)],
        "speed": lambda: [*speed_lines(run.metrics(), run.meta)],
        "phases": lambda: [*phase_table(run.phases(), are_steps_whole(run))],
        "communication": lambda: [*collectives_line(run)],
        "ranks": lambda: [*rank_tables(run)],
        "modules": lambda: [*module_table(run.modules())],
        "operators": lambda: [*operator_table(run.operators())],
        "shares": lambda: [*shares_note(run.phases(), run.modules(), run.operators())],
        "energy": lambda: [*energy_table(run.energy_totals())],
        "energy of operators": lambda: [*operator_energy(run)],
        "utilisation": lambda: [Text(""), *utilisation_lines(run.metrics())],
        "utilisation of operators": lambda: [*operator_utilisation(run)],
        "other quantities": lambda: [*other_quantities(run.metrics())],
        "dependencies": lambda: [*dependencies(run)],
        "memory": lambda: [*memory_lines(run.metrics(), run.meta, training_peak(run))],
        "memory at the peak": lambda: [*memory_at_peak(run.peak(), reserved_bytes(run))],
        "notes on energy": lambda: [*energy_notes(run.energy_tables.notes)],
        "profiling overhead": lambda: [*profiling_overhead(run.overhead(), profiled_sentence(run))],
        "what is not measured": lambda: [*not_measured_lines(run.not_measured())],
    }
    renderables: list[RenderableType] = []
    missed: dict[FailedPart, list[str]] = {}
    for name, make in parts.items():
        part = result_or_failed_part(make)
        if isinstance(part, FailedPart):
            missed.setdefault(part, []).append(name)
        else:
            renderables += part
    renderables += [Text(why.sentence(*names), style="red") for why, names in missed.items()]
    return Group(*renderables, Text(str(relative_path(run.path)), style="dim", overflow="fold"))


def relative_path(path: Path) -> Path:
    """Return a path from here, where it lies below."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, OSError):  # elsewhere, or the working directory is gone
        return path


def _heading(run: Run) -> list[RenderableType]:
    title = Text.assemble((run.id, "bold"), "  ", (run.status, STATUS_STYLES.get(run.status, "red")))
    reason = run.meta.get("reason")
    if reason:
        title.append(f": {reason}", style="red")
    if run.simulated is not None:
        title.append(f"  {simulated_badge(run.simulated)}", style="bold yellow")
    data = workload_facts(run).get("data") or {}
    kind = f" ({data['kind']})" if data.get("kind") else ""
    facts = [fact for fact in setting_facts(run) if not run.id.startswith(fact.replace("-", ""))]  # the day is above
    facts += [f"data {data['name']}{kind}"] if data.get("name") else []
    return [title, Text(" · ".join(facts), style="dim")]


def _sensor_log(run: Run) -> list[RenderableType]:
    """Every channel of a log without a training; nothing of another run."""
    table = log_table(run)
    if table is None:
        return []
    return [SplitTable(log_view(table), table.title.lower(), "report"), Text(table.note, style="dim"), Text("")]


def _tune_findings(run: Run) -> list[RenderableType]:
    """Return what `stepscope tune` found of this training; nothing where it was not run."""
    changes = what_to_change(run)
    sentences = [changes.sentence] if changes.tables else []
    sentences += [changes.gain] if changes.gain else []
    return [labelled("change", *sentences)] if sentences else []


_TOP_ROWS, _MOST_SENTENCES = 6, 3
_MOST_USES = 3
_NO_OPERATORS = "power was read, but no op of a step after the warm-up was recorded beside it"


def operator_energy(run: Run) -> list[RenderableType]:
    """Joules a step of the dearest kinds and modules on the device's own rail; empty where no power was measured."""
    method, kinds = run.attribution, run.energy(by="kind")
    rail = main_rail(kinds)
    if rail is None:
        return _no_energy(run, method)
    kinds = kinds.filter(pl.col("rail") == rail)
    if kinds["joules_per_step"].is_null().all():
        return [labelled("energy of ops", f"{rail}: {kinds['reason'][0]}")]
    modules = module_rows(run.energy(by="module").filter(pl.col("rail") == rail))
    parts = [Text(f"by {METHOD_LABELS[method]}")]
    if marked := energy_badge(run):
        parts.insert(0, Text(marked, style="bold yellow"))
    parts += [Text(sentence) for sentence in fit_against_readings_sentences(run, kinds, rail)]
    parts += [Text(sentence) for sentence in between_steps_sentences(kinds, rail)]
    parts += [Text(sentence) for sentence in resolution_sentences(run.energy_resolution())[:_MOST_SENTENCES]]
    note = "" if method == "fit" else f", {method}"
    return [
        *_operator_tables(kinds.head(_TOP_ROWS).to_dicts(), f"energy by op ({rail}{note})"),
        *_module_tables(modules[:_TOP_ROWS], f"energy by module ({rail}{note})"),
        Text(""),
        labelled("energy of ops", *parts),
    ]


def operator_utilisation(run: Run) -> list[RenderableType]:
    """Return the utilisation of CPU, GPU and memory by the operators that used most; empty below sensor resolution."""
    resolved = run.utilisation(by="kind").filter(pl.col("verdict") == "resolved")
    lines = []
    for (quantity, scope, unit), rows in resolved.group_by("quantity", "scope", "unit", maintain_order=True):
        columns = [
            f"{row['name'].replace(AUTOGRAD_NODE, 'engine: ')} {estimate(row['mean'], row['low'], row['high'], unit)}"
            for row in rows.head(_MOST_USES).to_dicts()
        ]
        of = "CPU of the process" if unit == "cores" else f"{scope} {str(quantity).replace('_', ' ')}"
        lines.append(f"{of}: {', '.join(columns)}")
    return [labelled("use of ops", *lines)] if lines else []


def dependencies(run: Run) -> list[RenderableType]:
    """Return the critical path, what could overlap, and what device or cores are idle for; empty where not known."""
    schedule = run.dependencies()
    if schedule.units.is_empty():
        return []
    path = f"{duration(schedule.critical_path_ns)} of {duration(schedule.work_ns)} of operators"
    lines = [f"critical path {path} ({percent(schedule.critical_path_ns / schedule.step_ns, 0)} of the step)"]
    for row in schedule.overlap.iter_rows(named=True):
        saved = f"{duration(row['reached_ns'])} by a schedule, at most {duration(row['most_ns'])}"
        lanes = f" on {row['lanes']} lanes" if row["lanes"] > 1 else ""
        lines.append(f"{row['what']}{lanes}: saves {saved} ({percent(row['share'])})")
    lines += [
        f"cores idle, {row['cause']}: {duration(row['ns'])} of core time ({percent(row['share'])} of all cores)"
        if row["device"] == "cpu"
        else f"{row['device']} idle, {row['cause']}: {duration(row['ns'])} ({percent(row['share'])})"
        for row in schedule.idle.filter(pl.col("share") >= _LEAST_IDLE).iter_rows(named=True)
    ]
    return [labelled("dependencies", *lines)]


def _no_energy(run: Run, method: str) -> list[RenderableType]:
    """A rail that was read with no op to hand it to, or a method with nothing to hand out, says so; else silent."""
    if not run.rails.lines:
        return []
    if method == "fit":
        measured = any(not line.estimated for line in run.rails.lines)
        return [labelled("energy of ops", f"none: {_NO_OPERATORS}")] if measured else []
    why = "no power model was given to this run" if method == "model" else "no power was measured in its steps"
    return [labelled("energy of ops", f"nothing to attribute by '{method}': {why}")]


def _estimate_choices(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Return the columns of an estimate that a table may have, the widest first; of CIs only where there are any."""
    ends = ["95 % CI"] if any(interval_text(row) for row in rows) else []
    return [["a step", *ends, "of energy", *power, "verdict"] for power in (["power"], [])]


def _estimate_columns() -> list[Column]:
    return [
        Column("95 % CI", of=interval_text),
        number_column("of energy", "share", percent),
        number_column("power", "watts", "W"),
        text_column("verdict", "verdict", VERDICT_LABELS.__getitem__),
    ]


def _operator_tables(rows: list[dict[str, Any]], title: str) -> list[RenderableType]:
    by_sample = ["a sample"] if any(row["joules_per_sample"] is not None for row in rows) else []
    columns = [
        Column("op", False, of=operator_name, names=True),
        number_column("a step", "joules_per_step", "J"),
        number_column("a sample", "joules_per_sample", "J"),
        *_estimate_columns(),
    ]
    # On a narrow terminal the sample and the power give way to names that tell an op from its backward.
    every, narrow = _estimate_choices(rows)
    choices = [every + by_sample, every, narrow]
    return [Text(""), Constrain(FittedTable(Table.from_rows("", columns, rows), choices, title, OPERATOR_WIDTH), WIDTH)]


def _module_tables(rows: list[dict[str, Any]], title: str) -> list[RenderableType]:
    phases = [name for name in ("forward", "backward", "optimizer") if any(row[name] for row in rows)]
    columns = [
        Column("module", False, of=lambda row: row_label(row["name"]) or "(the model)", names=True),
        *(number_column(phase, phase, "J", missing="", wide=PHASE_WIDTHS.get(phase)) for phase in phases),
        number_column("a step", "joules_per_step", "J"),
        *_estimate_columns(),
    ]
    every, narrow = _estimate_choices(rows)
    choices = [phases + every, every, narrow]
    return [Text(""), Constrain(FittedTable(Table.from_rows("", columns, rows), choices, title), WIDTH)]


def interval_text(row: dict[str, Any]) -> str:
    """The interval as a share of the value, or its ends where it is lopsided; empty without one."""
    joules, low, high = row["joules_per_step"], row["low"], row["high"]
    if low is None or high is None or not joules:
        return ""
    if low <= 0:
        return f"[0, {si(high, 'J')}]"
    return f"± {number(100 * (high - low) / 2 / joules, 2)} %"


_MOST_TENSORS = 3
_SMALL = 0.005  # of the peak: categories below it are not worth a word


def memory_at_peak(peak: Peak | None, reserved: dict[str, int]) -> list[RenderableType]:
    """Live tensors at the peak: how much, where, of what, and the largest; what the allocator holds beside them."""
    if peak is None:
        return []
    lines = [
        f"{bytes_(peak.bytes)} of live tensors at the peak{_peak_site(peak)}",
        *([COMPUTED] if peak.computed else []),
        ", ".join(
            f"{category_label(name)} {bytes_(size)} ({percent(share, 0)})"
            for name, size, share in peak.categories.iter_rows()
            if share >= _SMALL
        ),
        "largest: " + ", ".join(_tensor(row) for row in peak.tensors.head(_MOST_TENSORS).iter_rows(named=True)),
    ]
    if peak.device in reserved:
        cpu = peak.device == "cpu"
        who = (
            "reserved by malloc: at least {}, blocks of Python and torch included"
            if cpu
            else "reserved by the allocator: {}"
        )
        lines.append(who.format(bytes_(reserved[peak.device])))
    if peak.residual_bytes:
        lines.append(f"{percent(peak.residual_share, 2)} of it is unattributed")
    return [labelled("live at peak", *lines)]


def allocation_site(op: str | None, module: str | None) -> str:
    """Return where something was allocated: the op, and the layer that it ran for."""
    layer = "" if module is None else f" of {module or '(the model)'}"
    return f"{op or 'something'}{layer}"


def _peak_site(peak: Peak) -> str:
    phase = f", in {peak.phase}" if peak.phase and peak.phase != "other" else ""
    return f"{phase}: {allocation_site(peak.op, peak.module)} reached it" if peak.op else ""


def _tensor(row: dict[str, object]) -> str:
    shape = str(row["shape"] or "")
    shape = f" {shape}" if "x" in shape else f" [{shape}]" if shape else ""
    layer = f" of {row['module'] or '(the model)'}" if row["module"] is not None else ""
    return f"{category_label(str(row['category']))}{shape}{layer} {bytes_(float(str(row['bytes'])))}"


_TIMES = ("step", "exposed", "late", "waiting")
_RANK = len("process 1")
_LEAST_SHARE = 0.05  # of what is overlapped, below which a phase is not named
_LEAST_IDLE = 0.001  # of all cores or of the device: less is shown as 0.0 %
_MOST_NOTES = 4
_MOST_RANKS = 16


def communication_sentences(run: Run) -> list[str]:
    """Sentences on the collectives of this process; empty where there are none."""
    time = run.collective_time
    if time is None:
        return []
    exposed, overlapped = (float(np.median(time.steps[name].to_numpy())) for name in ("exposed_ns", "overlapped_ns"))
    parts = [(phase, ns) for phase, ns in overlap_by_phase(time.overlapped) if ns >= _LEAST_SHARE * overlapped]
    named = [f"{duration(ns)} by {_phase_name(phase)}" for phase, ns in parts]
    named[:1] = [f"{duration(ns)} overlapped by {_phase_name(phase)}" for phase, ns in parts[:1]]
    sentences = [f"{duration(exposed + overlapped)} a step, of which {duration(exposed)} exposed"]
    lines = [", ".join([*sentences, *named])]
    ran = run.communication().filter(pl.col("where") != "calling thread")
    for row in ran.head(2).iter_rows(named=True):
        sent = "" if row["bytes"] is None else f", {bytes_(row['bytes'])}"
        lines.append(
            f"{row['name']}: {number(row['calls'])} a step{sent}, {duration(row['exposed_ns'])} exposed (mean)"
        )
    return lines


def collectives_line(run: Run) -> list[RenderableType]:
    """The line of the collectives below the phases."""
    sentences = communication_sentences(run)
    return [labelled("collectives", *sentences)] if sentences else []


def rank_tables(run: Run) -> list[RenderableType]:
    """The parts of a distributed training side by side; nothing where there is one part."""
    ranks = run.side_by_side
    if len(ranks.parts) < 2:
        return []
    table, choices = _rank_table(ranks.table.head(_MOST_RANKS))
    lines = [*rank_sentences(ranks.table), *ranks.notes[:_MOST_NOTES]]
    return [
        Text(""),
        Constrain(FittedTable(table, choices, names=_RANK), WIDTH),
        *([labelled("ranks", *lines)] if lines else []),
    ]


def rank_sentences(table: pl.DataFrame) -> list[str]:
    """Return who arrives last, and by how much."""
    if table["last_share"].is_null().all():
        return []
    last = last_rank(table)
    if last is None:
        return ["no rank is the last one in most of the steps: none holds up the others"]
    late = estimate(last.late_ns, last.low_ns, last.high_ns, "ns")
    return [f"rank {last.rank} arrives last in {percent(last.share, 0)} of the steps, {late} after the first"]


def _phase_name(phase: str) -> str:
    return "framework overhead" if phase == FRAMEWORK_OVERHEAD else phase


def _rank_table(rows: pl.DataFrame) -> tuple[Table, list[list[str]]]:
    """Times of each rank with and without their 95 % CI, its memory and CPU utilisation; and choices of columns."""
    used = {
        "peak RSS": number_column("peak RSS", "peak_memory_bytes", "B"),
        "CPU cores": number_column("CPU cores", "cpu_cores", lambda cores: number(cores, 2)),
    }
    more = [column for column in used.values() if rows[column.key].is_not_null().any()]
    more += [text_column("status", "status")] if (rows["status"] != "ok").any() else []
    columns = [
        Column("rank", False, of=_rank_name),
        number_column("steps", "steps", "{:,}".format),
        *_time_columns("step"),
        number_column("samples/s", "samples_per_s", number),
        *(column for name in _TIMES[1:] for column in _time_columns(name)),
        *more,
    ]
    always = ["samples/s", *(column.title for column in more)]
    keys = [
        [f"{name} CI" if name in bounded else f"{name} alone" for name in _TIMES]
        for bounded in (_TIMES, _TIMES[:2], ())
    ]
    choices = [*(["steps", *always, *times] for times in keys), [*always, *keys[-1]]]
    return Table.from_rows("ranks", columns, rows.iter_rows(named=True)), choices


def _time_columns(name: str) -> Iterator[Column]:
    yield Column(
        name,
        of=lambda row: estimate(row[f"{name}_ns"], row[f"{name}_low_ns"], row[f"{name}_high_ns"], "ns"),
        key=f"{name} CI",
    )
    yield Column(name, of=lambda row: duration(row[f"{name}_ns"]), key=f"{name} alone")


def _rank_name(row: Row) -> str:
    return f"rank {row['rank']}" if row["rank"] is not None else f"process {row['process']}"
