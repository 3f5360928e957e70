"""`stepscope workloads`: list the workloads of the suite, and check their losses against recorded bands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.cli._options import print_json
from stepscope.errors import DataUnavailable, MissingDependency, StepscopeError

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload


_EXACT_FROM = 100  # columns of a terminal


def workloads(
    names: Annotated[list[str] | None, typer.Argument(help="Only these. Default: all.")] = None,
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

    from stepscope.api.workloads import chosen_workloads, workload_rows

    errors = Console(stderr=True)
    chosen = chosen_workloads(names or (), tier)
    if check:
        _train_and_print_bands(chosen, json)
        return
    rows = workload_rows(
        chosen, lambda new: track(new, "counting", transient=True, console=errors, disable=len(new) < 4)
    )
    if json:
        print_json(rows)
    else:
        console = Console()
        console.print(_table(rows, exact=console.width >= _EXACT_FROM))
    for warning in suite.warnings():
        errors.print(f"warning: {warning}", style="yellow", markup=False, soft_wrap=True)


def _train_and_print_bands(chosen: list[Workload], json: bool) -> None:
    rows = []
    for row in train_and_check_bands(chosen):
        rows.append(row)
        if not json:
            typer.echo(band_text(row))
    print_json(rows) if json else typer.echo(bands_summary(rows))
    refuse_broken_bands(rows)


def _table(rows: list[dict[str, Any]], *, exact: bool) -> Any:
    """Grouped by domain, so that it fits 80 columns with whole names, since they are what is typed."""
    from stepscope.report.table import Cell, Column, Table, number_column, text_column
    from stepscope.units import si

    short = partial(si, unit="")
    columns = (
        text_column("workload", "name", "  {}".format),
        Column("input", of=lambda row: "x".join(map(str, row["input_shape"]))),
        number_column("batch", "default_batch", str),
        number_column("parameters" if exact else "param-\neters", "parameters", "{:,}".format if exact else short),
        number_column("forward\nFLOPs", "flops_forward", short),
        number_column("train\nFLOPs", "flops_training", short),
        text_column("data", "data_kind", lambda kind: kind.removeprefix("real-")),
    )
    lines: list[tuple[Cell, ...]] = []
    for domain in sorted({row["domain"] for row in rows}):
        inside = sorted((row for row in rows if row["domain"] == domain), key=lambda row: row["name"])
        lines += [(Cell(domain, style="bold"),), *Table.from_rows(domain, columns, inside).rows, ()]
    by = ", ".join(sorted({row["counted_with"] for row in rows}))
    return Table("workloads", columns, lines, f"FLOPs per sample; 1 MAC = 2 FLOPs; counted with {by}")


def train_and_check_bands(chosen: Iterable[Workload]) -> Iterator[dict[str, Any]]:
    """A row for each as it is trained; `holds` is null where it could not be judged, and `why_not` says why."""
    from stepscope.workloads._loss_bands import check

    for workload in chosen:
        row: dict[str, Any] = {"name": workload.name, "holds": None, "why_not": workload.no_band}
        try:
            if (verdict := check(workload)) is not None:
                del row["why_not"]
                row.update({name: getattr(verdict, name) for name in ("holds", "learns", "first", "again", "end")})
                row.update(vars(verdict.band))
        except (DataUnavailable, MissingDependency) as error:
            row["why_not"] = f"{error} ({error.hint})" if error.hint else str(error)
        yield row


def band_text(row: dict[str, Any]) -> str:
    """A row for people."""
    if row["holds"] is None:
        return f"{row['name']}: not judged: {row['why_not']}"
    verdict = "holds" if row["holds"] else "DOES NOT HOLD"
    trained = f"{row['steps']} steps of batch {row['batch']} on {row['data']}"
    loss = f"loss {row['first']:.4g} to {row['end']:.4g}"
    same = "" if row["learns"] else f"; of the first batch it stays: {row['first']:.4g} to {row['again']:.4g}"
    return f"{row['name']}: {loss} in {trained}{same}; band [{row['low']:g}, {row['high']:g}]: {verdict}"


def refuse_broken_bands(rows: Iterable[dict[str, Any]]) -> None:
    """StepscopeError with those whose loss left its band."""
    broken = [row["name"] for row in rows if row["holds"] is False]
    if broken:
        raise StepscopeError(
            f"the loss is not where it was recorded: {', '.join(broken)}",
            "was the network, its data or an optimizer changed? bands are seed 0 on a CPU with torch 2.13",
        )


def bands_summary(rows: list[dict[str, Any]]) -> str:
    """Return how many hold, and how many could not be judged."""
    judged = [row["holds"] for row in rows if row["holds"] is not None]
    return f"{sum(judged)} of {len(judged)} bands hold; {len(rows) - len(judged)} not judged"
