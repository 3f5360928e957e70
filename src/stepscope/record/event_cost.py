"""The cost of profiling on this device: measured once in a run, in a window of its own between two steps.

An event's cost has two parts. What lies between its two stamps is in the event's self time; what lies before the first
and after the second is in the time of whatever called it. Analysis takes both out again (`analysis.time.correction`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stepscope.clock import monotonic_ns
from stepscope.record import kineto, torch_private
from stepscope.record.fault_boundary import Boundary
from stepscope.record.ops.events import Names, read_event_columns
from stepscope.record.torch_hooks import TorchHooks
from stepscope.record.torch_private import Scope

if TYPE_CHECKING:
    from stepscope.record.layer_times import LayerTimes

_CALLS, _CHUNKS = 12, 6  # the median of some short stretches: single interruptions do not count
_SCOPE, _CALL = "#stepscope.trial.scope", "#stepscope.trial.call"


@dataclass(frozen=True)
class EventCost:
    """Cost of an event of an operator and of a module's call, ns; of a window, and of writing an event of it, ns."""

    op_inside_ns: float
    op_outside_ns: float
    call_inside_ns: float
    call_outside_ns: float
    window_ns: float
    written_ns: float

    def facts(self) -> dict[str, float]:
        """Return it for run.json."""
        return {name: round(value, 1) for name, value in asdict(self).items()}


def measure_event_cost() -> EventCost:
    """Profile ranges, calls and operators of nothing; 3 ms. Raises what starting a window raises."""
    scope = torch_private.make_call_scope(_SCOPE)
    call, nothing, profile_calls, _ = trial_call(lambda: torch_private.make_call_scope(_CALL))
    transposed = torch.empty(2, 2, device="cpu").t

    def enter_and_leave() -> None:
        scope.__enter__()
        scope.__exit__(None, None, None)

    bare_scope, bare_call, bare_inner, bare_op = (per_call_ns(f) for f in (enter_and_leave, call, nothing, transposed))
    began_ns = monotonic_ns()
    window = kineto.start_window(shapes=False, cuda=False)
    started_ns = monotonic_ns()
    try:
        per_call_ns(enter_and_leave)
        profile_calls(True)
        profiled_call = per_call_ns(call)
        profile_calls(False)
        profiled_op = per_call_ns(transposed)
    finally:
        stopped_ns = monotonic_ns()
        raw = window.stop(lambda: None)
    names = Names()
    events = read_event_columns(raw, names, cuda=False)
    ended_ns = monotonic_ns()
    texts, lasted = names.texts(), (events.t1 - events.t0).tolist()
    within = {
        name: median(ns for ns, number in zip(lasted, events.name.tolist(), strict=True) if texts[number] == name)
        for name in (_SCOPE, _CALL)
    }
    ops = sum(texts[number].startswith("aten::") for number in events.name.tolist())
    of_op = max(profiled_op - bare_op, 0.0) / max(ops / (_CALLS * _CHUNKS), 1.0)
    inside = min(max(within[_SCOPE] - bare_scope / 2, 0.0), of_op)
    of_call = max(profiled_call - bare_call, 0.0)
    call_inside = min(max(within[_CALL] - bare_inner, 0.0), of_call)
    return EventCost(
        op_inside_ns=inside,
        op_outside_ns=of_op - inside,
        call_inside_ns=call_inside,
        call_outside_ns=of_call - call_inside,
        window_ns=float(started_ns - began_ns + 1_000_000),
        written_ns=(ended_ns - stopped_ns) / max(len(raw), 1),
    )


def per_call_ns(function: Callable[[], object], calls: int = _CALLS, chunks: int = _CHUNKS) -> float:
    """Return the wall time of a call, ns: the median over chunks of calls."""
    times = []
    for _ in range(chunks):
        began_ns = monotonic_ns()
        for _ in range(calls):
            function()
        times.append((monotonic_ns() - began_ns) / calls)
    return float(median(times))


class _Nothing:
    """Stand-in for a module whose call does nothing and triggers no hook of the training."""

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
) -> tuple[Callable[[], Any], Callable[[], Any], Callable[[bool], None], Callable[[LayerTimes | None], None]]:
    """A routed call of nothing, the same unrouted, and what makes it open a range or note its time: to measure both."""
    listener: Any = _Trial(make)
    route = TorchHooks(Boundary(lambda _: None), listener).modules
    nothing = _Nothing()
    route._installed = True
    route._inside.add(get_ident())
    route._refresh_call_flags()
    call = functools.partial(route._routed_call(nn.Module.__call__), nothing)
    return call, nothing._call_impl, route.profile, route.time
