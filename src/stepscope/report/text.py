"""A run on one screen of about 40 lines and 100 columns."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from stepscope.analysis.process_memory import reserved
from stepscope.analysis.run import Run
from stepscope.report.text_energy import energy_of_ops, use_of_kinds
from stepscope.report.text_lines import energy_notes, labelled, memory, missing, own_cost, speed, utilisation
from stepscope.report.text_memory import held
from stepscope.report.text_tables import energy_table, module_table, op_table, phase_table, shares_note
from stepscope.units import plural

_GOOD = {"ok": "green", "running": "cyan"}


def render(run: Run) -> RenderableType:
    """The one-screen report of a run, whatever of it exists."""
    metrics = run.metrics()
    parts = [
        *_heading(run),
        *_judged(run),
        *speed(metrics, run.meta),
        *phase_table(run.phases()),
        *module_table(run.modules()),
        *op_table(run.op_kinds()),
        *shares_note(run.phases(), run.modules(), run.op_kinds()),
        *energy_table(run.energy_totals()),
        *energy_of_ops(run),
        Text(""),
        *utilisation(metrics),
        *use_of_kinds(run),
        *memory(metrics, run.meta),
        *held(run.peak(), reserved(run)),
        *energy_notes(run.energy_tables.notes),
        *own_cost(run.overhead()),
        *missing(run.not_measured()),
        Text(f"{run.path}", style="dim", overflow="fold"),
    ]
    return Group(*parts)


def _heading(run: Run) -> list[RenderableType]:
    """What was run, and how it ended."""
    title = Text.assemble((run.id, "bold"), "  ", (run.status, _GOOD.get(run.status, "red")))
    if run.simulated is not None:
        title.append(f"  SIMULATED sensors: {run.simulated}", style="bold yellow")
    reason = run.meta.get("reason")
    if reason:
        title.append(f": {reason}", style="red")
    workload: dict[str, Any] = run.meta.get("workload") or {}
    batch, threads = workload.get("batch_size"), run.meta.get("threads")
    facts = [
        workload.get("name"),
        f"batch {batch}" if batch else None,
        *(workload.get(key) for key in ("optimizer", "precision", "device")),
        plural(threads, "thread") if threads else None,
        _data(workload.get("data") or {}),
    ]
    return [title, Text(" · ".join(str(fact) for fact in facts if fact), style="dim")]


def _data(data: dict[str, Any]) -> str | None:
    kind = f" ({data['kind']})" if data.get("kind") else ""
    return f"data {data['name']}{kind}" if data.get("name") else None


def _judged(run: Run) -> list[RenderableType]:
    verdict = run.verdict()
    return [Text(""), Text(verdict.sentence, style="bold"), labelled("next", *verdict.next)]
