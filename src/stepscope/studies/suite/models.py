"""The corrected model table: what papers print of a model, what that means, and what is true."""

from __future__ import annotations

from typing import Any

from stepscope.studies.suite.results import Results


def corrected(results: Results) -> list[dict[str, Any]]:
    """A row for each printed figure; FLOPs are those counted in the runs, per sample, 1 MAC = 2 FLOPs."""
    rows = []
    for name, workload in results.workloads.items():
        true = _true(results, name, workload["definition"].get("parameters"))
        for printed in workload["about"].get("published", ()):
            figure = {"quantity": printed["quantity"], "printed": f"{printed['value']} ({printed['source']})"}
            rows.append({"workload": name, **figure, "meaning": printed["remark"], **true})
    return rows


def _true(results: Results, workload: str, parameters: int | None) -> dict[str, Any]:
    runs = [run for run in results.runs if run["point"]["workload"] == workload and run.get("flops_forward")]
    if not runs:
        return {"parameters": parameters, "flops_forward": None, "flops_training": None}
    forward, backward = runs[0]["flops_forward"], runs[0]["flops_backward"]
    training = None if backward is None else forward + backward
    return {"parameters": parameters or runs[0]["parameters"], "flops_forward": forward, "flops_training": training}
