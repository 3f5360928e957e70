"""A torch.profiler JSON as a run: steps, operations by layer and phase, and what the file does not say."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.errors import UsageError
from stepscope.importers.chrome_events import read_events
from stepscope.importers.event_columns import Caught, events_of
from stepscope.importers.module_names import model_rows, module_places
from stepscope.importers.op_parts import StatedCosts, write_ops
from stepscope.importers.steps_found import PROFILER_STEP, FoundSteps, find_steps
from stepscope.record.recorders.events import Events
from stepscope.runfolder import RunWriter

Lack = tuple[str, str, str | None]  # what, why, what would change it
WALL_CLOCK_US = 1e14  # below this a time is no microseconds since 1970, and the file states no base
SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class ProfilerFile:
    """What was read of a file: events in Unix ns (or ns from a zero of their own), steps from `origin_ns`."""

    caught: Caught
    events: Events
    costs: StatedCosts
    facts: dict[str, Any]
    steps: FoundSteps
    origin_ns: int
    has_wall_clock: bool
    lacks: tuple[Lack, ...] = ()


def read_profiler_file(path: Path, samples: int | None, most_bytes: int) -> ProfilerFile:
    """Read a file; raises UsageError where it is no Chrome trace or holds no operation."""
    caught = Caught()
    facts = read_events(path, caught.take, most_bytes)
    base = facts.get("baseTimeNanoseconds", 0)
    events, flops, read = events_of(caught, base if isinstance(base, int) and 0 <= base < 1 << 61 else 0)
    if len(events.t0) == 0:
        raise UsageError(f"'{path}' holds no operation", "give a file of torch.profiler's export_chrome_trace")
    first_ns = int(events.t0.min())
    origin_ns = first_ns // SECOND_NS * SECOND_NS
    steps = find_steps(events, caught.names, origin_ns, samples)
    events, costs = _without_marks(caught, events), StatedCosts(flops, read)
    wall = first_ns > WALL_CLOCK_US * 1000
    return ProfilerFile(caught, events, costs, facts, steps, origin_ns, wall, lacks=_lacks(caught, facts, steps))


def write_profiler_file(writer: RunWriter, file: ProfilerFile) -> int:
    """Write steps, operations and module tree; returns how many operations are in a step."""
    places = module_places(file.caught, file.events)
    for span in file.steps.spans:
        writer.step(span.step, span.t0_ns, span.t1_ns, span.samples, None, True)
    if places:
        writer.model(model_rows(places))
    spans, names = file.steps.spans, file.caught.names
    return write_ops(writer, file.events, file.costs, spans, names, places, file.origin_ns)


def accelerators(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The GPUs that the file names, as device.json has them."""
    stated = facts.get("deviceProperties")
    gpus = [gpu for gpu in stated if isinstance(gpu, dict)] if isinstance(stated, list) else []
    vendor = "amd" if any("AMD" in str(gpu.get("name")) for gpu in gpus) else "nvidia"
    return [{"vendor": vendor, "model": gpu.get("name"), "bus": None} for gpu in gpus]


def _without_marks(caught: Caught, events: Events) -> Events:
    """A step is no operation."""
    marks = np.array([text.startswith(PROFILER_STEP) for text in caught.names.ids], dtype=bool)
    return events.take(np.flatnonzero(~marks[events.name]))


def _lacks(caught: Caught, facts: dict[str, Any], steps: FoundSteps) -> tuple[Lack, ...]:
    """What this file does not say, beyond what no such file does."""
    lacks: list[Lack] = [
        ("loss, and cost of the profiler", "a torch.profiler file does not state them", "stepscope run"),
        ("memory by layer", _why_no_memory(caught), "stepscope run --record-memory all"),
    ]
    if not caught.modules:
        lacks.append(("layers", "the file names no modules", "torch.profiler.profile(with_stack=True)"))
    else:
        lacks.append(("attribute names of layers", "the file has the profiler's own, such as Linear_0", None))
    if not caught.with_shapes:
        lacks.append(("FLOPs and bytes", "the file states no shapes", "torch.profiler.profile(record_shapes=True)"))
    if not steps.source.startswith("the profiler"):
        lacks.append(("marks of steps", f"steps are taken from {steps.source}", "call prof.step() after each step"))
    if facts.get("cut_off"):
        lacks.append(("end of the file", "it is cut off in the midst of the events", "export it again"))
    return tuple(lacks)


def _why_no_memory(caught: Caught) -> str:
    count = caught.left_out["[memory]"]
    return f"the file's {count:,} marks of memory name neither tensor nor layer" if count else "the file has none"
