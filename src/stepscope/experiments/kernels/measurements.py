"""The measurements of `study kernels`: each kernel in visits, convolutions in turn, ceilings, and the timer itself."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from stepscope.analysis.device.ceilings import read_ceilings
from stepscope.analysis.memory.limits import limit_of_this_machine
from stepscope.errors import StepscopeError
from stepscope.experiments.engine.folder import translate_study_write_errors
from stepscope.experiments.kernels import Kernels
from stepscope.experiments.kernels.rates import measured_five_three
from stepscope.experiments.kernels.shapes import Kernel, same_padding_conv_sizes
from stepscope.experiments.kernels.timing import (
    FORWARD,
    Parts,
    TimedCall,
    time_call,
    timed_calls_of,
    timer_to_bare_loop_ratio,
)
from stepscope.files import read_json_object, replace_json
from stepscope.record.ceilings import ceilings
from stepscope.record.sensors.cpu import busy_ticks

_MOST = 0.5  # of the memory that is free: a kernel may want as much again for its own
VISITS = 3  # of each kernel, at moments far apart: what other processes do in one of them must not look like a cliff
_BLOCKS_A_VISIT = 3
MOST_ATTEMPTS = 2  # to time a kernel that ended this process: a power cut may be why, but not twice


def pair_id(where: Mapping[str, Any]) -> str:
    return "five-three-" + "-".join(f"{axis}{at}" for axis, at in where.items())


def time_kernel(kernel: Kernel, request: Kernels) -> dict[str, Any]:
    """The parts of a kernel with their times in one visit; or why it was not timed."""

    def timed(part: TimedCall) -> dict[str, Any]:
        timing = time_call(part.call, request.seconds / VISITS, request.threads, _BLOCKS_A_VISIT)
        return {**asdict(timing), "flops": part.flops, "bytes": part.bytes}

    return _parts_or_reason(
        [kernel], request.device, lambda calls: {name: timed(part) for name, part in calls[0].items()}
    )


def _parts_or_reason(
    kernels: Sequence[Kernel], device: str, measure: Callable[[list[Parts]], dict[str, Any]]
) -> dict[str, Any]:
    """Return what is measured of the calls of these kernels as `parts`; or as `skipped` why that cannot be."""
    try:
        for kernel in kernels:
            why = _does_not_fit(kernel, device)
            if why is not None:
                return {"skipped": why}
        return {"parts": measure([timed_calls_of(kernel, device) for kernel in kernels])}
    except (RuntimeError, MemoryError) as error:  # a kernel that this build lacks, or memory that ran out
        return {"skipped": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


def _does_not_fit(kernel: Kernel, device: str) -> str | None:
    """Before anything is allocated: on tensors without numbers."""
    needs = max(part.bytes for part in timed_calls_of(kernel, "meta").values())
    free = torch.cuda.mem_get_info()[0] if device != "cpu" else limit_of_this_machine().bytes
    if needs <= _MOST * free:
        return None
    return f"its tensors need {needs / 1e6:.0f} MB and {free / 1e6:.0f} MB are free"


def compare_convolutions(where: Mapping[str, Any], request: Kernels) -> dict[str, Any]:
    """5x5 then 3x3 against 7x7 at a place, measured in turn."""
    sizes = (3, 5, 7)
    places = [{**where, "kernel": size} for size in sizes]
    kernels = [Kernel("conv", same_padding_conv_sizes(place), place) for place in places]

    def compare(parts: list[Parts]) -> dict[str, Any]:
        calls = {size: {name: part.call for name, part in of.items()} for size, of in zip(sizes, parts, strict=True)}
        return measured_five_three(calls, 3 * request.seconds)

    return _parts_or_reason(kernels, request.device, compare)


def compare_timer_with_bare_loop(todo: Sequence[Kernel], request: Kernels) -> dict[str, Any]:
    """Return, for the first kernel of each op, the ratio of the timer to a bare loop."""
    result: dict[str, Any] = {}
    for kernel in todo:
        if kernel.op in result:
            continue

        def compare(calls: list[Parts], label: str = kernel.label) -> dict[str, Any]:
            name = FORWARD if FORWARD in calls[0] else next(iter(calls[0]))
            return {"kernel": label, "part": name, **timer_to_bare_loop_ratio(calls[0][name].call, request.threads)}

        ratio = _parts_or_reason([kernel], request.device, compare)
        if "parts" in ratio:  # else as in its cell: another of the op may run
            result[kernel.op] = ratio["parts"]
    return result


def reached_ceilings(request: Kernels) -> dict[str, Any]:
    """Return the FLOP/s and B/s that this device reached at the most with these threads, and by what.

    bytes_per_s is null where other load disturbed the probe of the memory in every block.
    run_queue_share: of the time in which the probe waited for a core; beyond QUIET these are below what it can reach.
    """
    stated = ceilings(request.device, threads=request.threads)
    if stated is None:
        raise StepscopeError("the ceilings of this device could not be measured", "stepscope doctor --ceilings")
    reached = read_ceilings(stated)
    return {
        "flops_per_s": reached.peak_flops_per_s,
        "flops_by": reached.peak_by,
        "bytes_per_s": reached.peak_bytes_per_s,
        "bytes_by": reached.streamed_by,
        "run_queue_share": reached.run_queue_share,
    }


@contextlib.contextmanager
def count_attempts(folder: Path, name: str) -> Iterator[int]:
    """Yield how often this has begun without an end, this time included; only what ends the process leaves no end."""
    file = folder / "attempt.json"
    before = read_json_object(file)
    count = 1 + (int(before.get("count", 0)) if before.get("point") == name else 0)
    with translate_study_write_errors(folder):
        replace_json(file, {"point": name, "count": count})
    try:
        yield count
    finally:
        file.unlink(missing_ok=True)


def measure_with_load(measure: Callable[[], Mapping[str, Any]]) -> dict[str, Any]:
    """Return what is measured, with the core-seconds of other processes and the seconds in which they were read."""
    before = _core_seconds()
    result = dict(measure())
    after = _core_seconds()
    if before is None or after is None:
        return result
    wall_s, others_s = (b - a for a, b in zip(before, after, strict=True))
    return {**result, "background": {"wall_s": wall_s, "core_s": max(0.0, others_s)}}


def _core_seconds() -> tuple[float, float] | None:
    """Return the time now and the core-seconds of all processes but this one, s; null where they cannot be read."""
    try:
        ticks = busy_ticks(Path("/proc/stat").read_bytes())
    except (OSError, ValueError, IndexError):
        return None
    own = os.times()
    return time.monotonic(), sum(ticks.values()) / os.sysconf("SC_CLK_TCK") - own.user - own.system


def background_cores(results: Iterable[Mapping[str, Any]]) -> float | None:
    """Return the mean background CPU load over all points, in cores; null where it was not read."""
    loads = [result["background"] for result in results if "background" in result]
    wall_s = sum(load["wall_s"] for load in loads)
    return sum(load["core_s"] for load in loads) / wall_s if wall_s > 0 else None
