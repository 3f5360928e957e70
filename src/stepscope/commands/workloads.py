"""`stepscope workloads`: the suite at a glance."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope import units

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


def workloads(
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
) -> None:
    """List what can be trained, with parameters and FLOPs computed on the spot.

    FLOPs are per sample and count one multiply-add as two; training is forward and backward, without the optimizer.
    """
    from rich.console import Console

    from stepscope import workloads as suite

    rows = [_row(workload) for workload in suite.every()]
    if json:
        typer.echo(json_format.dumps(rows, indent=1))
    else:
        Console().print(_table(rows))
    errors = Console(stderr=True)
    for warning in suite.warnings():
        errors.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)


def _row(workload: Workload) -> dict[str, Any]:
    """What is known of a workload without training it; the model is built without memory for its parameters."""
    import torch

    from stepscope.record.flops import count_flops

    with torch.device("meta"):
        model = workload.build()
        counted = count_flops(model, workload.loss, workload.example(2))
    forward, backward = counted.total_forward, counted.total_backward
    return {
        "name": workload.name,
        "domain": workload.domain,
        "summary": workload.summary,
        "input_shape": list(workload.input_shape),
        "default_batch": workload.default_batch,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops_forward": forward,
        "flops_training": None if forward is None or backward is None else forward + backward,
        "flops_not_counted": counted.reason,
        "data": workload.data.name,
        "data_kind": workload.data.kind,
    }


def _table(rows: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.caption, table.caption_justify = "FLOPs per sample; 1 MAC = 2 FLOPs", "left"
    for title in ("workload", "domain", "input"):
        table.add_column(title, no_wrap=True)
    for title in ("batch", "parameters", "forward\nFLOPs", "train\nFLOPs"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("data", no_wrap=True)
    for row in rows:
        table.add_row(
            row["name"],
            row["domain"],
            "x".join(map(str, row["input_shape"])),
            str(row["default_batch"]),
            f"{row['parameters']:,}",
            units.si(row["flops_forward"], ""),
            units.si(row["flops_training"], ""),
            row["data_kind"],
        )
    return table
