"""Ranges that are open when a window closes end with it: torch would write their end into memory that it has freed.

A profile keeps a record of every range that begins while it runs, and frees them all when it stops. The end of a range
is told to the profile that runs at that time, whichever it is, with the address of the range's record: one that began
under an earlier profile is written into freed memory, and the process crashes then or later. So no range may outlive
the window in which it began. Those of torch (`Optimizer.step`, the data loader) and of the training itself are all
`torch.profiler.record_function`s; a second end of one, by whoever opened it, does nothing.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

import torch


def follow_ranges() -> Callable[[], None]:
    """Follow each `record_function` that this thread enters from now on; returns the function that ends the open ones.

    `with` looks up both methods when it begins, so both are in place as long as a window records.
    """
    ranges: Any = torch.profiler.record_function
    enter, leave = ranges.__enter__, ranges.__exit__
    here = threading.get_ident()
    entered: dict[int, Any] = {}

    @functools.wraps(enter)
    def follow(self: Any) -> Any:
        found = enter(self)
        if threading.get_ident() == here:
            entered[id(self)] = self
        return found

    @functools.wraps(leave)
    def forget(self: Any, *error: Any) -> Any:
        entered.pop(id(self), None)
        return leave(self, *error)

    ranges.__enter__, ranges.__exit__ = follow, forget

    def end() -> None:
        if ranges.__enter__ is follow and ranges.__exit__ is forget:  # else somebody wrapped ours: they pass through
            ranges.__enter__, ranges.__exit__ = enter, leave
        for each in reversed(list(entered.values())):
            leave(each, None, None, None)
        entered.clear()

    return end
