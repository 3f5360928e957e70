"""A routed call of nothing, to measure what a call costs."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from stepscope.record.boundary import Boundary
from stepscope.record.torch_hooks import CallTimes, Routes, Scope


class _Nothing:
    """Stands for a module whose call does nothing, and of which no hook of the training's hears."""

    _compiled_call_impl = None

    def _call_impl(self) -> None:
        return None


class _Trial:
    """A listener that makes ranges, for calls of no model."""

    def __init__(self, make: Callable[[], Scope]) -> None:
        self._make = make

    def makes_scope(self, _: object) -> Scope:
        return self._make()


def trial_call(
    make: Callable[[], Scope],
) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[bool], None], Callable[[CallTimes | None], None]]:
    """A routed call of nothing, the same unrouted, and what makes it open a range or note its time: to measure both."""
    listener: Any = _Trial(make)
    route = Routes(Boundary(lambda _: None), listener)._modules
    nothing = _Nothing()
    route._installed = route._inside = True
    route._follow()
    call = functools.partial(route._routed_call(nn.Module.__call__), nothing)
    return call, nothing._call_impl, route.profile, route.time
