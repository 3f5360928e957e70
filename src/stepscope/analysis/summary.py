"""summary.json: the headline of a run, for scripts and lists of many runs, so that nobody has to open its tables."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.analysis.energy_shown import energy_facts
from stepscope.analysis.process_memory import memory_facts

if TYPE_CHECKING:
    from stepscope.analysis.run import Run


def summary(run: Run) -> dict[str, Any]:
    """Verdict, metrics with unit and interval, own cost, phases and what was not measured; SI units, null unknown."""
    verdict = run.verdict()
    return {
        "id": run.id,
        "status": run.status,
        "workload": run.meta.get("workload"),
        "steps": run.steps.height,
        "verdict": {"bound": verdict.bound, "sentence": verdict.sentence, "next": list(verdict.next)},
        "metrics": run.metrics().to_dicts(),
        "overhead": run.overhead().to_dicts(),
        "memory": memory_facts(run),
        "simulated": run.simulated,
        "board": {"name": run.board.name, "title": run.board.title},
        "energy": run.energy_totals().to_dicts(),
        "energy_of_ops": energy_facts(run) if run.rails.lines else None,
        "use_of_ops": run.utilisation(by="kind").to_dicts(),
        "energy_notes": list(run.energy_tables.notes),
        "phases": run.phases().to_dicts(),
        "result": run.meta.get("result"),
        "not_measured": [asdict(entry) for entry in run.not_measured()],
    }


def write_summary(run: Run) -> Path:
    """Write summary.json into the run folder, replaced as a whole; OSError where the folder cannot be written."""
    path = run.path / "summary.json"
    part = path.with_name(".summary.json.part")
    part.write_text(json.dumps(summary(run), indent=1, default=str) + "\n", encoding="utf-8")
    part.replace(path)
    return path
