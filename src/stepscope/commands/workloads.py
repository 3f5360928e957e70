"""`stepscope workloads`: the suite at a glance."""

from __future__ import annotations

import json as json_format
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope import units

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


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
    What was computed is kept until the workloads or torch change. With --check, the loss of each after some seeded
    steps is held against its recorded band: seconds for most, many minutes for all; exit code 1 where one has left it.
    """
    from rich.console import Console

    from stepscope import workloads as suite

    chosen = _chosen(names or [], tier)
    if check:
        _check(chosen, json)
        return
    rows = _counted(chosen)
    if json:
        typer.echo(json_format.dumps(rows, indent=1))
    else:
        Console().print(_table(rows))
    errors = Console(stderr=True)
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


def _chosen(names: list[str], tier: str | None) -> list[Workload]:
    from stepscope import workloads as suite
    from stepscope.errors import UnknownName
    from stepscope.workloads.contract import TIERS

    if tier is not None and tier not in TIERS:
        raise UnknownName("tier", tier, TIERS)
    every = [suite.find(name) for name in names] if names else list(suite.every())
    return [workload for workload in every if tier is None or tier in workload.tiers]


def _counted(chosen: list[Workload]) -> list[dict[str, Any]]:
    """A row each; from the cache where the same files were counted by the same torch before."""
    from rich.progress import track

    kept, file = _kept()
    new = [workload for workload in chosen if workload.name not in kept or not _ours(workload)]
    for workload in track(new, "counting", transient=True, console=_errors(), disable=len(new) < 4):
        kept[workload.name] = _row(workload)
    if new and file is not None:
        _keep(file, kept)
    return [{**kept[workload.name], "data": workload.data.name, "data_kind": workload.data.kind} for workload in chosen]


def _ours(workload: Workload) -> bool:
    """A workload of the user's may change without any file of ours changing: it is counted each time."""
    import sys

    from stepscope import workloads as suite

    modules = [module for name, module in sys.modules.items() if name.startswith(f"{suite.__name__}.")]
    return any(workload is each for module in modules for each in getattr(module, "WORKLOADS", ()))


def _errors() -> Any:
    from rich.console import Console

    return Console(stderr=True)


def _kept() -> tuple[dict[str, Any], Path | None]:
    """What was counted before, and the file that it is kept in; a file that cannot be read is no loss."""
    import os

    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepscope"
    file = folder / f"workloads-{_digest()}.json"
    try:
        return dict(json_format.loads(file.read_text(encoding="utf-8"))), file
    except (OSError, ValueError):
        return {}, file


def _digest() -> str:
    """Of everything that the counts depend on: the workloads' files, the counting, and torch."""
    import hashlib

    import torch

    from stepscope import workloads as suite
    from stepscope.record import flops

    files: Iterable[Path] = [Path(flops.__file__), *sorted(Path(suite.__file__).parent.rglob("*.py"))]
    digest = hashlib.sha256(str(torch.__version__).encode())
    for file in files:
        digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _keep(file: Path, rows: dict[str, Any]) -> None:
    import contextlib

    with contextlib.suppress(OSError):  # a home that cannot be written costs time, nothing else
        file.parent.mkdir(parents=True, exist_ok=True)
        for old in file.parent.glob("workloads-*.json"):
            old.unlink()
        file.write_text(json_format.dumps(rows), encoding="utf-8")


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
        "tiers": list(workload.tiers),
        "input_shape": list(workload.input_shape),
        "default_batch": workload.default_batch,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "flops_forward": forward,
        "flops_training": None if forward is None or backward is None else forward + backward,
        "flops_not_counted": counted.reason,
    }


def _table(rows: list[dict[str, Any]]) -> Any:
    """Grouped by domain, so that it fits 80 columns."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    table.caption, table.caption_justify = "FLOPs per sample; 1 MAC = 2 FLOPs", "left"
    table.add_column("workload", overflow="fold")
    for title in ("input", "batch", "parameters", "forward\nFLOPs", "train\nFLOPs"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("data", no_wrap=True)
    for domain in sorted({row["domain"] for row in rows}):
        table.add_row(f"[bold]{domain}[/]")
        for row in sorted((row for row in rows if row["domain"] == domain), key=lambda row: row["name"]):
            table.add_row(
                f"  {row['name']}",
                "x".join(map(str, row["input_shape"])),
                str(row["default_batch"]),
                f"{row['parameters']:,}",
                units.si(row["flops_forward"], ""),
                units.si(row["flops_training"], ""),
                row["data_kind"].removeprefix("real-"),
            )
        table.add_section()
    return table
