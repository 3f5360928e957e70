"""A torch.profiler JSON as a run: steps, operators by layer and phase, and what the file does not say."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.arrays import Ints
from stepscope.errors import UsageError
from stepscope.importers.chrome_events import EventColumns, read_events, to_events
from stepscope.record.ops import events as tree
from stepscope.record.ops.events import MODULE_SCOPE, NO_PARENT, OPTIMIZER_STEP, Events, Names
from stepscope.record.ops.rows import StepProfile, StepSpan, UncostedRows, Window, rows_of_events
from stepscope.record.ops.updates import OptimizerCalls
from stepscope.runfolder import RunWriter

Lack = tuple[str, str, str | None]  # what, why, what would change it
WALL_CLOCK_US = 1e14  # below this a time is no microseconds since 1970, and the file states no base
SECOND_NS = 1_000_000_000


@dataclass(frozen=True)
class ProfilerFile:
    """Content of a file: events in Unix ns (or ns from a zero of their own), steps from `origin_ns`."""

    caught: EventColumns
    events: Events
    costs: StatedCosts
    facts: dict[str, Any]
    steps: FileSteps
    origin_ns: int
    has_wall_clock: bool
    lacks: tuple[Lack, ...] = ()


def read_profiler_file(path: Path, samples: int | None, most_bytes: int) -> ProfilerFile:
    """Read a file; raises UsageError where it is no Chrome trace or holds no op."""
    caught = EventColumns()
    facts = read_events(path, caught.take, most_bytes)
    base = facts.get("baseTimeNanoseconds", 0)
    events, flops, read = to_events(caught, base if isinstance(base, int) and 0 <= base < 1 << 61 else 0)
    if len(events.t0) == 0:
        raise UsageError(f"'{path}' holds no op", "give a file of torch.profiler's export_chrome_trace")
    first_ns = int(events.t0.min())
    origin_ns = first_ns // SECOND_NS * SECOND_NS
    steps = find_steps(events, caught.names, origin_ns, samples)
    if facts.get("cut_off"):  # those whose ops it holds up to their end; all where it holds none whole
        reached_ns = int(events.t0.max()) - origin_ns
        steps = replace(steps, spans=[span for span in steps.spans if span.t1_ns <= reached_ns] or steps.spans)
    marks = np.array([text.startswith(PROFILER_STEP) for text in caught.names.ids], dtype=bool)
    events, costs = events.take(np.flatnonzero(~marks[events.name])), StatedCosts(flops, read)  # a step is no op
    wall = first_ns > WALL_CLOCK_US * 1000
    return ProfilerFile(
        caught, events, costs, facts, steps, origin_ns, wall, lacks=_missing_content(caught, facts, steps)
    )


def write_profiler_file(writer: RunWriter, file: ProfilerFile) -> int:
    """Write steps, ops and module tree; returns how many ops are in a step."""
    places = module_paths(file.caught, file.events)
    for span in file.steps.spans:
        writer.append_step(span.step, span.t0_ns, span.t1_ns, span.samples, None, True)
    writer.write_model(model_rows(places))
    spans, names = file.steps.spans, file.caught.names
    return write_ops(writer, file.events, file.costs, spans, names, places, file.origin_ns)


def accelerators(facts: dict[str, Any]) -> list[dict[str, Any]]:
    """The GPUs that the file names, as device.json has them."""
    stated = facts.get("deviceProperties")
    gpus = [gpu for gpu in stated if isinstance(gpu, dict)] if isinstance(stated, list) else []
    vendor = "amd" if any("AMD" in str(gpu.get("name")) for gpu in gpus) else "nvidia"
    return [{"vendor": vendor, "model": gpu.get("name"), "bus": None} for gpu in gpus]


def _missing_content(caught: EventColumns, facts: dict[str, Any], steps: FileSteps) -> tuple[Lack, ...]:
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
        lacks.append(
            (
                "marks of steps",
                f"steps are taken from {steps.source}",
                "profile(..., schedule=...) and prof.step() after each step",
            )
        )
    if facts.get("cut_off"):
        lacks.append(("end of the file", "it is cut off in the midst of the events", "export it again"))
    return tuple(lacks)


def _why_no_memory(caught: EventColumns) -> str:
    count = caught.excluded["[memory]"]
    return f"the file's {count:,} marks of memory name neither tensor nor layer" if count else "the file has none"


PROFILER_STEP = "ProfilerStep#"


@dataclass(frozen=True)
class FileSteps:
    """Steps in order, numbered from 0, and in words where they were taken from."""

    spans: list[StepSpan]
    source: str
    first: int | None  # the profiler's own number of the first one


def find_steps(events: Events, names: Names, origin_ns: int, samples: int | None) -> FileSteps:
    """The steps, ns from `origin_ns`; without any mark the whole file is one."""
    marks = _mark_rows(events, names, PROFILER_STEP)
    if len(marks):
        texts = names.texts()
        numbers = [texts[number][len(PROFILER_STEP) :] for number in events.name[marks].tolist()]
        first = int(numbers[0]) if re.fullmatch("[0-9]{1,18}", numbers[0]) else None
        bounds = list(zip(events.t0[marks].tolist(), events.t1[marks].tolist(), strict=True))
        return FileSteps(_spans(bounds, origin_ns, samples), "the profiler's marks (prof.step())", first)
    if len(events.t0) == 0:
        return FileSteps([], "nothing: the file holds no op", None)
    ends = events.t1[_mark_rows(events, names, OPTIMIZER_STEP)].tolist()
    begin = int(events.t0.min())
    if ends:
        bounds = list(zip([begin, *ends[:-1]], ends, strict=True))
        return FileSteps(_spans(bounds, origin_ns, samples), "the ends of the optimizer's steps", None)
    whole = [(begin, int(events.t1.max()))]
    return FileSteps(_spans(whole, origin_ns, samples), "nothing: the whole file is one step", None)


def _mark_rows(events: Events, names: Names, prefix: str) -> Ints:
    """Rows whose name begins so, in order of time."""
    is_mark = np.array([text.startswith(prefix) for text in names.ids], dtype=bool)
    rows: Ints = np.flatnonzero(is_mark[events.name] & (events.gpu < 0)) if len(events.name) else np.zeros(0, np.int64)
    ordered: Ints = rows[np.argsort(events.t0[rows], kind="stable")]
    return ordered


def _spans(bounds: list[tuple[int, int]], origin_ns: int, samples: int | None) -> list[StepSpan]:
    """No step begins before the last one has ended."""
    spans: list[StepSpan] = []
    for t0, t1 in bounds:
        begin = max(t0 - origin_ns, spans[-1].t1_ns) if spans else t0 - origin_ns
        if t1 - origin_ns > begin:
            spans.append(StepSpan(len(spans), begin, t1 - origin_ns, samples))
    return spans


# Attribute names ("layer1.0.conv") are not in the file. A module lies below the one in whose call it was first seen.


def module_paths(caught: EventColumns, events: Events) -> list[tuple[str, str]]:
    """Path and type of every module by its number; the only one at the top is the model itself, ""."""
    parents = _parents(caught, events)
    tops = [number for number, parent in parents.items() if parent is None]
    names = list(caught.modules)
    paths: dict[int, str] = {}

    def path(number: int) -> str:
        if number not in paths:
            above = parents.get(number)
            if above is None:
                paths[number] = "" if len(tops) == 1 else names[number]
            else:
                paths[number] = ".".join(part for part in (path(above), names[number]) if part)
        return paths[number]

    return [(path(number), name.rpartition("_")[0] or name) for number, name in enumerate(names)]


def model_rows(places: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Rows of model.json, parents first; parameters are not in the file."""
    paths = {path for path, _ in places}
    return [
        {
            **{"module": path, "type": kind, "parent": _parent_path(path, paths), "parameters": None, "bytes": None},
            **{"flops_forward": None, "flops_backward": None, "trainable": None},
        }
        for path, kind in sorted(places, key=lambda place: (place[0].count("."), place[0] != "", place[0]))
    ]


def _parent_path(path: str, paths: set[str]) -> str | None:
    above = path.rpartition(".")[0]
    return None if path == "" or above not in paths else above


def _parents(caught: EventColumns, events: Events) -> dict[int, int | None]:
    """The module in whose call each was first seen; None at the top. A module is never below itself."""
    numbers = {caught.names.ids.get(f"{MODULE_SCOPE}{number}", -1): number for number in range(len(caught.modules))}
    rows = np.flatnonzero(np.isin(events.name, list(numbers)))
    calls = events.take(rows[tree.by_thread_and_time(events.thread[rows], events.t0[rows], events.t1[rows])])
    above = tree.parents(calls.thread, tree.depths(calls.thread, calls.t0, calls.t1))
    parents: dict[int, int | None] = {}
    for row in np.argsort(calls.t0, kind="stable").tolist():
        number = numbers[int(calls.name[row])]
        place = int(above[row])
        around = None if place == NO_PARENT else numbers[int(calls.name[place])]
        if number not in parents and (around is None or number not in (around, *_module_ancestors(around, parents))):
            parents[number] = around
    return {number: parents.get(number) for number in range(len(caught.modules))}


def _module_ancestors(number: int, parents: dict[int, int | None]) -> list[int]:
    chain: list[int] = []
    above = parents.get(number)
    while above is not None and above not in chain:
        chain.append(above)
        above = parents.get(above)
    return chain


WINDOW_ROWS = 200_000


@dataclass(frozen=True)
class StatedCosts:
    """FLOPs and bytes that were counted from the shapes in the file, by the row that `Events.raw` holds."""

    flops: Ints
    bytes: Ints

    def look_up(self, window: Window, rows: UncostedRows) -> tuple[list[StepProfile], Ints, Ints]:
        """No profiles: nothing is planned by a file that is complete."""
        stated = np.array([rows.events.raw[event] for event in rows.order.tolist()], dtype=np.int64)
        return [], self.flops[stated], self.bytes[stated]


def write_ops(
    writer: RunWriter,
    events: Events,
    costs: StatedCosts,
    spans: list[StepSpan],
    names: Names,
    modules: list[tuple[str, str]],
    origin_ns: int,
) -> int:
    """Write the ops of every step; returns how many rows there are."""
    begins = _request_times(events) - origin_ns
    order = np.argsort(begins, kind="stable")
    times = begins[order]
    rows = 0
    for window in _windows(spans, times):
        first, last = np.searchsorted(times, [window[0].t0_ns, window[-1].t1_ns]).tolist()
        caught = Window([], window, origin_ns, OptimizerCalls(), shapes=False, cuda=False)
        part = rows_of_events(events.take(order[first:last]), caught, names, modules, costs).part
        if len(part):
            writer.write_ops(part)
            rows += len(part)
    return rows


def _request_times(events: Events) -> Ints:
    """Return when each event was requested: a kernel belongs to the op that launched it, however late it ran."""
    begins: Ints = events.t0.copy()
    kernels = np.flatnonzero((events.gpu >= 0) & (events.link > 0))
    ops = np.flatnonzero((events.gpu < 0) & (events.correlation > 0))
    if len(kernels) == 0 or len(ops) == 0:
        return begins
    ops = ops[np.argsort(events.correlation[ops], kind="stable")]
    place = np.minimum(np.searchsorted(events.correlation[ops], events.link[kernels]), len(ops) - 1)
    matches = events.correlation[ops[place]] == events.link[kernels]
    begins[kernels[matches]] = events.t0[ops[place[matches]]]
    return begins


def _windows(spans: list[StepSpan], times: Ints) -> Iterator[list[StepSpan]]:
    """Steps one after another, as many as have `WINDOW_ROWS` events together; at least one."""
    window: list[StepSpan] = []
    for span in spans:
        begin = window[0].t0_ns if window else span.t0_ns
        count = int(np.diff(np.searchsorted(times, [begin, span.t1_ns]))[0])
        if window and count > WINDOW_ROWS:
            yield window
            window = []
        window.append(span)
    if window:
        yield window
