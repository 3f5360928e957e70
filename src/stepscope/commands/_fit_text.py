"""How `stepscope fit` shows its answer in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.units import bytes_, percent

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.studies.fit.result import FitResult

_MILLION = 1_000_000  # samples: the search for the largest batch ends there
_SAID = {"fits": "It fits.", "too close": "Too close to say.", "does not fit": "It does not fit."}
_COLOURS = {"fits": "green", "too close": "yellow", "does not fit": "red"}


def show(console: Console, found: FitResult) -> None:
    """Verdict first, then where the bytes are, then what would help."""
    batch = f", batch {found.batch}" if found.batch else ""
    console.print(f"{found.name}{batch}: {found.method}, {found.platform}, allocator {found.allocator}")
    if found.stopped:
        console.print(f"  no dry run: {found.stopped}")
    if found.limit is not None and found.verdict is not None:
        limit = f"{bytes_(found.limit.bytes)} ({found.limit.source})"
        console.print(f"[bold {_COLOURS[found.verdict]}]{_SAID[found.verdict]}[/] The limit is {limit}.")
    low, high = found.interval
    console.print(
        f"The process takes {bytes_(low)} to {bytes_(high)} at its peak, {bytes_(found.peak_bytes)} of it live."
    )
    if found.largest_batch is not None:
        surely = (
            f"largest batch that surely fits: {found.largest_batch}" if found.largest_batch else "no batch surely fits"
        )
        if found.likely_batch and found.likely_batch > found.largest_batch:
            surely += f" (likely up to {found.likely_batch})"
        console.print(
            f"{surely}" + (f"; a sample takes {bytes_(found.bytes_per_sample)}" if found.bytes_per_sample else "")
        )
    where = f"in layer '{found.peak_module}'" if found.peak_module else "outside the layers"
    console.print(f"The peak is reached by {found.peak_op} {where}, in {found.live.phase}.")
    _breakdown(console, found)
    _options(console, found)
    if found.not_modelled:
        console.print(f"Workspace not modelled, counted as 0: {', '.join(sorted(found.not_modelled))}")
    for note in found.notes:
        console.print(f"  {note}")


def _breakdown(console: Console, found: FitResult) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("at the peak", "", "share"):
        table.add_column(heading, justify="left" if heading == "at the peak" else "right")
    total = found.process.middle
    for name, size in found.breakdown.items():
        table.add_row(name, bytes_(size), percent(size / total))
    table.add_row("process, middle of the interval", bytes_(total), "")
    console.print(table)


def _options(console: Console, found: FitResult) -> None:
    if not found.options:
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="what would need less, simulated", title_justify="left")
    for heading in ("", "process", "gain", "FLOPs", "verdict", "price"):
        table.add_column(heading, overflow="fold")
    for option in found.options:
        process = f"{bytes_(option.process.low)} to {bytes_(option.process.high)}"
        colour = _COLOURS.get(option.verdict or "", "default")
        table.add_row(
            option.name, process, percent(option.gain), f"x {option.compute:.2f}",
            f"[{colour}]{option.verdict or ''}[/]", option.price,
        )  # fmt: skip
    console.print(table)
