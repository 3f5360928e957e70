"""The rules of a run of a sweep: when it is warm, when it has enough steps, and when the device is cool enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.analysis.estimate import median_interval
from stepscope.arrays import Floats
from stepscope.clock import Clock, monotonic_ns
from stepscope.errors import UsageError
from stepscope.record.device import temperatures_and_clocks
from stepscope.request import parse_amount

WARMUP = 3  # steps, as in the paper of 2019
FEWEST = 2 * WARMUP  # steps of every run, however long they take
MOST = 100_000
_CHECK_EVERY = 10
_POLL_S = 1.0
LONGEST_COOLING_S = 900.0


@dataclass(frozen=True)
class RunRules:
    """Rules of every run of a sweep; what is null does not end a run."""

    steps: int | None = None
    seconds: float | None = None
    interval: float | None = None  # half-width of the 95 % CI of the step time, as a share of it
    cool_to_celsius: float | None = None
    pause_s: float = 0.0
    memory_bytes: int | None = None
    time_limit_s: float = 900.0
    tune_s: float | None = None  # for which changes are tried on each setting
    seed: int = 0


class StopCondition:
    """Asked after each step whether the run has steps enough, `fewest` at least; keeps their ends for that."""

    def __init__(self, rules: RunRules, clock: Clock = monotonic_ns, fewest: int = FEWEST) -> None:
        self._rules, self._clock, self._fewest = rules, clock, fewest
        self._ends_ns: list[int] = []

    def __call__(self) -> bool:
        ends = self._ends_ns  # the first step's start is not seen, and it is warm-up in any case
        ends.append(self._clock())
        steps = len(ends)
        if steps < self._fewest:
            return steps == self._rules.steps
        if self._rules.seconds is not None and ends[-1] - ends[0] >= self._rules.seconds * 1e9:
            return True
        return (
            self._rules.interval is not None
            and steps % _CHECK_EVERY == 0
            and self._is_interval_narrow(self._rules.interval)
        )

    def _is_interval_narrow(self, share: float) -> bool:
        lengths = np.diff(np.array(self._ends_ns, dtype=np.float64))
        median, low, high = (float(x) for x in median_interval(lengths[steady_start(lengths) :]))
        return bool(high - low <= 2 * share * median)  # False where one is NaN


def steady_start(lengths: Floats, fewest: int = WARMUP) -> int:
    """The first step that is not warm-up: where the rest has the least standard error of its mean (MSER).

    lengths: (n,) in order. At least `fewest` and at most half of the steps are excluded; single stalls do not count.
    K. P. White, An effective truncation heuristic for bias reduction in simulation output, Simulation 69, 1997.
    """
    last = len(lengths) // 2
    if last <= fewest:
        return min(fewest, len(lengths))
    tame = np.minimum(lengths, 3 * np.median(lengths[last:]))
    errors = [float(tame[start:].var()) / (len(tame) - start) for start in range(fewest, last + 1)]
    return fewest + int(np.argmin(errors))


def cool_down(
    rules: RunRules,
    root: Path = Path("/"),
    sleep: Callable[[float], None] = time.sleep,
    clock: Clock = monotonic_ns,
) -> dict[str, Any]:
    """Wait for the pause and until the hottest zone is cool enough; what was waited for and reached, for the result."""
    began_ns, first = clock(), hottest_celsius(root)
    if rules.pause_s:
        sleep(rules.pause_s)
    now, target = hottest_celsius(root), rules.cool_to_celsius
    while target is not None and now is not None and now > target and clock() - began_ns < LONGEST_COOLING_S * 1e9:
        sleep(_POLL_S)
        now = hottest_celsius(root)
    return {
        "waited_s": (clock() - began_ns) / 1e9,
        "from_celsius": first,
        "to_celsius": now,
        "reached": target is None or (now is not None and now <= target),
    }


def hottest_celsius(root: Path) -> float | None:
    """The highest temperature of the thermal zones, degrees Celsius; null where none answers."""
    read = [value for value in temperatures_and_clocks(root)["temperatures_celsius"].values() if value is not None]
    return max(read, default=None)


def parse_cooldown(text: str | None, root: Path | None = Path("/")) -> tuple[float | None, float]:
    """(temperature to cool down to, pause in s) from `45C` or `30s`; a temperature needs a sensor.

    root: where the sensors of the device are; None where it is another machine, which flags what it cannot keep.
    """
    if text is None:
        return None, 0.0
    if text.strip().endswith(("C", "c")):
        degrees = parse_amount("--cooldown", text, "degC")
        if root is not None and hottest_celsius(root) is None:
            raise UsageError(f"--cooldown {text}: no temperature can be read here", "give a time: --cooldown 30s")
        return degrees, 0.0
    return None, parse_amount("--cooldown", text, "s")
