"""Measure what an allocator costs and saves on a training of the user's own: each in a child process, in turns."""

from __future__ import annotations

import contextlib
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from stepscope.errors import MissingDependency, StepscopeError
from stepscope.record.c_allocators import NAMES, child_environment

_WARMUP = 2  # steps: the optimizer's state and the kernels' plans exist afterwards


@dataclass(frozen=True)
class StepCost:
    """Cost of a step in one process: resident memory before the first step and at its peak, B; median CPU time, s.

    wall_s, cpu_s: what each step took by the clock, and of the processor, without those of the warm-up.
    """

    before_bytes: int
    peak_bytes: int
    step_s: float
    wall_s: tuple[float, ...] = ()
    cpu_s: tuple[float, ...] = ()


@dataclass(frozen=True)
class AllocatorCost:
    """One allocator: peak of the process, B, and CPU time of a step, s, medians with their least and most.

    Where it could not be measured the figures are None and `missing` says why.
    """

    allocator: str
    peak_bytes: int | None = None
    peak_low: int | None = None
    peak_high: int | None = None
    step_s: float | None = None
    step_low_s: float | None = None
    step_high_s: float | None = None
    missing: str | None = None


class StepClock:
    """Takes the CPU time and the length of each step of a loop, whoever runs it, in a fresh process."""

    def __init__(self, steps: int) -> None:
        self._before, self._steps = _resident_bytes(), steps
        self._times: list[tuple[float, float]] = []  # CPU and wall
        self._began = time.process_time(), time.perf_counter()

    def note_step_end(self) -> bool:
        """Note the end of a step; return whether it was the last one needed."""
        now = time.process_time(), time.perf_counter()
        self._times.append((now[0] - self._began[0], now[1] - self._began[1]))
        self._began = now
        return len(self._times) >= _WARMUP + self._steps

    def cost(self) -> StepCost:
        """After the last step."""
        used, took = zip(*self._times[_WARMUP:], strict=True)
        return StepCost(self._before, peak_bytes(), statistics.median(used), took, used)


def measured_steps(step: Callable[[], None], steps: int) -> StepCost:
    """Run a step so many times in this process, which did nothing else before."""
    clock = StepClock(steps)
    while True:
        step()
        if clock.note_step_end():
            return clock.cost()


def cost_as_json_line(cost: StepCost) -> str:
    """The line by which a child of `compare_allocators` answers."""
    return json.dumps(asdict(cost))


def compare_allocators(
    command: Sequence[str],
    names: Sequence[str] = NAMES,
    rounds: int = 3,
    timeout_s: float = 600.0,
    root: Path = Path("/"),
    progress: Callable[[str], None] = lambda now: None,
) -> list[AllocatorCost]:
    """Run a command under each allocator in turns; it must print the line of `cost_as_json_line` last.

    StepscopeError where it fails under the default allocator; elsewhere a failure is that allocator's result.
    """
    costs: dict[str, list[StepCost]] = {name: [] for name in names}
    missing: dict[str, str] = {}
    for number in range(rounds):
        for name in names:
            if name in missing:
                continue
            progress(f"{name}, round {number + 1} of {rounds}")
            try:
                costs[name].append(_step_cost_in_child(command, child_environment(name, root), name, timeout_s))
            except StepscopeError as error:
                if name == "default":
                    raise
                missing[name] = ": ".join(filter(None, [str(error), error.hint]))
    return [_cost_summary(name, costs[name], missing.get(name)) for name in names]


def _step_cost_in_child(command: Sequence[str], environment: dict[str, str], name: str, timeout_s: float) -> StepCost:
    try:
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise StepscopeError(f"a step under {name} took over {timeout_s:.0f} s", "give a smaller batch") from None
    except OSError as error:
        raise MissingDependency(f"'{command[0]}' cannot be started: {error.strerror}") from error
    try:
        return StepCost(**json.loads(ended.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        last_line = (ended.stderr.strip().splitlines() or ["it said nothing"])[-1]
        reason = "it was killed, most likely for memory" if ended.returncode == -9 else last_line
        raise StepscopeError(f"the training under {name} failed (exit code {ended.returncode}): {reason}") from None


def _cost_summary(name: str, costs: list[StepCost], missing: str | None) -> AllocatorCost:
    if not costs:
        return AllocatorCost(name, missing=missing)
    peaks, times = [cost.peak_bytes for cost in costs], [cost.step_s for cost in costs]
    return AllocatorCost(
        name,
        round(statistics.median(peaks)), min(peaks), max(peaks),
        statistics.median(times), min(times), max(times),
        missing,
    )  # fmt: skip


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def peak_bytes() -> int:
    """High-water mark of this process since it was started (VmHWM); getrusage would give that of the parent's fork."""
    with contextlib.suppress(OSError):  # no procfs
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
