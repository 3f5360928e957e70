"""Settings of a recording, as data that needs no torch: the schedule of profiled steps, metering and settings."""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepscope.clock import PERIOD_NS
from stepscope.errors import UsageError
from stepscope.record.sensors.contract import Meter
from stepscope.request import parse_amount

FLUSH_EVERY_NS = 500_000_000  # between two times that steps are brought to the disk: what a kill may cost


@dataclass(frozen=True)
class Metering:
    """Sources of power: meters that the user names, what is made of the sensors that answer, and the room for it."""

    meters: tuple[Meter, ...] = ()
    power_model: str | None = None  # "cpu=2W..15W": estimated, by the user's choice alone
    characterise: bool = True  # measure refresh, step and filter of each power sensor, once a device
    dither: bool = True
    simulated: str | None = None  # the board that `root` pretends to be, with its settings
    max_disk: int | None = None  # bytes that the run may take on the disk: what is long ago is thinned


@dataclass(frozen=True)
class Settings:
    """Settings of a recording; `steps_from` is "calls" (of `Scope.step`) or "optimizer"."""

    out: str | Path = "runs"
    name: str = "loop"
    record: str | Schedule = "adaptive"
    memory: str = "auto"  # steps whose allocations are recorded, see `MEMORY_CHOICES`
    period_ns: int = PERIOD_NS
    steps_from: str = "calls"
    optimizer_steps_per_step: int | None = None
    samples_per_step: int | None = None
    root: str | None = None
    sampler: bool = True  # False: another process samples this one
    metering: Metering = field(default_factory=Metering)
    facts: dict[str, Any] = field(default_factory=dict)  # what run.json says of the workload
    prepare: tuple[str, str] | None = None  # of a script: "module:function" to call in its process, and the argument
    flops: Mapping[str, tuple[int, int]] = field(default_factory=dict)  # forward and backward per sample, by module


def check_settings(settings: Settings) -> Settings:
    """Return the settings; UsageError where one of them is invalid."""
    parse_schedule(settings.record)
    parse_memory(settings.memory)
    if settings.samples_per_step is not None and sample_count_or_none(settings.samples_per_step) is None:
        raise UsageError(f"samples={settings.samples_per_step!r} is not a count", "for example samples=32")
    if settings.period_ns < 1_000_000:
        raise UsageError("the sampling period must be 1 ms or more", "for example --period 5ms")
    return settings


_MOST_SAMPLES = 2**53  # of a step


def sample_count_or_none(samples: Any) -> int | None:
    """Return the samples of a step that a training states, a number or a tensor; None where they are no count."""
    with contextlib.suppress(TypeError, ValueError, OverflowError, RuntimeError):
        count = int(samples)
        if count == samples and 0 <= count <= _MOST_SAMPLES:
            return count
    return None


LEAST_DISK = 20_000_000  # bytes: less than the model, the first parts and the last ones take


def parse_max_disk(amount: float | str | None) -> int | None:
    """Return the bytes that a run may take, given in bytes or as a text such as "500MB"; UsageError where too few."""
    if amount is None:
        return None
    room = parse_amount("max_disk", amount, "B") if isinstance(amount, str) else float(amount)
    if not room >= LEAST_DISK:
        raise UsageError(f"a run cannot keep to {amount}: at least 20 MB", 'for example max_disk="500MB"')
    return int(room)


# "adaptive" (default)   the steps that are needed to know every op's median, then now and then
# "all"                  every step
# "first:50"             the first 50 steps
# "every:10"             every tenth step
# "none"                 no step: step times and samples only

MEMORY_CHOICES = ("auto", "all", "off")  # a step or two of the recorded ones, all of them, none
_FORMS = "adaptive, all, none, first:N or every:N"


@dataclass(frozen=True)
class Schedule:
    """The cycle of torch.profiler: skip `wait` steps, warm up, record `active`, `repeat` times (0: forever)."""

    wait: int
    warmup: int
    active: int
    repeat: int = 0
    skip_first: int = 0

    def records(self, step: int) -> bool:
        """Is this step of the run recorded?"""
        place = step - self.skip_first
        length = self.wait + self.warmup + self.active
        if place < 0 or (self.repeat and place >= self.repeat * length):
            return False
        return place % length >= self.wait + self.warmup


@dataclass(frozen=True)
class StepChoice:
    """A fixed choice of steps, or the adaptive one."""

    name: str
    first: int | None = None
    every: int | None = None
    schedule: Schedule | None = None

    @property
    def adaptive(self) -> bool:
        return self.name == "adaptive"

    def records(self, step: int) -> bool:
        """Is this step recorded? Of the fixed choices; the adaptive one decides as it goes."""
        if self.schedule is not None:
            return self.schedule.records(step)
        if self.first is not None:
            return step < self.first
        if self.every is not None:
            return step % self.every == 0
        return self.name == "all"

    def steps_until_recorded(self, step: int, most: int) -> int:
        """Return how many steps after this one the next recorded one comes; `most` where none of these is."""
        if self.schedule is not None:
            return next((ahead for ahead in range(1, most) if self.records(step + ahead)), most)
        if self.every is not None:
            return min(self.every - step % self.every, most)
        return 1 if self.records(step + 1) else most


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0) -> Schedule:
    """Return a schedule like torch.profiler.schedule; UsageError for invalid numbers."""
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise UsageError("a schedule needs wait, warmup, repeat and skip_first of 0 or more and active of 1 or more")
    return Schedule(wait, warmup, active, repeat, skip_first)


def parse_schedule(record: str | Schedule) -> StepChoice:
    """The choice behind `--record` and `record=`; UsageError names the forms."""
    if isinstance(record, Schedule):
        return StepChoice("schedule", schedule=record)
    if not isinstance(record, str):
        raise UsageError(f"cannot record {record!r}", f"choose one of {_FORMS}")
    if record in ("adaptive", "all", "none"):
        return StepChoice(record)
    form, _, number = record.partition(":")
    if form in ("first", "every") and number.isdecimal() and int(number) > 0:
        steps = int(number)
        return StepChoice(record, first=steps) if form == "first" else StepChoice(record, every=steps)
    raise UsageError(f"cannot record '{record}'", f"choose one of {_FORMS}")


def parse_memory(memory: str) -> str:
    """Return one of MEMORY_CHOICES from `--record-memory` or `memory=`; UsageError names them."""
    if memory not in MEMORY_CHOICES:
        raise UsageError(f"cannot record memory '{memory}'", f"choose one of {', '.join(MEMORY_CHOICES)}")
    return memory


def sampling_period_ns(period: float | str, period_ms: float | None = None) -> int:
    """Return the period of the sampler in ns, given in s or as a text such as "5ms"; the old name `period_ms` warns."""
    if period_ms is not None:
        warnings.warn('period_ms=5 is period="5ms" or 0.005 now', DeprecationWarning, stacklevel=3)
        period = period_ms / 1e3
    seconds = parse_amount("period", period, "s") if isinstance(period, str) else period
    if not math.isfinite(seconds):
        raise UsageError(f"period={period} is not a time", 'for example period="5ms"')
    return round(seconds * 1e9)
