"""Peak of the whole process, predicted against measured: `python -m benchmarks.memory_process [--write FILE]`.

Every cell is trained in clean processes, with glibc's mmap threshold pinned and as it comes, and compared with what
`stepscope fit --malloc` says of it. The empty process is measured once, as `stepscope fit --calibrate` does. An unsafe
yes is a measured peak that a limit below it would have been said to hold. Measurements are kept in --cache, in the
lines of `benchmarks.memory_fit`, and are not made again.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.memory_fit import Cell, measured
from stepscope import workloads
from stepscope.analysis.memory.limits import MARGIN, ProcessPeak
from stepscope.footprint.calibration import DeviceCalibration, baseline_of_process
from stepscope.footprint.jobs import workload_job
from stepscope.footprint.simulator import Simulator, live_peak
from stepscope.footprint.transforms import VARIANTS
from stepscope.record.dry.platform import this_platform
from stepscope.record.empty_process import EmptyProcess, empty_process

WORKLOADS = ("lenet", "mobilenet-v1-c32", "squeezenet-c32", "resnet18-c32", "bert-mini-128", "char-lstm-80")
CELLS = (
    *((batch, optimizer, "") for batch in (16, 64) for optimizer in ("momentum", "adam")),
    *((16, "momentum", variant) for variant in ("checkpointed", "frozen", "bf16")),
)
ALLOCATORS = ("pinned", "default")
_PLAIN = (16, "momentum", "")  # what a change is compared with
_SMALL_BYTES = 20_000_000  # of live tensors: below this there is nothing to save


@dataclass(frozen=True)
class Row:
    """One cell on one allocator: what was said, and what it took, B."""

    workload: str
    batch: int
    optimizer: str
    variant: str
    allocator: str
    live: int
    said: ProcessPeak
    took: int

    @property
    def error(self) -> float:
        """The middle of the interval against the truth."""
        return self.said.middle / self.took - 1

    @property
    def width(self) -> float:
        """Of the interval, against its middle."""
        return (self.said.high - self.said.low) / self.said.middle

    @property
    def inside(self) -> bool:
        """Whether the interval holds the truth."""
        return self.said.low <= self.took <= self.said.high

    @property
    def unsafe(self) -> bool:
        """Whether some limit that the training breaks would have been answered with a yes."""
        return self.said.high <= (self.took - 1) * (1 - MARGIN)


def predicted(cell: Cell, empty: int, allocator: str) -> tuple[int, ProcessPeak]:
    """Live bytes and the peak of the process, as `stepscope fit` says them."""
    kept = DeviceCalibration(environment=baseline_of_process(EmptyProcess(empty), threads=1))
    simulator = Simulator(this_platform(), kept, allocator)
    job = workload_job(workloads.find(str(cell["workload"])), str(cell["optimizer"]))
    plain = live_peak(simulator.run(job, int(cell["batch"])).log)
    live = live_peak(simulator.run(job, int(cell["batch"]), VARIANTS[str(cell["variant"])]).log)
    return live.bytes, simulator.peak_of_process(live, plain=plain)


def rows_of(workload: str, empty: int, cache: Path) -> list[Row]:
    """Every cell of a workload on both allocators; what fails is excluded and said."""
    rows = []
    for batch, optimizer, variant in CELLS:
        cell = {"workload": workload, "batch": batch, "optimizer": optimizer, "variant": variant}
        for allocator in ALLOCATORS:
            took = measured(cell, "process", allocator, cache)
            if isinstance(took, str):
                print(*cell.values(), allocator, took, flush=True)
                continue
            live, said = predicted(cell, empty, allocator)
            rows.append(Row(workload, batch, optimizer, variant, allocator, live, said, took["peak"]))
            print(line(rows[-1]), flush=True)
    return rows


def savings(rows: list[Row], allocator: str) -> list[tuple[Row, float, float]]:
    """Of each change: share of the process that was promised and that was saved."""
    of = {(r.workload, r.batch, r.optimizer, r.variant): r for r in rows if r.allocator == allocator}
    found = []
    for row in of.values():
        plain = of.get((row.workload, *_PLAIN))
        changed = row.batch == _PLAIN[0] and row is not plain
        if plain is not None and changed and plain.live > _SMALL_BYTES:
            found.append((row, 1 - row.said.middle / plain.said.middle, 1 - row.took / plain.took))
    return found


def summary(rows: list[Row]) -> list[str]:
    """Each bar with its figure."""
    lines = ["| allocator | cells | median error | worst | widest (checkpointed) | holds the truth | unsafe yes |"]
    lines.append("| --- |" + " --- |" * 6)
    for allocator in ALLOCATORS:
        of = [row for row in rows if row.allocator == allocator]
        if of:
            errors = [abs(row.error) for row in of]
            wide, again = (
                max((r.width for r in of if (r.variant == "checkpointed") is c), default=0) for c in (False, True)
            )
            lines.append(
                f"| {allocator} | {len(of)} | {statistics.median(errors):.2%} | {max(errors):.2%} "
                f"| {wide:.1%} ({again:.1%}) | {sum(row.inside for row in of)} | {sum(r.unsafe for r in of)} |"
            )
    lines.append("")
    for allocator in ALLOCATORS:
        off = [abs(promised - saved) for _, promised, saved in savings(rows, allocator)]
        if off:
            far = f"median {100 * statistics.median(off):.1f}, worst {100 * max(off):.1f} points"
            lines.append(f"Savings of {len(off)} changes, {allocator}: {far} from what was promised.")
    return lines


def line(row: Row) -> str:
    """A row of the table, MB."""
    said = f"{row.said.low / 1e6:.0f} to {row.said.high / 1e6:.0f}"
    return (
        f"| {row.workload} | {row.batch} | {row.optimizer} | {row.variant} | {row.allocator} | {row.live / 1e6:.1f} "
        f"| {said} | {row.took / 1e6:.1f} | {row.error:+.2%} | {'' if row.inside else 'outside'} |"
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--only", default=",".join(WORKLOADS), help="workloads, with commas")
    arguments.add_argument("--cache", type=Path, default=Path("memory_fit.tsv"))
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="no workload is begun after so long")
    arguments.add_argument("--write", type=Path)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    figures = empty_process()
    empty = None if figures is None else figures.resident
    if empty is None:
        raise SystemExit("the empty training process could not be measured")
    until = time.monotonic() + options.seconds
    rows = [
        row
        for workload in options.only.split(",")
        if time.monotonic() < until
        for row in rows_of(workload, empty, options.cache)
    ]
    print(f"empty process {empty / 1e6:.1f} MB\n" + "\n".join(summary(rows)))
    if options.write:
        head = "| workload | batch | optimizer | variant | allocator | live | said | took | error | |"
        table = "\n".join([head, "| --- |" + " --- |" * 9, *map(line, rows)])
        options.write.write_text("\n".join(["# Memory of whole processes", "", *summary(rows), "", table, ""]))


if __name__ == "__main__":
    main()
