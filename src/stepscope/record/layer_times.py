"""Steps in which layers alone are timed: module calls by two looks at the clock, backward passes node by node.

A step whose operators are profiled runs 10 to 60 % longer, by the memory that each event takes between the tensors and
by its own time, and not evenly. Without operators there is a tenth of the events, and what a layer takes comes out as
it is. So this kind of step tells the time of layers, the other how it is divided among operators.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

import numpy as np
import torch

from stepscope.arrays import Ints
from stepscope.clock import monotonic_ns
from stepscope.record import kineto, torch_private
from stepscope.record.event_cost import per_call_ns, trial_call
from stepscope.record.listeners import ENDED
from stepscope.record.op_windows import MOST_EVENTS
from stepscope.record.ops.events import (
    BACKWARD_NODE,
    MODULE_SCOPE,
    NO_MODULE,
    OPTIMIZER_STEP,
    Events,
    Names,
    read_event_columns,
)
from stepscope.record.ops.module_calls import InnermostModules
from stepscope.record.ops.rows import NOT_KNOWN, StepProfile, StepSpan, UncostedRows, Window, rows_of_events
from stepscope.record.ops.updates import OptimizerCalls
from stepscope.record.torch_hooks import TorchHooks
from stepscope.runfolder import AUTOGRAD_NODE, COMMUNICATION, DATA_LOADER, PHASES, Part

_NODES, _PASSES = 24, 15  # of a trial
_NONE = -1
_PASS_END = "torch::autograd::end of a pass"  # name of the rows that end one, where another follows it at once


@dataclass(frozen=True)
class LayerCost:
    """Cost of timing a module's call, within its two times and around them, and of a backward node, ns."""

    call_inside_ns: float
    call_outside_ns: float
    node_ns: float | None

    def facts(self) -> dict[str, float]:
        """Return it for run.json."""
        return {name: round(value, 1) for name, value in asdict(self).items() if value is not None}


class LayerTimes:
    """Notes of one window beside the nodes of backward passes: module calls, updates and batches, of this thread."""

    def __init__(self, index: Callable[[Any], int]) -> None:
        self.index = index
        self.thread = threading.get_ident()
        self.noted: list[int] = []  # three numbers for each beginning, and for each end, whose module is ENDED
        self.modules: dict[int, tuple[weakref.ref[Any], int]] = {}  # each module and its index, by its id
        self.updates: list[tuple[str, int, int]] = []  # kind of the optimizer, begin, end
        self.loads: list[tuple[str, int, int]] = []  # kind of the data loader's iterator, begin, end
        self.passes: list[int] = []  # the ends of backward passes
        self.spans: list[StepSpan] = []
        self._updating: tuple[str, int] | None = None

    def append(self, span: StepSpan) -> bool:
        """A step of the window has ended; True, it is one of its steps."""
        self.spans.append(span)
        return True

    def updating(self, kind: str | None) -> None:
        """An optimizer of this kind begins to update, or (None) has ended."""
        now_ns = monotonic_ns()
        if threading.get_ident() != self.thread:
            return
        if kind is not None:
            self._updating = kind, now_ns
        elif self._updating is not None:
            self.updates.append((*self._updating, now_ns))
            self._updating = None

    def passed(self) -> None:
        """A backward pass has ended."""
        if threading.get_ident() == self.thread:
            self.passes.append(monotonic_ns())

    def loaded(self, iterator: Any, began_ns: int, ended_ns: int) -> None:
        """A data loader gave a batch, or had none left."""
        if threading.get_ident() == self.thread:
            self.loads.append((type(iterator).__name__, began_ns, ended_ns))

    def part(self, raw: list[Any], unix_offset_ns: int, names: Names, modules: list[tuple[str, str]]) -> Part:
        """Return rows as those of ops/: module calls, backward nodes, updates, batches; raw: the nodes, in Unix ns."""
        nodes = read_event_columns(raw, names, cuda=False)
        nodes = nodes.take(np.flatnonzero(nodes.scope == BACKWARD_NODE))
        texts, kinds = names.texts(), np.bincount(nodes.name)
        whole = np.zeros(len(kinds), dtype=np.int64)
        for name in np.flatnonzero(kinds).tolist():
            whole[name] = names.intern(f"{AUTOGRAD_NODE}{texts[name]}")
        nodes = replace(nodes, name=whole[nodes.name])
        made_in = np.bincount(nodes.forward_thread[nodes.sequence >= 0])
        thread = int(made_in.argmax()) if len(made_in) else 0
        calls, places = _calls_of(self.noted)
        scopes = {index: names.intern(f"{MODULE_SCOPE}{index}") for index in {index for index, _, _ in calls}}
        marks = [(scopes[index], t0, t1) for index, t0, t1 in calls]
        marks += [(names.intern(f"{OPTIMIZER_STEP}{kind}.step"), t0, t1) for kind, t0, t1 in self.updates]
        marks += [(names.intern(f"{DATA_LOADER}{kind}.__next__"), t0, t1) for kind, t0, t1 in self.loads]
        begins = np.array([t0 for _, t0, _ in marks], dtype=np.int64)
        ends = _ends_before_next_pass(np.array(self.passes, dtype=np.int64), nodes.t0 - unix_offset_ns, begins)
        marks += [(names.intern(_PASS_END), t, t) for t in ends.tolist()]
        events = _nodes_with_ranges(nodes, marks, thread, unix_offset_ns)
        window = Window([], self.spans, unix_offset_ns, OptimizerCalls(), shapes=False, cuda=False, places=places)
        return rows_of_events(events, window, names, modules, _NoCosts(), thread).part


class _NoCosts:
    """FLOPs and bytes are those of operators."""

    def look_up(self, window: Window, rows: UncostedRows) -> tuple[list[StepProfile], Ints, Ints]:
        nothing = np.full(len(rows.order), NOT_KNOWN, dtype=np.int64)
        return [], nothing, nothing


def _calls_of(noted: list[int]) -> tuple[list[tuple[int, int, int]], InnermostModules]:
    """Return the module, begin and end of each call, and which module was the innermost as autograd counted."""
    calls: list[tuple[int, int, int]] = []
    waiting: list[tuple[int, int]] = []
    begins, innermost = [_NONE], [NO_MODULE]
    for index, t_ns, sequence in zip(noted[::3], noted[1::3], noted[2::3], strict=True):
        if index != ENDED:
            waiting.append((index, t_ns))
        elif waiting:
            module, t0_ns = waiting.pop()
            calls.append((module, t0_ns, t_ns))
        begins.append(sequence)
        innermost.append(waiting[-1][0] if waiting else NO_MODULE)
    return calls, InnermostModules(np.array(begins, dtype=np.int64), np.array(innermost, dtype=np.int64))


def _ends_before_next_pass(ends: Ints, nodes: Ints, marks: Ints) -> Ints:
    """The ends of passes behind which a node begins before anything that is noted: what is between is no node's."""
    never = np.iinfo(np.int64).max
    nodes, marks = (np.append(np.sort(begins), never) for begins in (nodes, marks))
    followed: Ints = ends[nodes[np.searchsorted(nodes, ends)] < marks[np.searchsorted(marks, ends)]]
    return followed


def _nodes_with_ranges(nodes: Events, marks: list[tuple[int, int, int]], thread: int, unix_offset_ns: int) -> Events:
    """The nodes with ranges (name, begin, end in monotonic ns) of the thread that trains, as events of one window."""
    count = len(marks)
    columns = np.array(marks, dtype=np.int64).reshape(count, 3)
    constant = {"thread": thread, "scope": 0, "sequence": _NONE, "forward_thread": 0, "gpu": _NONE}
    own = {name: np.full(count, value, dtype=np.int64) for name, value in constant.items()}
    own |= {"name": columns[:, 0], "t0": columns[:, 1] + unix_offset_ns, "t1": columns[:, 2] + unix_offset_ns}
    own |= {name: np.full(count, _NONE, dtype=np.int64) for name in ("correlation", "link")}
    return Events(**{name: np.concatenate([getattr(nodes, name), column]) for name, column in own.items()}, raw=[])


class LayerRecorder:
    """Opens windows in which layers alone are timed, and turns each into a part of the run folder."""

    def __init__(self, hooks: TorchHooks, index: Callable[[Any], int], tell: Callable[[], None]) -> None:
        self.cost: LayerCost | None = None
        self.open: LayerTimes | None = None  # the window that is open now
        self.written = 0  # steps, by the last window
        self._hooks, self._index, self._tell = hooks, index, tell
        self._can_time_nodes_alone = False

    def learn_from_step(self, part: Part) -> None:
        """The rows of a profiled step tell whether layers can be timed: in this thread alone, without a collective."""
        thread, phase = part.columns["thread"], part.columns["phase"]
        here = bool((thread == thread[0]).all()) and bool((phase == PHASES.index("forward")).any())
        alone = here and not (phase == PHASES.index(COMMUNICATION)).any()
        self._can_time_nodes_alone = kineto.TIMES_NODES_ALONE and alone

    def may_open(self, events_per_step: float) -> bool:
        """Return whether the next steps can be timed so; they have at most as many events as one that is profiled."""
        return self._can_time_nodes_alone and events_per_step <= MOST_EVENTS and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]

    def rehearse(self) -> None:
        """Measure what it costs, half before and half within a window of no step."""
        trial = LayerTrial()
        with kineto.no_other_starts():
            window = kineto.start_window(shapes=False, cuda=False, nodes_alone=True)
            try:
                self.cost = trial.measure_in_window()
            finally:
                window.stop()

    def start(self) -> kineto.KinetoWindow:
        """Begin."""
        times = LayerTimes(self._index)
        window = kineto.start_window(shapes=False, cuda=False, nodes_alone=True)
        try:
            self._hooks.modules.time(times)
        except BaseException:  # a profile that nobody knows of would run on
            window.stop()
            raise
        self.open = times
        return window

    def settled_window(self) -> LayerTimes:
        """Return the open window, with all steps of it that have ended."""
        self._tell()
        assert self.open is not None
        return self.open

    def repeated(self, spans: list[StepSpan]) -> bool:
        """Steps have ended that were only looked at; True where they are of the open window."""
        if self.open is None:
            return False
        self.open.spans.extend(spans)
        return True


class LayerTrial:
    """Measures what timing layers costs on this device: half before a window of this kind, half within it."""

    def __init__(self) -> None:
        self._pass = torch_private.chain_of_nodes(_NODES)
        self._call, nothing, _, self._time = trial_call(lambda: torch_private.make_call_scope(""))
        self._bare_call, self._bare_inner = per_call_ns(self._call), per_call_ns(nothing)
        self._bare_pass = self._pass_ns()

    def measure_in_window(self) -> LayerCost:
        """Return the cost, from what the same takes now that a window is open."""
        times = LayerTimes(lambda _: 0)
        self._time(times)
        timed_call = per_call_ns(self._call)
        self._time(None)
        lasted = [end - begin for begin, end in zip(times.noted[1::6], times.noted[4::6], strict=True)]
        of_call = max(timed_call - self._bare_call, 0.0)
        inside = min(max(median(lasted) - self._bare_inner, 0.0), of_call)
        passed, bare = self._pass_ns(), self._bare_pass
        node = None if passed is None or bare is None else max(passed - bare, 0.0) / (_NODES + 1)
        return LayerCost(inside, of_call - inside, node)

    def _pass_ns(self) -> float | None:
        if self._pass is None:
            return None
        try:
            return per_call_ns(self._pass, calls=1, chunks=_PASSES)
        except (RuntimeError, TypeError):  # another torch
            self._pass = None
            return None
