"""Answers of `fit` against limits that the kernel enforces: `python -m benchmarks.fit_limit`, `--scripts` for scripts.

Scripts: each is asked by the account of a control group, then run in one of 0.95, 1.00 and 1.05 times the upper end of
the answer (root and a memory controller are needed). A yes that is followed by a kill is unsafe. Workloads: the largest
batch under a limit is predicted, then really trained against it.

The limit is RLIMIT_AS (getrlimit(2): the address space of a process), which the kernel enforces on every allocation: a
training that needs more fails in malloc. It also counts what is never resident, as 256 KB for each of oneDNN's kernels,
so the empty process is taken from real trainings with a third of the samples: the mark of their address space (VmPeak;
median of three, which are up to 7 MB apart) less their predicted live peak. The true largest batch is found by halving
between one that trained and one that failed twice.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from benchmarks.memory_truth import status_bytes
from stepscope import workloads
from stepscope.analysis.memory.limits import CHARGED, MARGIN, UNMEASURED, Limit
from stepscope.footprint.calibration import DeviceCalibration, measured_environment
from stepscope.footprint.jobs import workload_job
from stepscope.footprint.prediction import JobQuestion, predict_fit, predict_script_fit
from stepscope.footprint.result import FitResult
from stepscope.record.allocators import child_environment
from stepscope.record.dry.workspaces import this_platform

# workload, optimizer, and the batch that the limit is chosen for: each step takes a second or so
CASES = (
    ("mobilenet-v1-c32", "momentum", 48),
    ("resnet18-c32", "adam", 24),
    ("squeezenet-c32", "sgd", 96),
    ("bert-mini-128", "adam", 12),
    ("char-gpt-64", "adam", 48),
)
_STEPS = 3
_EMPTY_TIMES, _TRIES = 3, 2  # address space differs from process to process
_MALLOC = "pinned"


@dataclass(frozen=True)
class Row:
    """One workload: the limit in B and three batches."""

    workload: str
    optimizer: str
    limit: int
    surely: int
    likely: int
    true: int


def trained(workload: str, optimizer: str, batch: int, limit: int) -> bool:
    """Whether three steps went well in a fresh process under the limit; a failure is tried once more."""
    return any(_child(workload, optimizer, batch, limit).returncode == 0 for _ in range(_TRIES))


def empty_bytes(workload: str, optimizer: str, batch: int) -> int:
    """The most address space of trainings with so many samples, less their live peak as predicted, B."""
    job = workload_job(workloads.find(workload), optimizer)
    children = [_child(workload, optimizer, batch, resource.RLIM_INFINITY) for _ in range(_EMPTY_TIMES)]
    whole = statistics.median_low(int(child.stdout.splitlines()[-1]) for child in children)
    said = predict_fit(JobQuestion(job, batch, None, _MALLOC, this_platform(), options=False))
    return whole - said.peak_bytes - sum(said.process.code) // 2


def compare(workload: str, optimizer: str, batch: int) -> Row:
    """The limit is what this batch is predicted to take; then the answer, and the truth from around it."""
    job = workload_job(workloads.find(workload), optimizer)
    empty = empty_bytes(workload, optimizer, batch // 3)
    kept = DeviceCalibration(environment=replace(UNMEASURED, resident=(empty, empty)))
    asked = JobQuestion(job, batch, None, _MALLOC, this_platform(), kept, options=False)
    limit = Limit(predict_fit(asked).process.middle, "RLIMIT_AS")
    found = predict_fit(JobQuestion(job, batch, limit, _MALLOC, this_platform(), kept, options=False))
    surely, likely = found.largest_batch or 0, found.likely_batch or 0
    return Row(workload, optimizer, limit.bytes, surely, likely, _true(workload, optimizer, likely, limit.bytes))


def _true(workload: str, optimizer: str, guess: int, limit: int) -> int:
    """The largest batch that trains, looked for outwards from a guess."""
    low, high, width = guess, guess + 1, 1
    while low > 0 and not trained(workload, optimizer, low, limit):
        high, low, width = low, max(0, low - width), 2 * width
    if high == guess + 1:
        width = 1
        while trained(workload, optimizer, high, limit):
            low, high, width = high, high + width, 2 * width
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if trained(workload, optimizer, middle, limit) else (low, middle)
    return low


def _child(workload: str, optimizer: str, batch: int, limit: int) -> subprocess.CompletedProcess[str]:
    words = json.dumps([workload, optimizer, batch, limit])
    command = [sys.executable, "-m", "benchmarks.fit_limit", "--child", words]
    return subprocess.run(command, env=child_environment(_MALLOC), capture_output=True, text=True, check=False)


def _train(workload: str, optimizer: str, batch: int, limit: int) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    job = workload_job(workloads.find(workload), optimizer)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    model, optimizers = job.build()
    inputs = job.batch(batch)
    for _ in range(_STEPS):
        job.step(model, optimizers, inputs)
    print(status_bytes("VmPeak"))


SCRIPTS = ("fit_evaluation", "fit_checkpoints", "fit_workers", "fit_average")
_GROUPS = Path("/sys/fs/cgroup/memory")
_SHARES = (0.95, 1.0, 1.05)


@dataclass(frozen=True)
class ScriptRow:
    """One script under one limit: interval, limit and peak without one in B, the verdict, whether it ran."""

    script: str
    allocator: str
    interval: tuple[int, int]
    limit: int
    verdict: str
    ran: bool
    charged: int

    @property
    def unsafe(self) -> bool:
        """A yes, and a kill."""
        return self.verdict == "fits" and not self.ran


def script_rows(name: str, allocator: str) -> list[ScriptRow]:
    """The answer for a script, and what happens under three limits; the first run is without one."""
    path = str(Path(__file__).parent / "scripts" / f"{name}.py")

    def answer(size: int) -> FitResult:
        limit = Limit(size, "control group", account=CHARGED)
        return predict_script_fit(path, [], limit, allocator, partial(measured_environment, allocator))

    interval = answer(1 << 40).interval
    _, charged = in_group(path, allocator, None)
    rows = []
    for share in _SHARES:
        limit = round(share * interval[1] / (1 - MARGIN)) + 1
        said = "fits" if share >= 1 else answer(limit).verdict or ""
        rows.append(ScriptRow(name, allocator, interval, limit, said, in_group(path, allocator, limit)[0], charged))
    return rows


def in_group(path: str, allocator: str, limit: int | None) -> tuple[bool, int]:
    """Run a script in a control group; whether it ended well, and the most that was charged without its files, B."""
    group = _GROUPS / f"stepscope-{os.getpid()}"
    group.mkdir()
    try:
        if limit is not None:
            (group / "memory.limit_in_bytes").write_text(str(limit))
        join = f"import os, sys; open('{group}/cgroup.procs', 'w').write(str(os.getpid())); "
        start = join + f"os.execv(sys.executable, [sys.executable, {path!r}])"
        with tempfile.TemporaryDirectory() as folder:
            child = subprocess.Popen(
                [sys.executable, "-c", start], cwd=folder, env=child_environment(allocator),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            most = 0
            while child.poll() is None:
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                most = max(most, int(stat["rss"]) + int(stat.get("shmem", 0)))
                time.sleep(0.005)
        return child.returncode == 0, most
    finally:
        _leave(group)


def _leave(group: Path) -> None:
    """Remove a group once its last process has gone."""
    for _ in range(100):
        try:
            group.rmdir()
        except OSError:
            time.sleep(0.05)
        else:
            return


def script_table(rows: list[ScriptRow]) -> str:
    """Markdown."""
    heads = "| script | allocator | said, MB | charged, MB | limit, MB | verdict | ran |"
    lines = [heads, "| --- |" + " --- |" * 6]
    lines += [
        f"| {r.script} | {r.allocator} | {r.interval[0] / 1e6:.0f} to {r.interval[1] / 1e6:.0f} "
        f"| {r.charged / 1e6:.0f} | {r.limit / 1e6:.0f} | {r.verdict} | {'yes' if r.ran else 'killed'} |"
        for r in rows
    ]
    return "\n".join([*lines, "", f"unsafe: {sum(row.unsafe for row in rows)} of {len(rows)}"]) + "\n"


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = ["| workload | optimizer | limit, MB | surely fits | likely fits | trained |", "| --- |" + " --- |" * 5]
    lines += [
        f"| {r.workload} | {r.optimizer} | {r.limit / 1e6:.0f} | {r.surely} | {r.likely} | {r.true} |" for r in rows
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--child", help=argparse.SUPPRESS)
    arguments.add_argument("--scripts", action="store_true", help="scripts in control groups")
    arguments.add_argument("--only", help="workloads of the five, or scripts, with commas")
    arguments.add_argument("--write", type=Path)
    options = arguments.parse_args()
    if options.child:
        _train(*json.loads(options.child))
        return
    torch.set_num_threads(1)
    if options.scripts:
        said = [
            row
            for name in (options.only.split(",") if options.only else SCRIPTS)
            for allocator in ("pinned", "default")
            for row in script_rows(name, allocator)
        ]
        print(script_table(said))
        return
    rows = []
    for workload, optimizer, batch in CASES:
        if options.only is None or workload in options.only.split(","):
            rows.append(compare(workload, optimizer, batch))
            print(rows[-1], flush=True)
    print(table(rows))
    if options.write:
        options.write.write_text(f"# The largest batch under a limit\n\n{table(rows)}")


if __name__ == "__main__":
    main()
