"""When ops are recorded: the choices of a user, as data.

"adaptive" (default)   the steps that are needed to know every op's median, then now and then
"all"                  every step
"first:50"             the first 50 steps
"every:10"             every tenth step
"none"                 no step: step times and samples only
"""

from __future__ import annotations

from dataclasses import dataclass

from stepscope.errors import UsageError

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
class Choice:
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


def schedule(*, wait: int, warmup: int, active: int, repeat: int = 0, skip_first: int = 0) -> Schedule:
    """As torch.profiler.schedule; UsageError where a number makes no sense."""
    if min(wait, warmup, repeat, skip_first) < 0 or active < 1:
        raise UsageError("a schedule needs wait, warmup, repeat and skip_first of 0 or more and active of 1 or more")
    return Schedule(wait, warmup, active, repeat, skip_first)


def parse(record: str | Schedule) -> Choice:
    """The choice behind `--record` and `record=`; UsageError names the forms."""
    if isinstance(record, Schedule):
        return Choice("schedule", schedule=record)
    if record in ("adaptive", "all", "none"):
        return Choice(record)
    form, _, number = record.partition(":")
    if form in ("first", "every") and number.isdecimal() and int(number) > 0:
        steps = int(number)
        return Choice(record, first=steps) if form == "first" else Choice(record, every=steps)
    raise UsageError(f"cannot record '{record}'", f"choose one of {_FORMS}")


def parse_memory(memory: str) -> str:
    """One of MEMORY_CHOICES, as `--record-memory` and `memory=` have it; UsageError names them."""
    if memory not in MEMORY_CHOICES:
        raise UsageError(f"cannot record memory '{memory}'", f"choose one of {', '.join(MEMORY_CHOICES)}")
    return memory
