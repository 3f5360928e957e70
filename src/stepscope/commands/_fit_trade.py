"""`stepscope fit --allocators`: what each allocator costs and saves on this step, really run."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from stepscope.units import bytes_

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from stepscope.studies.fit.allocators import Traded
    from stepscope.studies.fit.kept import Kept
    from stepscope.studies.fit.result import FitResult


def child_command(words: Sequence[str], steps: int, script_arguments: Sequence[str] = ()) -> list[str]:
    """The command that runs so many timed steps and prints their cost as its last line."""
    own = [sys.executable, "-m", "stepscope", "fit", *words, "--really", str(steps)]
    return [*own, "--", *script_arguments] if script_arguments else own


def measured(
    console: Console, words: Sequence[str], script_arguments: Sequence[str], found: FitResult, kept: Kept
) -> list[Traded]:
    """Run them in turns, with a line that says which; the table is the caller's to show."""
    from stepscope.record.workspaces import this_platform
    from stepscope.studies.fit.allocators import TIMED_STEPS, trade
    from stepscope.studies.fit.simulator import Simulator

    command = child_command(words, TIMED_STEPS, script_arguments)
    simulator = Simulator(this_platform(), kept, found.allocator)
    with console.status("allocators: the step really runs") as status:
        return trade(command, found, simulator, progress=lambda now: status.update(f"allocators: {now}"))


def show(console: Console, traded: Sequence[Traded], found: FitResult) -> None:
    """A line an allocator, the default first: peak and time with their spread, and the difference to the default."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="allocators, measured on this step", title_justify="left")
    for heading in ("", "process, measured", "to default", "predicted", "CPU time a step", "to default", "the limit"):
        table.add_column(heading, overflow="fold")
    first = traded[0]
    for each in traded:
        table.add_row(*_line(each, first, found.limit is not None))
    console.print(table)
    for each in traded:
        if each.cost.missing:
            console.print(f"{each.cost.allocator}: not measured. {each.cost.missing}")


def _line(each: Traded, first: Traded, limited: bool) -> tuple[str, ...]:
    cost, base = each.cost, first.cost
    low, high = each.predicted
    if cost.peak_bytes is None or cost.step_s is None or base.peak_bytes is None or base.step_s is None:
        return cost.allocator, "not measured", "", f"{bytes_(low)} to {bytes_(high)}", "", "", ""
    held = {True: "[green]kept[/]", False: "[red]exceeded[/]", None: ""}[each.within_limit] if limited else ""
    return (
        cost.allocator,
        f"{bytes_(cost.peak_bytes)} ({bytes_(cost.peak_low)} to {bytes_(cost.peak_high)})",
        "" if each is first else f"{cost.peak_bytes / base.peak_bytes - 1:+.1%}",
        f"{bytes_(low)} to {bytes_(high)}",
        f"{cost.step_s * 1e3:.3g} ms ({_ms(cost.step_low_s)} to {_ms(cost.step_high_s)})",
        "" if each is first else f"x {cost.step_s / base.step_s:.2f}",
        held,
    )


def _ms(seconds: float | None) -> str:
    return "not read" if seconds is None else f"{seconds * 1e3:.3g}"
