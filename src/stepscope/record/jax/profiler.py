"""Everything of jax that is not public, in one place: the profiler's session, compiled programs, other profilers.

| what | where | without it |
| --- | --- | --- |
| a trace without files | `jax._src.lib._profiler.ProfilerSession` | ops are not recorded, and the run says so |
| programs that are compiled | `live_executables` of the backend's client | ops have no layers, and phase "other" |
| the training begins a trace | `start_trace` of `jax.profiler` and `jax._src.profiler` | it fails while ours is open |
| is a backend in use | `jax._src.xla_bridge.backends_are_initialized` | taken to be so |
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.monitoring
import jax.profiler

from stepscope.clock import monotonic_ns
from stepscope.record.jax.rows import CLOCK

_HOST_EVENTS = 1  # of `host_tracer_level`: ops and annotations, without what the runtime does besides
_COMPILES = "/jax/core/compile/"  # begin of the names of what `jax.monitoring` tells of compiling


class Window:
    """A trace that is open: `stop` gives its events as bytes, with what ties its clock to the monotonic one."""

    def __init__(self) -> None:
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level = _HOST_EVENTS
        options.python_tracer_level = 0
        options.enable_hlo_proto = False  # programs are asked for once, see `programs`
        self.marks: list[int] = []
        self._session = _profiler().ProfilerSession(options)
        self._mark()

    def stop(self) -> bytes:
        """End the trace; returns an XSpace, serialized."""
        self._mark()
        trace: bytes = self._session.stop()
        return trace

    def _mark(self) -> None:
        """Note when, by our clock, an annotation began that the trace has too."""
        self._annotate()  # the first one is slow
        before = monotonic_ns()
        self._annotate()
        self.marks.append((before + monotonic_ns()) // 2)

    @staticmethod
    def _annotate() -> None:
        with jax.profiler.TraceAnnotation(CLOCK):
            pass


def _profiler() -> Any:
    return importlib.import_module("jax._src.lib")._profiler


def traced_lines(trace: bytes) -> Iterator[list[Any]]:
    """Yield the events of each thread of a trace."""
    for plane in jax.profiler.ProfileData.from_serialized_xspace(trace).planes:
        for line in plane.lines:
            yield list(line.events)


def live_programs() -> list[Any]:
    """Return the compiled programs that something still refers to."""
    return list(jax.devices()[0].client.live_executables())


def hlo_of_programs(names: set[str]) -> Iterator[bytes]:
    """Yield the serialized HLO of the compiled programs with these names."""
    for program in live_programs():
        for module in program.hlo_modules():
            if module.name in names:
                yield module.as_serialized_hlo_module_proto()


def in_use() -> bool:
    """Return whether something was computed by now: asking for devices earlier would set them up."""
    bridge = importlib.import_module("jax._src.xla_bridge")
    initialized: Callable[[], bool] = getattr(bridge, "backends_are_initialized", lambda: True)
    return initialized()


def reads_traces() -> bool:
    """Return whether this jax reads its own traces: since 0.8; before, one asks for tensorflow on the terminal."""
    return getattr(jax.profiler, "ProfileData", None) is not None


def platform() -> str | None:
    """The platform that computes: "cpu", "gpu", "tpu"; None where nothing was computed yet."""
    return str(jax.default_backend()) if in_use() else None


def before_other_traces(callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` when somebody else starts a trace, before it starts; returns the undo function."""
    undo: list[Callable[[], None]] = []
    for owner in (jax.profiler, importlib.import_module("jax._src.profiler")):
        plain: Any = vars(owner).get("start_trace")
        if plain is not None:
            undo.append(_routed(owner, plain, callback))

    def restore() -> None:
        for back in undo:
            back()

    return restore


def _routed(owner: Any, plain: Callable[..., Any], callback: Callable[[], None]) -> Callable[[], None]:
    @functools.wraps(plain)
    def start_trace(*args: Any, **kwargs: Any) -> Any:
        callback()
        return plain(*args, **kwargs)

    owner.start_trace = start_trace

    def back() -> None:
        if vars(owner).get("start_trace") is start_trace:  # else somebody has wrapped it: it passes through
            owner.start_trace = plain

    return back


def observe_compiling(callback: Callable[[float], None]) -> Callable[[], None]:
    """Call `callback` with the time of each part of compiling a function, s; return a function that undoes this."""

    def heard(event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith(_COMPILES):
            callback(duration_secs)

    undo = getattr(jax.monitoring, "unregister_event_duration_listener", None)
    if undo is None:  # of an older jax, where a listener stays for ever
        return lambda: None
    jax.monitoring.register_event_duration_secs_listener(heard)
    return lambda: undo(heard)
