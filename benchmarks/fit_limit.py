"""Answers of `fit` against limits that the kernel enforces: `python -m benchmarks.fit_limit`, `--scripts` for scripts.

Scripts, as people write them (`fit_scripts/`; transformers, timm, torchvision and lightning are needed for some): each
is asked on the command line by two accounts, then run in a control group of 0.95, 1.00 and 1.05 times the limit from
which on the answer is a yes (root and a memory controller are needed). A yes that is followed by a kill is unsafe.
`--scripts FOLDER` takes others (`fit_scripts/unseen`: pandas and scikit-learn too), `--shares ""` runs none under a
limit, `--kept FILE` keeps what was done, a line of JSON each, and goes on from there.
Workloads: the largest batch under a limit is predicted, then really trained against it.

The limit is RLIMIT_AS (getrlimit(2): the address space of a process), which the kernel enforces on every allocation: a
training that needs more fails in malloc. It also counts what is never resident, as 256 KB for each of oneDNN's kernels,
so the empty process is taken from real trainings with a third of the samples: the mark of their address space (VmPeak;
median of three, which are up to 7 MB apart) less their predicted live peak. The true largest batch is found by halving
between one that trained and one that failed twice.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.memory_truth import status_bytes
from stepscope import workloads
from stepscope.analysis.memory.limits import (
    CHARGED,
    FITS,
    LIKELY_FITS,
    MARGIN,
    RESIDENT,
    UNMEASURED,
    Limit,
    ProcessPeak,
    fit_verdict,
)
from stepscope.footprint.calibration import DeviceCalibration
from stepscope.footprint.jobs import workload_job
from stepscope.footprint.prediction import JobQuestion, predict_fit
from stepscope.record.c_allocators import child_environment
from stepscope.record.dry.platform import this_platform

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


_HERE = Path(__file__).parent
SCRIPTS = tuple(sorted([*_HERE.glob("fit_scripts/*.py"), *_HERE.glob("scripts/fit_*.py")]))
_GROUPS = Path("/sys/fs/cgroup/memory")
Ends = tuple[int, int]


@dataclass(frozen=True)
class ScriptRow:
    """One script and allocator, B: what was said and seen by two accounts, and runs under limits of the second.

    runs: share of the limit from which on the answer is a yes, the answer, and whether the script ran to its end.
    """

    script: str
    allocator: str
    said: dict[str, Ends]
    took: dict[str, int]
    followed: bool
    runs: tuple[tuple[float, str, bool], ...]
    refused: str = ""  # the error, where it gave no answer

    @property
    def unsafe(self) -> int:
        """Answers of yes, also those of "likely", and a kill."""
        return sum(verdict in (FITS, LIKELY_FITS) and not ran for _, verdict, ran in self.runs)

    def holds(self, account: str) -> bool:
        """Return whether the interval does, to a thousandth."""
        if self.refused:
            return False
        low, high = self.said[account]
        return 0.999 * low <= self.took[account] <= 1.001 * high


def script_row(script: Path, allocator: str, shares: Sequence[float]) -> ScriptRow:
    """What the command line answers for a script, and what happens; the first run is without a limit."""
    path = str(script.resolve())
    try:
        answers = {account: _answer(path, allocator, account) for account in (RESIDENT, CHARGED)}
    except subprocess.CalledProcessError as error:
        words = [line for line in error.stderr.splitlines() if line.startswith("error: ")] or ["error: none in words"]
        return ScriptRow(script.stem, allocator, {}, {}, False, (), words[-1].replace(path, script.name))
    charged = ProcessPeak(**{part: tuple(ends) for part, ends in answers[CHARGED]["process"].items()})
    sure = not answers[CHARGED]["unsure"]
    _, took = in_group(path, allocator, None)
    runs = []
    for share in shares:
        limit = round(share * charged.high / (1 - MARGIN)) + 1
        verdict = fit_verdict(charged, Limit(limit, "control group", account=CHARGED), sure)
        runs.append((share, verdict, in_group(path, allocator, limit)[0]))
    said = {account: tuple(answer["interval"]) for account, answer in answers.items()}
    return ScriptRow(script.stem, allocator, said, took, sure, tuple(runs))


def _answer(path: str, allocator: str, account: str) -> dict[str, Any]:
    asked = ["--memory", "1TB", "--malloc", allocator, "--account", account, "--json"]
    command = [sys.executable, "-m", "stepscope", "fit", path, *asked]
    with tempfile.TemporaryDirectory() as folder:
        found = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL
        )
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


def in_group(path: str, allocator: str, limit: int | None) -> tuple[bool, dict[str, int]]:
    """Run a script in a control group: whether it ended well, and the most that was seen, by two accounts, B.

    Charged: pages without a file, of workers too, and shared memory. Resident: these, and the pages of files that the
    process itself has in memory; its workers share them; at least the kernel's own mark of the process, which sees what
    comes and goes between two looks.
    """
    group = _GROUPS / f"stepscope-{os.getpid()}"
    group.mkdir()
    try:
        if limit is not None:
            (group / "memory.limit_in_bytes").write_text(str(limit))
        join = f"import os, sys; open('{group}/cgroup.procs', 'w').write(str(os.getpid())); "
        start = join + f"os.execv(sys.executable, [sys.executable, {path!r}])"
        took = {RESIDENT: 0, CHARGED: 0}
        with tempfile.TemporaryDirectory() as folder:
            child = subprocess.Popen(
                [sys.executable, "-c", start], cwd=folder, env=child_environment(allocator),
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            status = Path(f"/proc/{child.pid}/status")
            while child.poll() is None:
                stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
                own = int(stat["total_rss"]) + int(stat.get("total_shmem", 0))
                text = status.read_text()
                files, mark = (
                    int(found[1]) * 1024 if found else 0
                    for found in (re.search(rf"{name}:\s+(\d+)", text) for name in ("RssFile", "VmHWM"))
                )
                took[CHARGED] = max(took[CHARGED], own)
                took[RESIDENT] = max(took[RESIDENT], own + files, mark)
                time.sleep(0.01)
        return child.returncode == 0, took
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
    heads = ("script", "allocator", "said, MB", "took", "width", "said, cgroup", "took", "answers and runs at shares")
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " --- |" * (len(heads) - 1)]
    for r in rows:
        if r.refused:
            lines.append(f"| {r.script} | {r.allocator} | {r.refused} | | | | | |")
            continue
        ends = {account: f"{low / 1e6:.0f} to {high / 1e6:.0f}" for account, (low, high) in r.said.items()}
        runs = "; ".join(f"{share}: {said}, {'ran' if ran else 'killed'}" for share, said, ran in r.runs)
        lines.append(
            f"| {r.script} | {r.allocator} | {ends[RESIDENT]} | {r.took[RESIDENT] / 1e6:.0f} "
            f"| {_width(r.said[RESIDENT]):.0%} | {ends[CHARGED]} | {r.took[CHARGED] / 1e6:.0f} | {runs} |"
        )
    held = ", ".join(f"{account} {sum(row.holds(account) for row in rows)}" for account in (RESIDENT, CHARGED))
    return (
        "\n".join([*lines, "", f"of {len(rows)} intervals hold: {held}; unsafe: {sum(r.unsafe for r in rows)}"]) + "\n"
    )


def script_rows(
    scripts: Sequence[Path], allocators: Sequence[str], shares: Sequence[float], kept: Path | None
) -> list[ScriptRow]:
    """Ask and run each script that is not among those kept; what is done is printed and kept at once."""
    known = _kept_rows(kept)
    rows = []
    for number, (allocator, script) in enumerate(itertools.product(allocators, scripts), 1):
        row = known.get((script.stem, allocator))
        if row is None:
            whole = len(allocators) * len(scripts)
            print(f"{number} of {whole}: {script.stem}, {allocator}", file=sys.stderr, flush=True)
            row = script_row(script, allocator, shares)
            if kept is not None:
                with kept.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(row)) + "\n")
            print(script_table([row]).splitlines()[2], flush=True)
        rows.append(row)
    return rows


def _kept_rows(kept: Path | None) -> dict[tuple[str, str], ScriptRow]:
    if kept is None or not kept.exists():
        return {}
    found = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    rows = [
        ScriptRow(
            **{
                **row,
                "said": {account: tuple(ends) for account, ends in row["said"].items()},
                "runs": tuple(tuple(run) for run in row["runs"]),
            }
        )
        for row in found
    ]
    return {(row.script, row.allocator): row for row in rows}


def _width(ends: Ends) -> float:
    return 2 * (ends[1] - ends[0]) / (ends[0] + ends[1])


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
    arguments.add_argument(
        "--scripts", nargs="?", const="", metavar="FOLDER", help="scripts in control groups: ours, or those of a folder"
    )
    arguments.add_argument("--kept", type=Path, help="file of scripts that are done: goes on from there")
    arguments.add_argument("--only", help="workloads of the five, or scripts, with commas")
    arguments.add_argument("--allocators", default="pinned,default")
    arguments.add_argument("--shares", default="0.95,1.0,1.05", help="of the limit from which on the answer is a yes")
    arguments.add_argument("--write", type=Path)
    options = arguments.parse_args()
    if options.child:
        _train(*json.loads(options.child))
        return
    torch.set_num_threads(1)
    if options.scripts is not None:
        found = sorted(Path(options.scripts).glob("*.py")) if options.scripts else SCRIPTS
        scripts = [script for script in found if options.only is None or script.stem in options.only.split(",")]
        shares = [float(share) for share in options.shares.split(",") if share]
        print(script_table(script_rows(scripts, options.allocators.split(","), shares, options.kept)))
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
