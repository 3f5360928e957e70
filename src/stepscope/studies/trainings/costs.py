"""What the trainings of each setting cost, over their repeats, and which setting is best for what."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.analysis.intervals import known, mean_interval
from stepscope.studies.trainings.learning import steps_to
from stepscope.studies.trainings.measuring import ENERGY, Trained
from stepscope.studies.trainings.setting import Setting

OK = "ok"


@dataclass(frozen=True)
class Quantity:
    """A number of a setting: how it is called, in which unit, and whether more of it is better."""

    name: str
    title: str
    unit: str
    more_is_better: bool = False

    @property
    def column(self) -> str:
        return f"{self.title}, {self.unit}"


SPEED = Quantity("samples_per_s", "throughput", "samples/s", True)
STEP = Quantity("step_time_ms", "step", "ms")
MEMORY = Quantity("peak_process_bytes", "peak memory", "MB")
STATE = Quantity("state_bytes", "optimizer state", "MB")
STEPS = Quantity("steps_to_target", "way to the target", "steps")
TIME = Quantity("seconds_to_target", "time to the target", "s")
JOULES = {
    ENERGY[0]: Quantity("energy_per_sample_mj", "energy a sample", "mJ"),
    ENERGY[1]: Quantity("estimated_energy_per_sample_mj", "estimated energy a sample", "mJ"),
    ENERGY[2]: Quantity("simulated_energy_per_sample_mj", "simulated energy a sample", "mJ"),
}
TO_TARGET = {
    name: Quantity(
        f"{of.name.removesuffix('_per_sample_mj')}_to_target_j", f"{of.title.split(' a ')[0]} to target", "J"
    )
    for name, of in JOULES.items()
}
LEARNING = (STEPS, TIME, *TO_TARGET.values())
QUANTITIES = (SPEED, STEP, *JOULES.values(), STATE, MEMORY, *LEARNING)
_MB = 1e6


@dataclass(frozen=True)
class Value:
    """Geometric mean over the repeats with Student's interval; of one repeat, the interval within it."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Cost:
    """A setting over its repeats; a quantity that was not measured in any of them is not there.

    reached: how many of the repeats reached the target; quantities to the target are of those alone, and given only
    where all did.
    """

    setting: Setting
    repeats: int
    status: str
    reason: str | None
    values: Mapping[Quantity, Value] = field(default_factory=dict)
    reached: int | None = None


@dataclass(frozen=True)
class Sweet:
    """The best setting for a quantity, and those whose intervals do not tell them from it; null: no intervals."""

    quantity: Quantity
    best: Cost
    alike: tuple[Cost, ...] | None


def costs(trainings: Sequence[Trained], target_loss: float | None = None) -> list[Cost]:
    """One for each setting, in their order."""
    groups: dict[Setting, list[Trained]] = {}
    for one in trainings:
        groups.setdefault(one.point.setting, []).append(one)
    return [_cost(setting, group, target_loss) for setting, group in groups.items()]


def sweet_spots(found: Sequence[Cost], quantities: Sequence[Quantity] = QUANTITIES) -> list[Sweet]:
    """For each quantity in which settings differ: the best of them."""
    result = []
    for quantity in quantities:
        having = [cost for cost in found if quantity in cost.values]
        if len({cost.values[quantity].value for cost in having}) > 1:
            best = (max if quantity.more_is_better else min)(having, key=lambda c: c.values[quantity].value)
            result.append(Sweet(quantity, best, _alike(best, having, quantity)))
    return result


def measured_quantities(found: Sequence[Cost]) -> list[Quantity]:
    """Those that some setting has, in their order."""
    return [quantity for quantity in QUANTITIES if any(quantity in cost.values for cost in found)]


def _alike(best: Cost, having: Sequence[Cost], quantity: Quantity) -> tuple[Cost, ...] | None:
    top, others = best.values[quantity], [cost for cost in having if cost is not best]
    if top.low is None or top.high is None or any(cost.values[quantity].low is None for cost in others):
        return None
    return tuple(cost for cost in others if _overlap(cost.values[quantity], top))


def _overlap(one: Value, other: Value) -> bool:
    if None in (one.low, one.high, other.low, other.high):
        return True
    return float(one.low or 0) <= float(other.high or 0) and float(other.low or 0) <= float(one.high or 0)


def _cost(setting: Setting, group: Sequence[Trained], target: float | None) -> Cost:
    well = [one for one in group if one.status == OK]
    counted = Counter(one.status for one in group)
    status = OK if len(well) == len(group) else ", ".join(f"{name} {count}" for name, count in counted.items())
    reason = next((one.reason for one in group if one.reason and one.status != OK), None)
    to_target = [None if target is None else steps_to(one.losses, target) for one in well]
    reached = None if target is None or not well else sum(steps is not None for steps in to_target)
    values = {
        quantity: value
        for quantity, of in _MEASURED.items()
        if (value := _over([of(one, steps) for one, steps in zip(well, to_target, strict=True)])) is not None
    }
    return Cost(setting, len(well), status, reason, values, reached)


Ends = tuple[float | None, float | None, float | None]
Measure = Callable[[Trained, "int | None"], "Ends | None"]


def _over(repeats: Sequence[Ends | None]) -> Value | None:
    """A quantity over the repeats; null where one of them lacks it."""
    known_ones = [one for one in repeats if one is not None and one[0] is not None and one[0] >= 0]
    if not repeats or len(known_ones) < len(repeats):
        return None
    if len(known_ones) == 1:
        value, low, high = known_ones[0]
        return Value(float(value or 0), low, high)
    values = np.array([float(one[0] or 0) for one in known_ones])
    if not values.all():  # SGD keeps nothing: zero has no logarithm
        return Value(*mean_interval(values))
    mean, low, high = mean_interval(np.log(values))
    return Value(math.exp(mean), *(None if known(x) is None else math.exp(x) for x in (low, high)))


def _number(name: str, factor: float = 1.0) -> Measure:
    def of(one: Trained, _: int | None) -> Ends | None:
        found = one.numbers.get(name)
        ends = [None if found is None or found[end] is None else float(found[end] or 0) * factor for end in _ENDS]
        return None if found is None else (ends[0], ends[1], ends[2])

    return of


def _to_target(name: str) -> Measure:
    """Energy of a step times the steps that it took, J."""
    per_step = _number(name.replace("per_sample", "per_step"))

    def of(one: Trained, steps: int | None) -> Ends | None:
        ends = per_step(one, None)
        if ends is None or steps is None:
            return None
        value, low, high = (None if end is None else end * steps for end in ends)
        return value, low, high

    return of


def _state(one: Trained, _: int | None) -> Ends | None:
    size = one.state_bytes
    return None if size is None else (size / _MB, size / _MB, size / _MB)


def _steps(_: Trained, steps: int | None) -> Ends | None:
    return None if steps is None else (float(steps), None, None)


def _seconds(one: Trained, steps: int | None) -> Ends | None:
    return None if steps is None else (one.times_s[steps - 1], None, None)


_ENDS = ("value", "low", "high")
_MEASURED: dict[Quantity, Measure] = {
    SPEED: _number("samples_per_s"),
    STEP: _number("step_time_ms"),
    **{quantity: _number(name, 1e3) for name, quantity in JOULES.items()},
    STATE: _state,
    MEMORY: _number("peak_process_bytes", 1 / _MB),
    STEPS: _steps,
    TIME: _seconds,
    **{quantity: _to_target(name) for name, quantity in TO_TARGET.items()},
}


def told(sweets: Sequence[Sweet], called: Callable[[Setting], str]) -> Iterator[str]:
    """A sentence for each quantity, for the answer."""
    for sweet in sweets:
        value = sweet.best.values[sweet.quantity].value
        unsure = "" if sweet.alike is not None else " (without intervals: more repeats)"
        others = f", not told from {', '.join(called(c.setting) for c in sweet.alike)}" if sweet.alike else ""
        unit = sweet.quantity.unit
        yield f"{sweet.quantity.title}: {called(sweet.best.setting)} with {value:.3g} {unit}{others}{unsure}"
