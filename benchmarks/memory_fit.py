"""Predicted against measured memory: `python -m benchmarks.memory_fit [--quick] [--write FILE]`.

Each cell (workload, batch, optimizer, variant) is measured in clean processes, the live peak and the peak of the
whole process with glibc's mmap threshold pinned and as it comes. Measurements are kept in --cache, a line each, so
that an interrupted benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from stepscope import workloads
from stepscope.analysis.memory_model import PAGED_IN
from stepscope.commands._jobs import workload_job
from stepscope.errors import StepscopeError
from stepscope.record.dry_run import DryRunStopped, dry_run
from stepscope.record.workspaces import Workspaces, this_platform
from stepscope.studies.fit.transforms import VARIANTS

_OPTIMIZERS = ("sgd", "momentum", "adam")
_BATCHES = (4, 16, 64)
_QUICK = ("lenet", "resnet18-c32", "char-lstm-80", "bert-tiny-128", "mobilenet-v1-c32", "squeezenet-c32")
_SMALL_BYTES = 20_000_000  # below this a step is scored by its absolute error
_MOST_FLOPS = 4e12  # of a step that this benchmark waits for
_MOST_BYTES = 6_000_000_000
_TIMEOUT_S = 900
Cell = dict[str, Any]


def cells(quick: bool, only: str | None = None, batches: tuple[int, ...] = _BATCHES) -> list[Cell]:
    """What is predicted and measured, the cheap first."""
    names = tuple(only.split(",")) if only else _QUICK if quick else tuple(workloads.names())
    plain = [
        {"workload": w, "batch": b, "optimizer": o, "variant": ""}
        for b, w, o in itertools.product(batches[:2] if quick else batches, names, _OPTIMIZERS)
    ]
    changed = [
        {"workload": w, "batch": 16, "optimizer": "momentum", "variant": v}
        for w, v in itertools.product(names, ("checkpointed", "frozen", "bf16"))
    ]
    return [*plain, *changed]


def predicted(cell: Cell) -> tuple[int, int, int] | str:
    """(live peak, what of it is resident, FLOPs) of a cell, B, or why not."""
    try:
        job = workload_job(workloads.find(cell["workload"]), cell["optimizer"])
        run = dry_run(job, cell["batch"], Workspaces(this_platform()), VARIANTS[cell["variant"]])
    except (DryRunStopped, StepscopeError) as error:
        return str(error)
    return run.peak_bytes, sum(run.peak_interval) // 2, run.flops


def measured(cell: Cell, what: str, allocator: str, cache: Path) -> dict[str, int] | str:
    """The measurement of a cell from the cache, or made now in a clean process."""
    asked = json.dumps({**cell, "what": what, "allocator": allocator}, sort_keys=True)
    known = dict(line.split("\t", 1) for line in cache.read_text().splitlines()) if cache.exists() else {}
    if asked not in known:
        command = [sys.executable, "-m", "benchmarks.memory_truth", asked]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return f"took longer than {_TIMEOUT_S} s"
        if done.returncode:
            return (done.stderr.strip().splitlines() or ["failed"])[-1]
        known[asked] = done.stdout.strip().splitlines()[-1]
        with cache.open("a") as file:
            file.write(f"{asked}\t{known[asked]}\n")
    found: dict[str, int] = json.loads(known[asked])
    return found


def compare(cell: Cell, cache: Path, processes: bool) -> dict[str, Any]:
    """One row: prediction, measurements and errors; `note` where something is missing."""
    said = predicted(cell)
    if isinstance(said, str):
        return {**cell, "note": f"not predicted: {said}"}
    size, resident, flops = said
    if flops * 3 > _MOST_FLOPS or size > _MOST_BYTES:
        return {**cell, "predicted": size, "note": "too large to be measured here"}
    live = measured(cell, "live", "", cache)
    row: dict[str, Any] = {**cell, "predicted": size}
    if isinstance(live, str):
        return {**row, "note": live}
    row |= {"live": live["peak"], "live_error": size / live["peak"] - 1}
    paged_in = sum(PAGED_IN) // 2
    for allocator in ("pinned", "default") if processes else ():
        whole = measured(cell, "process", allocator, cache)
        if not isinstance(whole, str):
            row |= {
                allocator: whole["peak"],
                f"{allocator}_error": (resident + whole["base"] + paged_in) / whole["peak"] - 1,
            }
            row["base"] = whole["base"]
    return row


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Median and worst error of each comparison."""
    lines = ["| against | cells | median error | worst | bar |", "| --- | --- | --- | --- | --- |"]
    bars = {"live_error": "0.3 % / 3 %", "pinned_error": "0.5 % / 2 %", "default_error": ""}
    for key, bar in bars.items():
        large = [abs(row[key]) for row in rows if key in row and row["predicted"] > _SMALL_BYTES]
        if large:
            name = key.removesuffix("_error")
            lines.append(f"| {name} | {len(large)} | {statistics.median(large):.2%} | {max(large):.2%} | {bar} |")
    return lines


def markdown(rows: list[dict[str, Any]]) -> str:
    """Every cell, the worst first."""
    lines = [
        f"torch {torch.__version__}, {this_platform().name}, one thread; sizes in MB (1e6 B).",
        "",
        *summary(rows),
        "",
        "| workload | batch | optimizer | variant | predicted | live | error | process pinned | error | default |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: -abs(row.get("live_error", 0))):
        sizes = {
            key: f"{row[key] / 1e6:.2f}" if key in row else "" for key in ("predicted", "live", "pinned", "default")
        }
        errors = {key: f"{row[key]:+.2%}" if key in row else "" for key in ("live_error", "pinned_error")}
        lines.append(
            f"| {row['workload']} | {row['batch']} | {row['optimizer']} | {row['variant']} | {sizes['predicted']} "
            f"| {sizes['live'] or row.get('note', '')} | {errors['live_error']} | {sizes['pinned']} "
            f"| {errors['pinned_error']} | {sizes['default']} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="six workloads, batch 4 and 16")
    arguments.add_argument("--no-process", action="store_true", help="live peaks only")
    arguments.add_argument("--cache", type=Path, default=Path("memory_fit.tsv"))
    arguments.add_argument("--write", type=Path)
    arguments.add_argument("--only", help="workloads, with commas")
    arguments.add_argument("--batches", default=",".join(map(str, _BATCHES)))
    options = arguments.parse_args()
    torch.set_num_threads(1)
    rows = []
    for cell in cells(options.quick, options.only, tuple(int(b) for b in options.batches.split(","))):
        row = compare(cell, options.cache, not options.no_process)
        rows.append(row)
        shown = {k: f"{v:+.3%}" if k.endswith("error") else v for k, v in row.items() if k not in cell}
        print(*cell.values(), shown, flush=True)
    print("\n".join(summary(rows)))
    if options.write:
        options.write.write_text(f"# Memory: predicted against measured\n\n{markdown(rows)}")


if __name__ == "__main__":
    main()
