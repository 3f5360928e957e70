"""Predicted against measured live peaks: `python -m benchmarks.memory_fit [--quick] [--write FILE]`.

Each cell (workload, batch, optimizer, variant) is measured by replaying every allocation of two real steps.
Measurements are kept in --cache, a line each, so that an interrupted benchmark goes on where it was. Whole processes:
`benchmarks.memory_process`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch

from stepscope import workloads
from stepscope.errors import StepscopeError
from stepscope.footprint.jobs import workload_job
from stepscope.footprint.transforms import VARIANTS
from stepscope.record.dry.dry_run import DryRunStopped, dry_run
from stepscope.record.dry.platform import this_platform
from stepscope.record.dry.workspaces import Workspaces

_OPTIMIZERS = ("sgd", "momentum", "adam")
_BATCHES = (4, 16, 64)
_QUICK = ("lenet", "resnet18-c32", "char-lstm-80", "bert-tiny-128", "mobilenet-v1-c32", "squeezenet-c32")
_SMALL_BYTES = 20_000_000  # below this a step is scored by its absolute error
_MOST_FLOPS = 4e12  # of a step that this benchmark waits for
_MOST_BYTES = 6_000_000_000
_TIMEOUT_S = 900
Cell = dict[str, Any]
_PREDICTED: dict[str, tuple[int, int] | str] = {}


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


def _dry(cell: Cell) -> tuple[int, int] | str:
    try:
        job = workload_job(workloads.find(cell["workload"]), cell["optimizer"])
        run = dry_run(job, cell["batch"], Workspaces(this_platform()), VARIANTS[cell["variant"]])
    except (DryRunStopped, StepscopeError) as error:
        return str(error)
    return run.peak_bytes, run.flops


def predicted(cell: Cell) -> tuple[int, int] | str:
    """(live peak in B, FLOPs) of a cell, or why not; made once."""
    key = json.dumps(cell, sort_keys=True)
    if key not in _PREDICTED:
        _PREDICTED[key] = _dry(cell)
    return _PREDICTED[key]


def measured(cell: Cell, what: str, allocator: str, cache: Path) -> dict[str, int] | str:
    """The measurement of a cell from the cache, or made now in a clean process."""
    asked = _asked(cell, what, allocator)
    if asked not in _known(cache):
        failure = measure([asked], cache)
        if failure is not None:
            return failure
    found: dict[str, int] = json.loads(_known(cache)[asked])
    return found


def measure(asked: list[str], cache: Path) -> str | None:
    """Measure cells one after the other in one process, each written as soon as it is there; what ended it early."""
    command = [sys.executable, "-m", "benchmarks.memory_truth", *asked]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        watch = threading.Timer(_TIMEOUT_S, child.kill)
        watch.start()
        for each in asked:
            line = child.stdout.readline()
            if not line:
                break
            with cache.open("a") as file:
                file.write(f"{each}\t{line}")
        said = child.stderr.read().strip().splitlines()
        watch.cancel()
    if child.returncode == 0:
        return None
    return (said or ["failed"])[-1] if child.returncode != -9 else f"killed: for memory, or after {_TIMEOUT_S} s"


def measure_live(cells: list[Cell], cache: Path, most_flops: float) -> None:
    """The live peaks of one workload's cells, in as few processes as possible: a failure costs its own cell only."""
    sizes = {_asked(cell, "live", ""): predicted(cell) for cell in cells}
    left = [a for a, said in sizes.items() if a not in _known(cache) and not isinstance(said, str)]
    left = [asked for asked in left if _small_enough(sizes[asked], most_flops)]
    while left:
        measure(left, cache)
        known = _known(cache)
        left = left[1:] if left[0] not in known else [asked for asked in left if asked not in known]


def _small_enough(said: tuple[int, int] | str, most_flops: float) -> bool:
    return not isinstance(said, str) and said[1] * 3 <= most_flops and said[0] <= _MOST_BYTES


def _asked(cell: Cell, what: str, allocator: str) -> str:
    return json.dumps({**cell, "what": what, "allocator": allocator}, sort_keys=True)


def _known(cache: Path) -> dict[str, str]:
    if not cache.exists():
        return {}
    return dict(line.split("\t", 1) for line in cache.read_text().splitlines())


def compare(cell: Cell, cache: Path, most_flops: float = _MOST_FLOPS) -> dict[str, Any]:
    """One row: prediction, measurement and error; `note` where something is missing."""
    said = predicted(cell)
    if isinstance(said, str):
        return {**cell, "note": f"not predicted: {said}"}
    if not _small_enough(said, most_flops):
        return {**cell, "predicted": said[0], "note": "too large to be measured here"}
    row: dict[str, Any] = {**cell, "predicted": said[0]}
    live = measured(cell, "live", "", cache)
    if isinstance(live, str):
        return {**row, "note": live}
    return {**row, "live": live["peak"], "error": said[0] / live["peak"] - 1}


def summary(rows: list[dict[str, Any]]) -> list[str]:
    """Median and worst error."""
    large = [abs(row["error"]) for row in rows if "error" in row and row["predicted"] > _SMALL_BYTES]
    if not large:
        return ["no step over 20 MB was measured"]
    lines = ["| cells over 20 MB | median error | worst | bar |", "| --- | --- | --- | --- |"]
    return [*lines, f"| {len(large)} | {statistics.median(large):.2%} | {max(large):.2%} | 0.3 % / 3 % |"]


def markdown(rows: list[dict[str, Any]]) -> str:
    """Every cell, the worst first."""
    lines = [
        f"torch {torch.__version__}, {this_platform().name}, one thread; sizes in MB (1e6 B).",
        "",
        *summary(rows),
        "",
        "| workload | batch | optimizer | variant | predicted | live | error |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in sorted(rows, key=lambda row: -abs(row.get("error", 0))):
        said, live = (f"{row[key] / 1e6:.2f}" if key in row else "" for key in ("predicted", "live"))
        error = f"{row['error']:+.2%}" if "error" in row else ""
        lines.append(
            f"| {row['workload']} | {row['batch']} | {row['optimizer']} | {row['variant']} | {said} "
            f"| {live or row.get('note', '')} | {error} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="six workloads, batch 4 and 16")
    arguments.add_argument("--cache", type=Path, default=Path("memory_fit.tsv"))
    arguments.add_argument("--write", type=Path)
    arguments.add_argument("--only", help="workloads, with commas")
    arguments.add_argument("--batches", default=",".join(map(str, _BATCHES)))
    arguments.add_argument("--most-flops", type=float, default=_MOST_FLOPS, help="of three steps; larger are excluded")
    arguments.add_argument("--seconds", type=float, default=float("inf"), help="no workload is begun after so long")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    asked = cells(options.quick, options.only, tuple(int(b) for b in options.batches.split(",")))
    until = time.monotonic() + options.seconds
    for _, group in itertools.groupby(sorted(asked, key=lambda cell: cell["workload"]), lambda cell: cell["workload"]):
        if time.monotonic() < until:
            rows += _compared(list(group), options)
    print("\n".join(summary(rows)))
    if options.write:
        options.write.write_text(f"# Memory: predicted against measured\n\n{markdown(rows)}")


def _compared(cells: list[Cell], options: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one workload, printed as they come."""
    measure_live(cells, options.cache, options.most_flops)
    rows = []
    for cell in cells:
        rows.append(compare(cell, options.cache, options.most_flops))
        shown = {k: f"{v:+.3%}" if k.endswith("error") else v for k, v in rows[-1].items() if k not in cell}
        print(*cell.values(), shown, flush=True)
    return rows


if __name__ == "__main__":
    main()
