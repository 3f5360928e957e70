"""Statistics of pairs: the ratio of a change's step time, or energy, to that of the training as is, with its CI.

The estimate is the median of all means of two log ratios (Hodges and Lehmann, 1963) and its interval that of the
signed-rank test: one disturbed pair in ten does not bend it, and no distribution is assumed but a symmetric one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from scipy import special  # type: ignore[import-untyped]

from stepscope.analysis.estimate import CONFIDENCE, mean_interval
from stepscope.errors import UsageError

# How the ratio differs from one pair of processes to the next: of 19 configurations of four workloads, three each,
# by 2.5 % in the median and 5.1 % in the root of the mean square, of a few by 13 %. Student's distribution with 3
# degrees of freedom and this scale has the same median, 5.7 %, and such tails.
_PROCESS_SCALE, _PROCESS_FREEDOM = 0.033, 3
LEAST_PAIRS = 6  # fewer cannot exclude anything at 95 %
LEAST_GAIN = 0.01  # of the step: less is of no use to anybody
MOST_PAIRS = 40
HOPELESS = 1.1  # slower in each of the first pairs
_CLEAR = 0.0075  # half the width of a CI, as a share, from which on no more pairs are made
SURE = 0.99  # confidence of what a change surely does: it is looked at more than once


def ratio_interval(logs: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return (ratio, low, high) of log ratios of pairs: of few Student's; NaN where there are none."""
    middle, low, high = centre_interval(logs, confidence)
    return math.exp(middle), math.exp(low), math.exp(high)


def centre_interval(observed: Sequence[float], confidence: float = CONFIDENCE) -> tuple[float, float, float]:
    """Return (centre, low, high) of what pairs gave: of few Student's; NaN where there are none."""
    values = np.asarray(observed, dtype=np.float64)
    if not len(values):
        return math.nan, math.nan, math.nan
    first, second = np.triu_indices(len(values))
    means = np.sort((values[first] + values[second]) / 2)
    middle = float(np.median(means))
    rank = _rank(len(values), confidence)
    if rank is None:
        mean, low, high = mean_interval(values, confidence)
        return mean, low, high
    return middle, float(means[rank]), float(means[len(means) - 1 - rank])


def process_interval(
    by_process: Sequence[Sequence[float]], confidence: float = CONFIDENCE
) -> tuple[float, float, float]:
    """Return (ratio, low, high) of log ratios in several process pairs: from 3 on each is one observation (95 %).

    Processes differ by more than their pairs do (the heap lies elsewhere). Fewer do not say by how much: then the pairs
    tell, at this confidence, and process pairs are taken to differ as those of other trainings do.
    """
    pooled = ratio_interval([value for logs in by_process for value in logs], confidence)
    if len(by_process) < 3:
        differ = float(special.stdtrit(_PROCESS_FREEDOM, (1 + confidence) / 2)) * _PROCESS_SCALE
        return widen_interval(pooled, differ / math.sqrt(max(1, len(by_process))))
    centres = np.array([float(np.median(logs)) for logs in by_process if len(logs)], dtype=np.float64)
    middle, low, high = mean_interval(centres)
    if not math.isnan(pooled[1]):  # where processes do not differ, no narrower than the pairs allow
        low, high = min(low, math.log(pooled[1])), max(high, math.log(pooled[2]))
    return tuple(math.exp(value) for value in (middle, low, high))  # type: ignore[return-value]


def widen_interval(interval: tuple[float, float, float], half: float) -> tuple[float, float, float]:
    """Return (ratio, low, high) whose bounds hold an error of this half width as well, as a logarithm."""
    if math.isnan(interval[1]):
        return interval
    middle, low, high = map(math.log, interval)
    bounds = middle - math.hypot(middle - low, half), middle + math.hypot(high - middle, half)
    return interval[0], math.exp(bounds[0]), math.exp(bounds[1])


def centre_ratio(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the ratio of what was measured in pairs; NaN where there are none."""
    return ratio_interval([math.log(second / first) for first, second in zip(before, after, strict=True)])[0]


@lru_cache(maxsize=1024)
def _rank(count: int, confidence: float) -> int | None:
    """Return the place (from 0) of the mean that bounds the interval; None where the sample is too small."""
    tail = (1 - confidence) / 2
    if count > 40:
        centre, spread = count * (count + 1) / 4, math.sqrt(count * (count + 1) * (2 * count + 1) / 24)
        return max(0, math.floor(centre + float(special.ndtri(tail)) * spread))
    ways = np.zeros(count * (count + 1) // 2 + 1)
    ways[0] = 1
    for rank in range(1, count + 1):
        ways[rank:] += ways[:-rank].copy()
    below = np.cumsum(ways) / 2.0**count
    least = int((below <= tail).sum())
    return least - 1 if least else None


# A configuration and what was measured of it; the length and goal of an experiment, and where it is kept.

FINAL, AS_IS = "final", "as-is"


class TunableTraining(Protocol):
    """A training that makes steps when it is told to, in another process or in this one."""

    def ask(self, limit_s: float, **command: Any) -> dict[str, Any]: ...
    def close(self) -> None: ...


class PowerMeter(Protocol):
    """Power of the whole device: `watts` between two times, None where too little was read.

    block_s: that a block needs, s. estimated: it follows from a power model. note: what the power is of.
    """

    block_s: float
    estimated: bool

    @property
    def note(self) -> str: ...
    def watts(self, t0_ns: int, t1_ns: int) -> float | None: ...


@dataclass
class Arm:
    """A configuration and what was measured of it against the training as is.

    pairs: log ratio of what is to improve, and the pair of processes that it was measured in: of the step time, or of
    the energy of a step (then as_is_w and changed_w are the mean power of the blocks, W). status: measured, failed, or
    not tried, with its reason. drift: relative difference of the mean loss. memory_bytes, as_is_bytes: of a step, or
    where `of_process` of the process, in the process pair that saves least.
    """

    name: str
    changes: tuple[str, ...]
    at_start: tuple[str, ...] = ()
    status: str = "not tried"
    reason: str = ""
    pairs: list[tuple[float, int]] = field(default_factory=list)
    as_is_s: list[float] = field(default_factory=list)
    changed_s: list[float] = field(default_factory=list)
    as_is_w: list[float] = field(default_factory=list)
    changed_w: list[float] = field(default_factory=list)
    blocks_ns: list[tuple[int, ...]] = field(default_factory=list)
    fastest: list[float] = field(default_factory=list)  # the same log ratio by the fastest step of each pair's blocks
    drift: float | None = None
    losses: list[float] = field(default_factory=list)
    as_is_losses: list[float] = field(default_factory=list)
    memory_bytes: int | None = None
    as_is_bytes: int | None = None
    of_process: bool = False
    compile_s: float | None = None
    over: bool = False  # no more pairs are needed
    base_half: float = 0.0  # half width of the CI of what a combination was measured against, as a logarithm
    given_up: bool = False  # slower in each of its first pairs: it has another look when the others are clear

    @property
    def in_process_changes(self) -> tuple[str, ...]:
        """The changes that are made while the process runs."""
        return tuple(name for name in self.changes if name not in self.at_start)

    @property
    def compiles(self) -> bool:
        """Return whether torch.compile is among its changes, of whatever part."""
        return any(name.partition("=")[0] == "compile" for name in self.changes)

    def interval(self, confidence: float = 0.95) -> tuple[float, float, float]:
        """Return the ratio of its step time, or energy, to that of the training as is: (ratio, low, high)."""
        process_pairs = sorted({process_pair for _, process_pair in self.pairs})
        if self.of_process and process_pairs:
            logs = [[log for log, other in self.pairs if other == process_pair] for process_pair in process_pairs]
            interval = process_interval(logs, confidence)
        else:
            interval = ratio_interval([log for log, _ in self.pairs], confidence)
        return widen_interval(interval, self.base_half) if self.base_half else interval

    @property
    def time_ratio(self) -> float:
        """Return the ratio of its step time to that of the training as is, whatever is to improve."""
        return centre_ratio(self.as_is_s, self.changed_s)

    @property
    def power_ratio(self) -> float:
        """Return the ratio of the mean power of its blocks to that of the training as is; 1 where it was not read."""
        return centre_ratio(self.as_is_w, self.changed_w) if self.as_is_w else 1.0

    @property
    def as_is(self) -> list[float]:
        """Step times of the training as is, s, of each pair; its energies of a step, J, where power was read."""
        if not self.as_is_w:
            return self.as_is_s
        return [seconds * watts for seconds, watts in zip(self.as_is_s, self.as_is_w, strict=True)]

    @property
    def process_pairs(self) -> int:
        """Return in how many pairs of processes it was measured."""
        return len({process_pair for _, process_pair in self.pairs})

    def add_process_peak(self, changed: int | None, as_is: int | None) -> None:
        """Note the peaks of a pair of processes: of several process pairs, the one that saves least counts."""
        self.of_process = True
        before = saving(self) if self.memory_bytes and self.as_is_bytes else math.inf
        if changed and as_is and 1 - changed / as_is < before:
            self.memory_bytes, self.as_is_bytes = changed, as_is

    def drop_blocks_below(self, least_ns: float) -> None:
        """Drop the pairs with a block that took less: too short for a sensor that turned out to be slow."""
        lists = (self.pairs, self.as_is_s, self.changed_s, self.as_is_w, self.changed_w, self.blocks_ns, self.fastest)
        short = [number for number, (begin, end, other, last, *_) in enumerate(self.blocks_ns)
                 if min(end - begin, last - other) < least_ns]  # fmt: skip
        for number in reversed(short):
            for entries in lists:
                del entries[number]
        if short and not self.pairs:
            self.status, self.reason = "not tried", "its blocks were too short for the sensor"

    def slower_by(self, ratio: float) -> bool:
        """Return whether it was slower by this in each pair, by typical steps and by the fastest as well.

        Other load that comes and goes within a block leaves its fastest step alone.
        """
        return min((*(log for log, _ in self.pairs), *self.fastest)) > math.log(ratio)

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Arm:
        """Read what was stored of one; ValueError for what cannot have been."""
        fields = {name: entry[name] for name in cls.__dataclass_fields__ if name in entry}
        for name, kind in _KINDS.items():
            if name in fields and not isinstance(fields[name], kind):
                raise ValueError(f"{name} is {fields[name]!r}"[:100])
        pairs = fields.get("pairs", [])
        if not all(isinstance(pair, list | tuple) and len(pair) == 2 and are_numbers(pair) for pair in pairs):
            raise ValueError("pairs that are none")
        lists = [fields.get(name, []) for name in _NUMBERS]
        if max(map(len, (pairs, *lists))) > _MOST_PAIRS or not all(map(are_numbers, lists)):
            raise ValueError("numbers that are none")
        if any(abs(log) > _MOST_LOG for log in (*(log for log, _ in pairs), *fields.get("fastest", []))):
            raise ValueError("ratios that are none")
        if not all(isinstance(span, list | tuple) and are_numbers(span) for span in fields.get("blocks_ns", [])):
            raise ValueError("blocks that are none")
        fields["pairs"] = [(float(log), int(process_pair)) for log, process_pair in pairs]
        fields["changes"], fields["at_start"] = tuple(fields.get("changes", ())), tuple(fields.get("at_start", ()))
        named = all(isinstance(name, str) for name in (*fields["changes"], *fields["at_start"]))
        if "name" not in fields or not named or not {*fields["at_start"]} <= {*fields["changes"]}:
            raise ValueError("changes that are none")
        if fields.get("status") == "measured" and not (pairs and len(fields.get("as_is_s", [])) == len(pairs)):
            raise ValueError("measured without pairs")
        powers = [fields.get(name, []) for name in ("as_is_w", "changed_w")]
        if any(powers) and not all(len(watts) == len(pairs) and min(watts) > 0 for watts in powers):
            raise ValueError("power that is none")
        return cls(**fields)


_NUMBERS = ("as_is_s", "changed_s", "as_is_w", "changed_w", "fastest", "losses", "as_is_losses")
_KINDS: dict[str, Any] = {
    **dict.fromkeys(("name", "status", "reason"), str), **dict.fromkeys(("changes", "at_start"), list | tuple),
    **dict.fromkeys(("pairs", "blocks_ns", *_NUMBERS), list | tuple),
    **dict.fromkeys(("drift", "memory_bytes", "as_is_bytes", "compile_s"), int | float | None),
    "base_half": int | float,
    **dict.fromkeys(("of_process", "over", "given_up"), bool),
}  # fmt: skip
_MOST_PAIRS = 10_000  # all means of two are looked at
_MOST_LOG, _LARGEST = 100.0, 1e15


def are_numbers(values: Sequence[Any]) -> bool:
    """Return whether all are numbers that a study can have measured."""
    return all(isinstance(value, int | float) and abs(value) < _LARGEST for value in values)


def non_negative_number(value: Any) -> float:
    """Return a number that a folder states; 0 where it is none."""
    return float(value) if isinstance(value, int | float) and 0 <= value < _LARGEST else 0.0


@dataclass(frozen=True)
class TuneRules:
    """Length of the experiment, s, its goal (time, energy, memory), and the changes that it tries."""

    seconds: float
    goal: str = "time"
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class ExperimentStore:
    """The experiment's store of arms, with the callback for its progress."""

    save: Callable[[str, Mapping[str, Any]], None] = lambda name, content: None
    saved: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    show_progress: Callable[[str, float], None] = lambda what, share: None

    def refuse_other_training(self, facts: Mapping[str, Any]) -> None:
        """Raise UsageError where what is saved was measured of another training than that of these facts."""
        before = self.saved.get("progress", {}).get("facts")
        if not isinstance(before, dict):
            return
        other = [name for name in _SAME if name in before and before[name] != facts.get(name)]
        if other:
            lines = "\n".join(f"  {name}: {before[name]} -> {facts.get(name)}"[:200] for name in other)
            raise UsageError(
                f"what is kept of this experiment was measured of another training:\n{lines}",
                "bring back what it began with, or give another folder: --out DIR",
            )


_SAME = ("device", "gpu", "threads", "parameters", "conv2d", "blocks", "batch", "optimizers", "autocast")  # facts


def trimmed_mean(seconds: Sequence[float], trimmed: float = 0.0) -> float:
    """Return the mean of a block's steps, s, without this share of the shortest and the longest of them."""
    ordered = sorted(seconds)
    cut = int(len(ordered) * trimmed)
    inner = ordered[cut : len(ordered) - cut]
    return sum(inner) / len(inner)


def file_name(name: str) -> str:
    """Return the name of a file for an arm."""
    return name.replace(" + ", "+")


def saving(arm: Arm) -> float:
    """Return the share of memory that a configuration saves; 0 where it is not known."""
    if not arm.memory_bytes or not arm.as_is_bytes:
        return 0.0
    return 1 - arm.memory_bytes / arm.as_is_bytes


def saved_bytes(arm: Arm) -> int:
    """Return the memory that a configuration saves, B; 0 where it is not known."""
    return arm.as_is_bytes - arm.memory_bytes if arm.memory_bytes and arm.as_is_bytes else 0


def surely_gains(step: Arm, alone: bool = True) -> bool:
    """Return whether a change makes a configuration surely faster; alone: it does so of the training as is.

    Of many that do not, one may seem to by chance.
    """
    ratio, _, high = step.interval()
    return ratio < 1 - LEAST_GAIN / 2 and high < 1.005 and (alone or step.interval(SURE)[2] < 1)


def finish_if_clear(arm: Arm, goal: str) -> None:
    """Make no more pairs of what is clear: no gain, or a gain that is known well."""
    count = len(arm.pairs)
    enough = goal == "memory" and count >= LEAST_PAIRS
    hopeless = count >= 3 and arm.slower_by(HOPELESS)
    arm.given_up = hopeless and count < LEAST_PAIRS
    if enough or hopeless:
        arm.over = True
    elif count >= LEAST_PAIRS:
        ratio, low, high = arm.interval()
        useless = ratio_interval([log for log, _ in arm.pairs], SURE)[1] > 1 - LEAST_GAIN
        arm.over = useless or (high - low) / 2 < _CLEAR * ratio or count >= MOST_PAIRS


def excludes_gain(arm: Arm) -> bool:
    """Return whether its CI holds no gain that is of use."""
    return arm.interval()[1] > 1 - LEAST_GAIN


def is_decided(step: Arm) -> bool:
    """Return whether more pairs are not needed to tell whether it gains."""
    return surely_gains(step, alone=False) or excludes_gain(step)


def why_not_combined(step: Arm, more: Arm, current: Arm) -> str:
    """Return what the pairs of a configuration with and without a change say of it."""
    gain, high, low = (100 * (1 - bound) for bound in step.interval())
    by = f"({gain:+.1f} % [{low:.1f}, {high:.1f}])"
    if excludes_gain(step):
        return f"{more.name} adds nothing to {current.name} {by}"
    return f"cannot tell whether {more.name} adds to {current.name} {by}: run it longer"


def tie_groups(arms: Iterable[Arm]) -> dict[str, int]:
    """Return the rank of each arm by its name, shared where the difference from its best may be chance."""
    ranks: dict[str, int] = {}
    rank, best = 0, None
    for arm in sorted(arms, key=lambda arm: arm.interval()[0]):
        if best is None or _surely_differ(best, arm):
            rank, best = len(ranks) + 1, arm
        ranks[arm.name] = rank
    return ranks


def _surely_differ(better: Arm, worse: Arm) -> bool:
    """Return whether two ratios lie further apart than the errors of both: the halves of the CIs between them."""
    ratio, _, high = better.interval()
    other, low, _ = worse.interval()
    return math.log(other / ratio) > math.hypot(math.log(high / ratio), math.log(other / low))
