"""Are the times of layers true? `python -m benchmarks.truth_of_time [--networks NAME ...] [--write PAGE]`.

The truth are plain timers between blocks of layers while nothing profiles: a stamp before and after each block, and a
tensor hook at each border that stamps the backward pass as it comes by; of the first block, where the last of its
gradients is there: what follows, up to the return of `backward`, is no layer's. Each process trains so, then under
`stepscope.profile`, torch.profiler or nothing, and then so again: what is said is held against the truth of the same
process, before and after. Between processes the same step differs by 10 to 50 %, by what glibc's heap happens to give
back. Each figure is the mean of a process over its steps of typical length, as blocks then add up to one; then the
median over the rounds. The rounds with nothing in between say how well the truth repeats. What one stamp costs is
measured by a second hook on the same tensor and is taken off.
Blocks below a fiftieth of their phase are judged together. On a shared machine run it with priority.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.networks import NETWORKS, Batch, Network, network
from benchmarks.profiled import ROOT, environment, keep

_WHOLE = ("optimizer", "low", "high")  # of a block and all that is in it
PHASES = ("forward", "backward")
MODES = ("bare", "ours", "torch")
MEDIAN_BAR, WORST_BAR = 0.03, 0.08
# Freed memory stays with the process: what glibc gives back and faults in again, by accident of what else lies on the
# heap, changes a block by up to 60 %, with Stepscope as without it.
KEPT_HEAP = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}
_WARM, _LEAST_STEPS, _WINDOWS = 10, 60, 4
_SMALL = 0.02  # of the phase
Times = dict[str, list[float]]  # of each phase, ns a block


class Timed:
    """A training of one network on one thread, with stamps between its blocks where they are wanted."""

    def __init__(self, name: str) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(0)
        self.made: Network = network(name)
        self.optimizer = torch.optim.SGD(self.made.model.parameters(), lr=1e-3, momentum=0.9)
        self.batches = [self.made.batch(self.made.samples) for _ in range(4)]
        self.first = list(self.made.model[0].parameters())
        self.last_ns: list[int] = []  # when each gradient of the first block was there

    def batch(self, step: int) -> Batch:
        return self.batches[step % 4]

    def step(self, step: int) -> None:
        """Train on a batch as a user would."""
        inputs, targets = self.batch(step)
        self.optimizer.zero_grad()
        self.made.loss(self.made.model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def stamped_step(self, step: int) -> tuple[list[int], list[int], int]:
        """Train on a batch; return ns of each block forward and backward, and what a stamp in between costs."""
        clock = time.perf_counter_ns
        forward: list[int] = []
        self.last_ns.clear()
        borders: dict[int, list[int]] = {}
        x: Any
        x, targets = self.batch(step)
        self.optimizer.zero_grad()
        for number, block in enumerate(self.made.model):
            began = clock()
            x = block(x)
            forward.append(clock() - began)
            stamps = borders.setdefault(number, [])
            stamp = _stamp(stamps, clock)
            border = x[-1] if isinstance(x, tuple) else x
            border.register_hook(stamp)
            border.register_hook(stamp)
        self.made.loss(x, targets).backward()  # type: ignore[no-untyped-call]
        ended = clock()
        self.optimizer.step()
        count = len(forward)
        costs = [borders[number][1] - borders[number][0] for number in range(count)]
        if self.last_ns:  # each but the last of these stamps delays the last one
            ended = self.last_ns[-1] - (len(self.last_ns) - 1) * int(statistics.median(costs))
        until = [ended if number == 0 else borders[number - 1][0] for number in range(count)]
        backward = [until[number] - borders[number][1] for number in range(count)]
        return forward, backward, int(statistics.median(costs))


def _stamp(stamps: list[int], clock: Callable[[], int]) -> Callable[[Tensor], None]:
    def stamp(gradient: Tensor) -> None:
        stamps.append(clock())

    return stamp


def in_typical_steps(lengths: Sequence[float], rows: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of each block over the middle half of the steps by their length.

    So blocks add up to a typical step, as ours do: a block's own median leaves out what a step nearly always has too
    much in one block or another, 1 to 4 % of it.
    """
    order = sorted(range(len(rows)), key=lengths.__getitem__)
    middle = order[len(order) // 4 : -(len(order) // 4) or None]
    return [statistics.fmean(rows[step][block] for step in middle) for block in range(len(rows[0]))]


def bare(timed: Timed, steps: int) -> dict[str, Any]:
    """Return the truth: median ns of each block and phase, the time of the step, and what a stamp costs."""
    rows = []
    spent = []
    stamp = _stamp(timed.last_ns, time.perf_counter_ns)
    ends = [parameter.register_post_accumulate_grad_hook(stamp) for parameter in timed.first]  # type: ignore[no-untyped-call]
    for step in range(_WARM + steps):
        began = time.perf_counter_ns()
        row = timed.stamped_step(step)
        if step >= _WARM:
            rows.append(row)
            spent.append(time.perf_counter_ns() - began)
    for end in ends:
        end.remove()
    cost = statistics.median(row[2] for row in rows)
    forward = in_typical_steps(spent, [row[0] for row in rows])
    backward = [took - cost for took in in_typical_steps(spent, [row[1] for row in rows])]
    return {"forward": forward, "backward": backward, "step": statistics.median(spent), "stamp": cost}


def ours(timed: Timed, steps: int) -> dict[str, Any]:
    """Return what `Run.modules` says of each block, forward and backward, ns; null where it says nothing."""
    import stepscope

    with tempfile.TemporaryDirectory() as out:
        with stepscope.profile(timed.made.model, timed.optimizer, out=out) as scope:
            for step in range(_WARM + steps):
                timed.step(step)
                scope.step()
        run = scope.run  # of the closed run: what recording costs is known at its end
        modules = {row["module"]: row for row in run.modules().iter_rows(named=True)}
        profiled = int(run.steps["recorded"].sum())
    names = [str(number) for number in range(len(timed.made.model))]
    found: dict[str, Any] = {
        phase: [modules.get(name, {}).get(f"tree_{phase}_ns") for name in names] for phase in PHASES
    }
    whole = {name: [modules.get(block, {}).get(f"tree_{name}_ns") for block in names] for name in _WHOLE}
    return {**found, **whole, "profiled": profiled}


def of_torch(timed: Timed, steps: int) -> dict[str, Any]:
    """Return the same from torch.profiler: ranges of the forward pass, and the nodes of autograd they led to, ns."""
    count = len(timed.made.model)
    for number, block in enumerate(timed.made.model):
        block.forward = _ranged(block.forward, f"block {number}")
    for step in range(_WARM):
        timed.step(step)
    rows: list[tuple[float, list[float], list[float]]] = []
    for window in range(_WINDOWS):
        for step in range(max(0, steps // _WINDOWS - 10)):
            timed.step(step)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            for step in range(10):
                with torch.profiler.record_function("step"):
                    timed.step(window * 10 + step)
        events = profiler.events()
        assert events is not None
        rows += _steps_of(list(events), count)
    lengths, forward, backward = zip(*rows, strict=True)
    return {"forward": in_typical_steps(lengths, forward), "backward": in_typical_steps(lengths, backward)}


def _ranged(forward: Callable[..., Any], name: str) -> Callable[..., Any]:
    def ranged(*arguments: Any) -> Any:
        with torch.profiler.record_function(name):
            return forward(*arguments)

    return ranged


def _steps_of(events: list[Any], count: int) -> list[tuple[float, list[float], list[float]]]:
    """Return the length, and ns of each block forward and backward, of each step of a window of torch.profiler.

    Nodes of autograd run one after another: a block's share of the backward pass begins with its first node and ends
    where the first node of an earlier block begins, or with the last node of the pass.
    """
    rows = []
    events = sorted(events, key=lambda event: event.time_range.start)
    starts = [event.time_range.start for event in events]
    for step in (event for event in events if event.name == "step"):
        inside = events[bisect_left(starts, step.time_range.start) : bisect_left(starts, step.time_range.end)]
        ranges = {event.name: event.time_range for event in inside if event.name.startswith("block ")}
        forward = [ranges[f"block {number}"] for number in range(count)]
        block_of: dict[int, int] = {}
        begins = [span.start for span in forward]
        for event in inside:
            number = bisect_right(begins, event.time_range.start) - 1
            if event.sequence_nr >= 0 and number >= 0 and event.time_range.start < forward[number].end:
                block_of[event.sequence_nr] = number
        nodes = [event for event in inside if event.name.startswith("autograd::engine::evaluate_function")]
        first = [float("inf")] * count
        for node in nodes:
            number = block_of.get(node.sequence_nr, -1)
            if number >= 0 and node.time_range.start > forward[-1].end:
                first[number] = min(first[number], node.time_range.start)
        end = max(node.time_range.end for node in nodes)
        for number in range(count):  # a block without nodes ends where it begins
            if first[number] == float("inf"):
                first[number] = first[number - 1] if number else end
        until = [end, *first[:-1]]
        rows.append(
            (
                (step.time_range.end - step.time_range.start) * 1e3,
                [(span.end - span.start) * 1e3 for span in forward],
                [max(0.0, until[number] - first[number]) * 1e3 for number in range(count)],
            )
        )
    return rows


CHILDREN: dict[str, Callable[[Timed, int], dict[str, Any]]] = {"bare": bare, "ours": ours, "torch": of_torch}


def beside_the_truth(mode: str, timed: Timed, steps: int) -> dict[str, Any]:
    """Return what is said of each block, and the truth of this process: the mean of before and after."""
    before = bare(timed, steps // 2)
    said = CHILDREN[mode](timed, steps)
    after = before if mode == "torch" else bare(timed, steps // 2)  # its ranges stay on the blocks
    truth = {
        phase: [statistics.fmean(pair) for pair in zip(before[phase], after[phase], strict=True)] for phase in PHASES
    }
    return {**said, "truth": truth}


def child(mode: str, name: str, steps: int) -> dict[str, Any]:
    """Measure one mode in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.truth_of_time", "--child", mode, name, str(steps)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment(KEPT_HEAP), cwd=ROOT, check=False)
    if ended.returncode:
        raise SystemExit(ended.stderr)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def together(
    typical: list[float], truth: list[float], said: list[float | None]
) -> tuple[list[float], list[float | None]]:
    """Put blocks that are typically below a fiftieth of the phase into one, at the end."""
    small = [time_ns < _SMALL * sum(typical) for time_ns in typical]
    kept: list[tuple[float, float | None]] = []
    joined: list[tuple[float, float | None]] = []
    for pair, little in zip(zip(truth, said, strict=True), small, strict=True):
        (joined if little else kept).append(pair)
    if sum(value for value, little in zip(typical, small, strict=True) if little) >= _SMALL * sum(typical):
        known = [value for _, value in joined if value is not None]
        kept.append((sum(true for true, _ in joined), sum(known) if len(known) == len(joined) else None))
    return [true for true, _ in kept], [value for _, value in kept]


def errors(rows: list[dict[str, Any]], phase: str) -> list[float]:
    """Return the relative error of each block, of the median ratio over the processes; 1 where nothing is said."""
    typical = [statistics.median(block) for block in zip(*(row["truth"][phase] for row in rows), strict=True)]
    ratios: list[list[float]] = []
    for row in rows:
        pairs = zip(*together(typical, row["truth"][phase], row[phase]), strict=True)
        ratios.append([math.inf if said is None else said / true for true, said in pairs])
    medians = [statistics.median(block) for block in zip(*ratios, strict=True)]
    return [abs(ratio - 1) if math.isfinite(ratio) else 1.0 for ratio in medians]


def examine(name: str, rounds: int, seconds: float) -> dict[str, Any]:
    """Measure a network in turns; return the errors of each phase: ours, torch.profiler's and the truth's own."""
    step_ns = child("bare", name, 20)["step"]
    steps = max(_LEAST_STEPS, int(seconds * 1e9 / step_ns)) // 10 * 10
    rows: dict[str, list[dict[str, Any]]] = {mode: [] for mode in MODES}
    for number in range(rounds):
        for mode in MODES if number % 2 == 0 else MODES[::-1]:
            rows[mode].append(child(mode, name, steps))
    found: dict[str, Any] = {"network": name, "steps": steps, "step_ns": step_ns, "rows": rows}
    for phase in PHASES:
        said = {"ours": rows["ours"], "torch": rows["torch"], "truth": rows["bare"]}
        found[phase] = {who: errors(those, phase) for who, those in said.items()}
    return found


def within(row: dict[str, Any]) -> list[bool]:
    """Tell of each block with a CI whether that holds the truth of both phases; its update counts as it is said."""
    blocks = zip(*(row["truth"][phase] for phase in PHASES), *(row[name] for name in _WHOLE), strict=True)
    return [
        low <= forward + backward + (update or 0.0) <= high
        for forward, backward, update, low, high in blocks
        if low is not None
    ]


def table(results: list[dict[str, Any]]) -> str:
    """Return the errors of all networks as Markdown."""
    lines = [
        "| network | steps | profiled | phase | blocks | ours: median | worst | torch.profiler: median | worst"
        " | truth repeats: median | worst |",
        "| --- |" + " --- |" * 10,
    ]
    for result in results:
        profiled = statistics.median(row["profiled"] for row in result["rows"]["ours"])
        for phase in PHASES:
            cells = [
                f"{of(result[phase][who]):.1%}" for who in ("ours", "torch", "truth") for of in (statistics.median, max)
            ]
            row = [result["network"], result["steps"], f"{profiled:.0f}", phase, len(result[phase]["ours"]), *cells]
            lines.append(f"| {' | '.join(map(str, row))} |")
    lines.append("")
    for who, name in (("ours", "Ours"), ("torch", "torch.profiler"), ("truth", "The truth itself")):
        all_errors = [error for result in results for phase in PHASES for error in result[phase][who]]
        median, worst = statistics.median(all_errors), max(all_errors)
        inside = sum(error <= WORST_BAR for error in all_errors) / len(all_errors)
        lines.append(
            f"- {name}: median {median:.1%}, worst {worst:.1%} of {len(all_errors)} blocks; {inside:.0%} within 8 %."
        )
    held = [inside for result in results for row in result["rows"]["ours"] for inside in within(row)]
    if held:
        lines.append(f"- The 95 % CIs of our single processes hold the truth in {sum(held)} of {len(held)} blocks.")
    lines.append(f"- Bars for ours: median {MEDIAN_BAR:.0%}, worst {WORST_BAR:.0%}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", nargs="+", choices=list(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--rounds", type=int, default=5, help="processes of each kind")
    parser.add_argument("--seconds", type=float, default=2.0, help="training time of a process")
    parser.add_argument("--json", type=Path, help="file for all block times")
    parser.add_argument("--write", type=Path, help="page that keeps the table")
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        mode, name, steps = options.child
        print(json.dumps(beside_the_truth(mode, Timed(name), int(steps))))
        return
    results = []
    for name in options.networks:
        results.append(examine(name, options.rounds, options.seconds))
        print(table(results[-1:]), flush=True)
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    print(f"\n{table(results)}")
    if options.write:
        how = f"torch {torch.__version__}, one thread, {options.rounds} processes of each kind in turns."
        keep(options.write, "truth of time", "Truth of time", f"{how}\n\n{table(results)}")


if __name__ == "__main__":
    main()
