"""What a suite run costs over its training, and whether sweeps survive kills: python -m benchmarks.suite_harness.

harness    CPU and wall time of a run of a sweep less those of a bare loop of the same steps, both from a fresh
           process to its end, in turns; the analysis of the run and its line on disk included
steps      ms a step of a sweep against that of the bare loop: of each the fastest twentieth, which the load of
           other programs hardly reaches. Two processes of the same bare loop differ by some percent all the same:
           what a step is longer by is therefore also measured at batch 1, where those percents are few microseconds
kills      a sweep killed (SIGKILL) at random moments and resumed, against an undisturbed one
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from stepscope.analysis.time.steps import timed_steps
from stepscope.experiments.engine.folder import SweepFolder
from stepscope.experiments.suite.results import SETTING, results_of_folder, settings_table
from stepscope.runfolder import RunReader

BARE = """
import json, statistics, sys, time
import torch
torch.set_num_threads(1)
from stepscope import workloads
training = workloads.find(sys.argv[1]).prepare(batch=int(sys.argv[2]))
batches, lengths = iter(training.batches()), []
for _ in range(int(sys.argv[3])):
    began = time.perf_counter()
    float(training.step(next(batches)))
    lengths.append(time.perf_counter() - began)
print(json.dumps(statistics.quantiles(lengths[3:], n=20)[0] * 1e3))
"""
SWEEP = (sys.executable, "-m", "stepscope", "suite", "run", "--quiet")


def harness(workload: str, batch: int, steps: int, rounds: int) -> dict[str, list[float]]:
    """By round of fresh processes in turns: s over the bare loop, ms a step of the bare loop and of the sweep.

    The command itself (importing, planning) is paid once a sweep: it is measured with one run and with two.
    """
    found: dict[str, list[float]] = {"wall_s": [], "cpu_s": [], "bare_ms": [], "step_ms": []}
    for _ in range(rounds):
        bare_wall, bare_cpu, bare = _timed([sys.executable, "-c", BARE, workload, str(batch), str(steps)])
        with tempfile.TemporaryDirectory() as out:
            one, two = (_sweep(workload, batch, steps, repeats, Path(out) / str(repeats)) for repeats in (1, 2))
            found["step_ms"].append(statistics.median(_fast_ms(path) for path in Path(out).glob("*/runs/*/*/run.json")))
        found["wall_s"].append(two[0] - one[0] - bare_wall)
        found["cpu_s"].append(two[1] - one[1] - bare_cpu)
        found["bare_ms"].append(json.loads(bare))
    return found


def kills(count: int, seed: int) -> tuple[bool, int]:
    """(the tables have the same runs, settings and ends, how often it was killed while it ran)."""
    options = ["lenet", "--batch", "1,2,4", "--repeats", "2", "--steps", "8", "--threads", "1"]
    chance, killed = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as folder:
        whole, broken = Path(folder) / "whole", Path(folder) / "broken"
        began = time.monotonic()
        subprocess.run([*SWEEP, *options, "--out", str(whole)], check=True)
        lasted = time.monotonic() - began
        command = [*SWEEP, *options, "--out", str(broken)]
        while killed < count:
            process = subprocess.Popen(command)
            try:
                process.wait(chance.uniform(0.1, 2.5 * lasted / count))
                break
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                killed += 1
            if (broken / "sweep.json").exists():
                command = [*SWEEP, "--resume", "--out", str(broken)]
        subprocess.run(command, check=True)
        return _alike(whole, broken), killed


def _fast_ms(header: Path) -> float:
    """The fastest twentieth of the unprofiled steps after the warm-up, ms."""
    lengths = timed_steps(RunReader(header.parent))[0]["length_ns"]
    return float(statistics.quantiles(lengths.to_list(), n=20)[0]) / 1e6


def _say_steps(found: dict[str, list[float]], at_one: dict[str, list[float]]) -> None:
    ratios = [step / bare for step, bare in zip(found["step_ms"], found["bare_ms"], strict=True)]
    added_ms = statistics.median(at_one["step_ms"]) - statistics.median(at_one["bare_ms"])
    bare_ms = statistics.median(found["bare_ms"])
    print(f"ms a step over the bare loop: x {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    print(f"  at batch 1 {1e3 * added_ms:.0f} us are added, x {1 + added_ms / bare_ms:.3f} here (bar 1.02)", flush=True)


def _alike(whole: Path, broken: Path) -> bool:
    one, other = (
        settings_table(results_of_folder(SweepFolder(path))).select(*SETTING, "repeats", "status")
        for path in (whole, broken)
    )
    return one.equals(other)


def _sweep(workload: str, batch: int, steps: int, repeats: int, out: Path) -> tuple[float, float]:
    options = [workload, "--batch", str(batch), "--steps", str(steps), "--threads", "1"]
    wall, cpu, _ = _timed([*SWEEP, *options, "--repeats", str(repeats), "--out", str(out)])
    return wall, cpu


def _timed(command: list[str]) -> tuple[float, float, str]:
    """Wall s, CPU s of the process and all that it waited for, and what it printed."""
    before, began = _children_cpu_s(), time.monotonic()
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return time.monotonic() - began, _children_cpu_s() - before, printed


def _children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--workload", default="lenet")
    arguments.add_argument("--batch", type=int, default=64)
    arguments.add_argument("--steps", type=int, default=150)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--kills", type=int, default=10)
    arguments.add_argument("--seed", type=int, default=0)
    options = arguments.parse_args()
    if options.rounds:
        found = harness(options.workload, options.batch, options.steps, options.rounds)
        cpu_s, wall_s = statistics.median(found["cpu_s"]), statistics.median(found["wall_s"])
        print(f"a run over the bare loop: {cpu_s:.2f} s CPU time, {wall_s:.2f} s wall time (bar 2)")
        _say_steps(found, harness(options.workload, 1, 4 * options.steps, options.rounds))
    if options.kills:
        same, killed = kills(options.kills, options.seed)
        print(f"killed {killed} times and resumed: the table is {'the same' if same else 'ANOTHER'}")


if __name__ == "__main__":
    main()
