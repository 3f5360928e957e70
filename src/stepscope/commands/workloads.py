"""`stepscope workloads`: the suite at a glance."""

from __future__ import annotations

import json as json_format
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope import units

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload

_EXACT_FROM = 100  # columns of a terminal


def workloads(
    names: Annotated[list[str] | None, typer.Argument(help="Only these; all unless said.")] = None,
    tier: Annotated[str | None, typer.Option(help="Only a tier: smoke, paper-2019, paper-low-power or edge.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Train some seeded steps of each: does it still learn as recorded?")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON list instead of a table.")] = False,
) -> None:
    """List what can be trained, with parameters and FLOPs computed from the models themselves.

    FLOPs are per sample and count one multiply-add as two; training is forward and backward, without the optimizer.
    The package brings what was computed; where a workload's file has changed since, it is computed anew, and kept.
    With --check, the loss of each after some seeded steps is held against its recorded band: seconds for most, many
    minutes for all; exit code 1 where one has left it.
    """
    from rich.console import Console
    from rich.progress import track

    from stepscope import workloads as suite

    for name in names or ():
        suite.refuse_unknown(name)  # before anything heavy is imported

    from stepscope.studies.counted_workloads import chosen_workloads, counted

    errors = Console(stderr=True)
    chosen = chosen_workloads(names or (), tier)
    if check:
        _check(chosen, json)
        return
    rows = counted(chosen, lambda new: track(new, "counting", transient=True, console=errors, disable=len(new) < 4))
    if json:
        typer.echo(json_format.dumps(rows, indent=1))
    else:
        console = Console()
        console.print(_table(rows, exact=console.width >= _EXACT_FROM))
    for warning in suite.warnings():
        errors.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)


def _check(chosen: list[Workload], json: bool) -> None:
    from stepscope.commands._bands_shown import checked, line, refuse_outside, total

    rows = []
    for row in checked(chosen):
        rows.append(row)
        if not json:
            typer.echo(line(row))
    typer.echo(json_format.dumps(rows, indent=1) if json else total(rows))
    refuse_outside(rows)


def _table(rows: list[dict[str, Any]], *, exact: bool) -> Any:
    """Grouped by domain, so that it fits 80 columns with whole names, since they are what is typed."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    by = ", ".join(sorted({row["counted_with"] for row in rows}))
    table.caption, table.caption_justify = f"FLOPs per sample; 1 MAC = 2 FLOPs; counted with {by}", "left"
    table.add_column("workload", no_wrap=True)
    for title in ("input", "batch", "parameters" if exact else "param-\neters", "forward\nFLOPs", "train\nFLOPs"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("data", no_wrap=True)
    for domain in sorted({row["domain"] for row in rows}):
        table.add_row(f"[bold]{domain}[/]")
        for row in sorted((row for row in rows if row["domain"] == domain), key=lambda row: row["name"]):
            table.add_row(
                f"  {row['name']}",
                "x".join(map(str, row["input_shape"])),
                str(row["default_batch"]),
                f"{row['parameters']:,}" if exact else units.si(row["parameters"], ""),
                units.si(row["flops_forward"], ""),
                units.si(row["flops_training"], ""),
                row["data_kind"].removeprefix("real-"),
            )
        table.add_section()
    return table
