"""Where the steps of a torch.profiler file begin and end: by its own marks, else by the optimizer's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stepscope.record.recorders.events import Events, Names
from stepscope.record.recorders.phases import OPTIMIZER_STEP
from stepscope.record.recorders.tree import Ints
from stepscope.record.recorders.window import StepSpan

PROFILER_STEP = "ProfilerStep#"


@dataclass(frozen=True)
class FoundSteps:
    """Steps in order, numbered from 0, and in words where they were taken from."""

    spans: list[StepSpan]
    source: str
    first: int | None  # the profiler's own number of the first one


def find_steps(events: Events, names: Names, origin_ns: int, samples: int | None) -> FoundSteps:
    """The steps, ns from `origin_ns`; without any mark the whole file is one."""
    marks = _rows(events, names, PROFILER_STEP)
    if len(marks):
        texts = names.texts()
        numbers = [texts[number][len(PROFILER_STEP) :] for number in events.name[marks].tolist()]
        first = int(numbers[0]) if numbers[0].isdigit() else None
        bounds = list(zip(events.t0[marks].tolist(), events.t1[marks].tolist(), strict=True))
        return FoundSteps(_spans(bounds, origin_ns, samples), "the profiler's marks (prof.step())", first)
    if len(events.t0) == 0:
        return FoundSteps([], "nothing: the file holds no operation", None)
    ends = events.t1[_rows(events, names, OPTIMIZER_STEP)].tolist()
    begin = int(events.t0.min())
    if ends:
        bounds = list(zip([begin, *ends[:-1]], ends, strict=True))
        return FoundSteps(_spans(bounds, origin_ns, samples), "the ends of the optimizer's steps", None)
    whole = [(begin, int(events.t1.max()))]
    return FoundSteps(_spans(whole, origin_ns, samples), "nothing: the whole file is one step", None)


def _rows(events: Events, names: Names, prefix: str) -> Ints:
    """Rows whose name begins so, in order of time."""
    wanted = np.array([text.startswith(prefix) for text in names.ids], dtype=bool)
    rows: Ints = np.flatnonzero(wanted[events.name] & (events.gpu < 0)) if len(events.name) else np.zeros(0, np.int64)
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
