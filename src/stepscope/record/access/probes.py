"""Probe quantities behind a vendor library: each is tried once, those that answer become channels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from stepscope.clock import Clock
from stepscope.record.sensors.contract import NAN, Channel

Errors = tuple[type[BaseException], ...]
UNREADABLE: Errors = (OSError, ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError)


@dataclass(frozen=True)
class Probe:
    """A channel, and the call that reads it in the channel's unit; NaN, or a raise, is "not read"."""

    channel: Channel
    call: Callable[[], float]
    every_ns: int = 0  # a call that is dear is made this seldom, and its last answer is repeated between
    later: bool = False  # it may have nothing to say yet: kept if it answers NaN, dropped only if it raises


def channel_id(scope: str, quantity: str) -> str:
    """The id of a channel, unique over the run as its scope is."""
    return f"{scope.replace(':', '.')}.{quantity}"


def attempt(call: Callable[[], float], errors: Errors) -> float:
    """Return the result of a call; NaN where it raises one of these errors."""
    try:
        return float(call())
    except errors:
        return NAN


def answering(probes: Sequence[Probe], errors: Errors) -> list[Probe]:
    """The probes that give a number when tried."""
    return [probe for probe in probes if _answers(probe, errors)]


def _answers(probe: Probe, errors: Errors) -> bool:
    try:
        value = probe.call()
    except errors:
        return False
    return probe.later or value == value


def reader(probes: Sequence[Probe], errors: Errors, clock: Clock, lost: str) -> Callable[[], list[float]]:
    """A read of all probes; raises OSError, saying `lost`, when those that were due all fail."""
    last = [NAN] * len(probes)
    due_ns = [0] * len(probes)

    def read() -> list[float]:
        now_ns = clock()
        alive = tried = False
        for place, probe in enumerate(probes):
            if probe.every_ns:
                if now_ns < due_ns[place]:
                    continue
                due_ns[place] = now_ns + probe.every_ns
            tried = True
            last[place] = value = attempt(probe.call, errors)
            alive |= value == value
        if tried and not alive:
            raise OSError(lost)
        return list(last)

    return read
