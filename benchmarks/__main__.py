"""`make bench`: what Stepscope costs, beside torch.profiler where it has a counterpart.

Each figure comes from fresh processes that take turns (A B A B ...), as CPU time, and is the median of their ratios.
`--quick` takes fewer rounds and a shorter memory test; `--write FILE` keeps the table as Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import polars as pl
from tests.fabricate import fabricate_run

from benchmarks.models import worst_case
from benchmarks.sampling_tick import board, tick_us
from stepscope.record.sampler.process import start_sampler
from stepscope.runfolder import RunReader


@dataclass(frozen=True)
class Row:
    """One line of the table; `bar` is what it must reach, None where the bar depends on the run."""

    what: str
    value: float
    unit: str
    bar: float | None
    note: str = ""

    @property
    def verdict(self) -> str:
        if self.bar is None:
            return ""
        return "reached" if self.value <= self.bar else "MISSED"


def child(case: str, mode: str, model: str, steps: int) -> dict[str, float]:
    """One measurement in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.child", case, mode, model, str(steps)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return found


def in_turns(case: str, modes: list[str], model: str, steps: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Rounds of fresh processes, the modes taking turns."""
    results: dict[str, list[dict[str, float]]] = {mode: [] for mode in modes}
    for _ in range(rounds):
        for mode in modes:
            results[mode].append(child(case, mode, model, steps))
    return results


def ratio(results: dict[str, list[dict[str, float]]], over: str, under: str, key: str) -> float:
    """Median of the ratios of neighbours."""
    pairs = zip(results[over], results[under], strict=True)
    return statistics.median(a[key] / b[key] for a, b in pairs)


def recorded_steps(rounds: int) -> list[Row]:
    resnet = in_turns("recorded-step", ["bare", "ours", "torch", "memory"], "resnet18", 12, rounds)
    worst = in_turns("recorded-step", ["bare", "ours", "torch"], "worst", 80, rounds)
    torch_worst = ratio(worst, "torch", "bare", "step_s")
    note = "torch.profiler {:.3f}"
    return [
        Row(
            "profiled step, ResNet18-c32 batch 16",
            ratio(resnet, "ours", "bare", "step_s"),
            "x bare",
            1.03,
            note.format(ratio(resnet, "torch", "bare", "step_s")),
        ),
        Row(
            "profiled step with its memory, ResNet18-c32 batch 16",
            ratio(resnet, "memory", "bare", "step_s"),
            "x bare",
            1.08,
            "allocations with category, layer and op",
        ),
        Row(
            "profiled step, worst case",
            ratio(worst, "ours", "bare", "step_s"),
            "x bare",
            1 + 1.1 * (torch_worst - 1),
            note.format(torch_worst) + "; bar: its overhead plus 10 %",
        ),
    ]


def whole_run(rounds: int) -> list[Row]:
    results = in_turns("whole-run", ["bare", "ours"], "worst", 500, rounds)
    sampler = statistics.median(r["children_s"] / r["run_s"] for r in results["ours"])
    recorded = statistics.median(r["recorded"] for r in results["ours"])
    note = f"{recorded:.0f} steps recorded; the sampler's process apart: {sampler:.3f} of the run, start included"
    return [
        Row("run of 500 steps, adaptive, worst case", ratio(results, "ours", "bare", "run_s"), "x bare", 1.10, note)
    ]


def tables(rounds: int) -> list[Row]:
    results = in_turns("tables", ["ours", "torch"], "worst", 40, rounds)
    theirs = statistics.median(r["event_us"] for r in results["torch"])
    ours = statistics.median(r["event_us"] for r in results["ours"])
    size = statistics.median(r["event_bytes"] for r in results["ours"])
    share = 1 / ratio(results, "torch", "ours", "event_us")
    return [
        Row(
            "stop to op and module tables, an event", share, "x torch", 1 / 8, f"{ours:.1f} us against {theirs:.1f} us"
        ),
        Row("disk, an op call", size, "B", 16, "torch's JSON: 277 B"),
    ]


def memory(steps: int) -> list[Row]:
    grown = child("memory", "ours", "worst", steps)["growth_mb"]
    return [Row(f"RAM, {steps:,} steps of the worst case, all recorded", grown, "MB grown", 150)]


def sampler(seconds: float) -> list[Row]:
    rows = []
    for period_ms, bar in ((10, 1.5), (5, 3.0)):
        share = sampler_share(period_ms, seconds)
        rows.append(Row(f"sampler at {period_ms} ms, all sensors of this machine", share * 100, "% of a core", bar))
    return rows


def sampling_tick(seconds: float) -> list[Row]:
    what = "4 rails, 6 cores, memory, 6 temperatures"
    with board(os.getpid()) as root:
        shared = sampler_share(10, seconds, root)
    return [
        Row(f"one sampling tick: {what}", tick_us(), "us of CPU", 300, "files in memory, all sensors due"),
        Row(f"sampler at 10 ms: {what}", shared * 100, "% of a core", 2.0, "files in memory, dithered"),
    ]


def sampler_share(period_ms: int, seconds: float, root: Path | None = None) -> float:
    """CPU time of the sampling process over wall time, from its own counter, its start excluded."""
    with tempfile.TemporaryDirectory() as out:
        run = Path(out) / "run"
        (run / "samples").mkdir(parents=True)
        (run / "run.json").write_text('{"schema": 1, "id": "bench", "status": "ok"}')
        process = start_sampler(run, period_ms * 1_000_000, root=root)
        _train(seconds)
        process.stop()
        used = RunReader(run).samples("sampler_cpu_time").drop_nulls("value")
        span = used.select(
            pl.col("value").last() - pl.col("value").first(), pl.col("t1_ns").last() - pl.col("t1_ns").first()
        )
        cpu_ns, wall_ns = span.row(0)
        return float(cpu_ns) / float(wall_ns)


def _train(seconds: float) -> None:
    """Keep a core as busy as a training does: on an idle machine a wake-up costs more, and nobody measures that."""
    _, step = worst_case()
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        step()


def start_up(rounds: int) -> list[Row]:
    bare = wall(["-c", "pass"], rounds)
    imported = wall(["-c", "import stepscope"], rounds)
    helped = wall(["-m", "stepscope", "--help"], rounds)
    return [
        Row("import stepscope, over bare Python", (imported - bare) * 1e3, "ms", 50),
        Row("stepscope --help", helped, "s", 0.4),
    ]


def text_report(rounds: int) -> list[Row]:
    """CPU time of a whole `stepscope report` of a run with many steps, and how it grows with them."""
    with tempfile.TemporaryDirectory() as folder:
        long, short = (
            fabricate_run(Path(folder), steps=steps, noise=0.02, recorded=lambda step: 8 <= step < 40)
            for steps in (400_000, 4_000)
        )
        command = ["-m", "stepscope", "report"]
        for run in (long, short):
            cpu([*command, str(run)])  # the first report fits the readings, and keeps what it found
        turns = [[cpu([*command, str(run)]) for run in (long, short)] for _ in range(rounds)]
    times = statistics.median(a / b for a, b in turns)
    more_s = statistics.median(a - b for a, b in turns)
    return [Row("text report of 400,000 steps, over one of 4,000", more_s, "s of CPU", 1.5, f"{times:.2f} x")]


def cpu(arguments: list[str]) -> float:
    """CPU time of a Python command, s."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def wall(arguments: list[str], rounds: int) -> float:
    """Median wall time of a Python command, s."""
    times = []
    for _ in range(rounds):
        before = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        times.append(time.perf_counter() - before)
    return statistics.median(times)


def markdown(rows: list[Row]) -> str:
    """The table, with the machine that it holds for."""
    import torch

    lines = [
        f"torch {torch.__version__}, Python {platform.python_version()}, {platform.machine()}, one thread, CPU time.",
        "",
        "| what | measured | bar | | note |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        bar = "" if row.bar is None else f"{row.bar:.3g}"
        lines.append(f"| {row.what} | {row.value:.3g} {row.unit} | {bar} | {row.verdict} | {row.note} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true")
    arguments.add_argument("--write", type=Path)
    options = arguments.parse_args()
    rounds = 3 if options.quick else 7
    parts: list[Callable[[], list[Row]]] = [
        lambda: recorded_steps(rounds),
        lambda: whole_run(rounds),
        lambda: tables(rounds),
        lambda: sampler(3 if options.quick else 10),
        lambda: sampling_tick(3 if options.quick else 10),
        lambda: start_up(rounds),
        lambda: text_report(rounds),
        lambda: memory(2_000 if options.quick else 20_000),
    ]
    rows: list[Row] = []
    for part in parts:
        for row in part():
            rows.append(row)
            print(f"{row.what:<52} {row.value:8.3g} {row.unit:<12} {row.verdict:<8} {row.note}", flush=True)
    if options.write:
        options.write.write_text(f"# What Stepscope costs\n\nWritten by `make bench`.\n\n{markdown(rows)}")


if __name__ == "__main__":
    main()
