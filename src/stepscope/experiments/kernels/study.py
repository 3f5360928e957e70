"""`stepscope study kernels`: time every kernel of the request, compare with the device's ceilings, and report."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import polars as pl
import torch

from stepscope.analysis.device.ceilings import read_ceilings
from stepscope.analysis.memory.limits import limit_of_this_machine
from stepscope.analysis.results import Findings, ResultTable, Value
from stepscope.errors import StepscopeError
from stepscope.experiments.engine.engine import Plan, Point, Result, device_name
from stepscope.experiments.kernels import Kernels
from stepscope.experiments.kernels import rates as tables
from stepscope.experiments.kernels.rates import (
    FAILS,
    HERE,
    HOLDS,
    JUMP,
    OPEN,
    KernelRate,
    ProfilerTables,
    below_one_verdict,
    best_kernels,
    cliffs,
    conv_5_vs_3_places,
    imported_conv_5_vs_3,
    measured_five_three,
    rates_frame,
)
from stepscope.experiments.kernels.shapes import Kernel, kernels_of, same_padding_conv_sizes, sweep_kernels
from stepscope.experiments.kernels.timing import FORWARD, WHOLE, time_call, timed_calls_of, timer_to_bare_loop_ratio
from stepscope.record.ceilings import ceilings
from stepscope.record.train import torch_threads
from stepscope.units import plural

_MOST = 0.5  # of the memory that is free: a kernel may want as much again for its own


def kernel_plan(request: Kernels) -> Plan:
    """Time the kernels in this process, one after the other, shuffled: what drifts must not look like an axis."""
    imported = None if request.import_ is None else tables.read_tables(request.import_, request.import_device)
    todo = _requested_kernels(request)
    places = {", ".join(f"{axis} {at}" for axis, at in where.items()): where for where in conv_5_vs_3_places(todo)}
    order = list(todo)
    random.Random(request.seed).shuffle(order)
    tasks: dict[str, tuple[str, Callable[[], Mapping[str, Any]]]] = {
        "ceilings": ("the ceilings of this device", lambda: _reached_ceilings(request)),
        **{kernel.id: (kernel.called, partial(_time_kernel, kernel, request)) for kernel in order},
        **{
            _pair_id(where): (f"5x5 then 3x3 against 7x7, {name}", partial(_compare_convolutions, where, request))
            for name, where in places.items()
        },
        "bare-loop": ("the timer against a bare loop", lambda: _timer_against_bare_loop(todo, request)),
    }

    def judge(results: Mapping[str, Result]) -> Findings:
        rows = [row for kernel in todo for row in _rate_rows(kernel, results[kernel.id])]
        skipped = {point.called: results[point.id]["skipped"] for point in todo if "skipped" in results[point.id]}
        pairs = {name: results[_pair_id(where)] for name, where in places.items()}
        bare = {op: timed for op, timed in results["bare-loop"].items() if isinstance(timed, dict)}
        evidence = Evidence(rows, results["ceilings"], pairs, bare, skipped)
        return build_findings(evidence, imported, f"{device_name()}, {request.device}")

    return Plan(
        [Point(name, title) for name, (title, _) in tasks.items()],
        judge,
        measure=lambda point: tasks[point.id][1](),
        around=lambda folder: torch_threads(request.threads),
    )


def _requested_kernels(request: Kernels) -> list[Kernel]:
    if request.of is None:
        return sweep_kernels(request.ops, request.sweep)
    from stepscope import workloads

    return kernels_of(workloads.find(request.of), request.batch[0] if request.batch else None, request.ops)


def _pair_id(where: Mapping[str, Any]) -> str:
    return "five-three-" + "-".join(f"{axis}{at}" for axis, at in where.items())


def _time_kernel(kernel: Kernel, request: Kernels) -> dict[str, Any]:
    """The parts of a kernel with their times; or why it was not timed."""
    why = _does_not_fit(kernel, request.device)
    if why is not None:
        return {"skipped": why}
    try:
        return {
            "parts": {
                name: {**time_call(part.call, request.seconds, request.threads).to_dict(), "flops": part.flops,
                       "bytes": part.bytes}
                for name, part in timed_calls_of(kernel, request.device).items()
            }
        }  # fmt: skip
    except (RuntimeError, MemoryError) as error:  # a kernel that this build lacks, or memory that ran out
        return {"skipped": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"}


def _does_not_fit(kernel: Kernel, device: str) -> str | None:
    """Before anything is allocated: on tensors without numbers."""
    needs = max(part.bytes for part in timed_calls_of(kernel, "meta").values())
    free = torch.cuda.mem_get_info()[0] if device != "cpu" else limit_of_this_machine().bytes
    if needs <= _MOST * free:
        return None
    return f"its tensors need {needs / 1e6:.0f} MB and {free / 1e6:.0f} MB are free"


def _compare_convolutions(where: Mapping[str, Any], request: Kernels) -> dict[str, Any]:
    """5x5 then 3x3 against 7x7 at a place, measured in turn."""
    made = {
        size: Kernel("conv", same_padding_conv_sizes({**where, "kernel": size}), {**where, "kernel": size})
        for size in (3, 5, 7)
    }
    for kernel in made.values():
        why = _does_not_fit(kernel, request.device)
        if why is not None:
            return {"skipped": why}
    calls = {
        size: {name: part.call for name, part in timed_calls_of(kernel, request.device).items()}
        for size, kernel in made.items()
    }
    return {"parts": measured_five_three(calls, 3 * request.seconds)}


def _timer_against_bare_loop(todo: Sequence[Kernel], request: Kernels) -> dict[str, Any]:
    """Return, for the first kernel of each op, the ratio of the timer to a bare loop."""
    result: dict[str, Any] = {}
    for kernel in todo:
        if kernel.op in result or _does_not_fit(kernel, request.device) is not None:
            continue
        parts = timed_calls_of(kernel, request.device)
        name = FORWARD if FORWARD in parts else next(iter(parts))
        with contextlib.suppress(RuntimeError, MemoryError):  # as in its cell: another of the op may run
            timed = timer_to_bare_loop_ratio(parts[name].call, request.threads)
            result[kernel.op] = {"called": kernel.called, "part": name, **timed}
    return result


def _rate_rows(kernel: Kernel, cell: Mapping[str, Any]) -> Iterator[KernelRate]:
    for part, of in cell.get("parts", {}).items():
        yield KernelRate(HERE, kernel, part, of["ns"], of["low_ns"], of["high_ns"], of["flops"], of["bytes"])


_WITHIN = 0.03  # that the timer and a bare loop may differ
_MOST_CLIFFS = 25
_WHOLE_PARTS = ("forward and both", "update")  # the parts that add up to a training step


@dataclass(frozen=True)
class Evidence:
    """Results of this device: rows, roofs, 5x5 then 3x3 by place, timer against bare loop, and what was not timed."""

    rows: Sequence[KernelRate]
    roofs: Mapping[str, Any]
    pairs: Mapping[str, Mapping[str, Any]]
    bare: Mapping[str, Mapping[str, Any]]
    skipped: Mapping[str, str]


def build_findings(evidence: Evidence, brought: ProfilerTables | None, device: str) -> Findings:
    """The findings from evidence that has been gathered."""
    rows = [*evidence.rows, *(brought.rows() if brought else [])]
    pairs = _pairs(evidence, brought)
    tables = [
        _step_table(rows), _sweet_table(rows), _cliff_table(rows), _pair_table(pairs), _roof_table(evidence.roofs),
        _bare_table(evidence.bare), *([_imported_table(rows)] if brought else []), _every(rows),
    ]  # fmt: skip
    return Findings(
        title="The kernels of training on this device",
        answer=_answer(rows, pairs, evidence.roofs),
        tables=tuple(table for table in tables if table.rows),
        notes=tuple(_notes(evidence, brought, pairs)),
        frames=_frames(rows, evidence.roofs),
        device=device,
    )


def _pairs(evidence: Evidence, brought: ProfilerTables | None) -> list[dict[str, Any]]:
    here = [
        {"source": HERE, "where": where, "part": part, **ratio}
        for where, cell in evidence.pairs.items()
        for part, ratio in cell.get("parts", {}).items()
    ]
    there = list(imported_conv_5_vs_3(brought.by_size())) if brought else []
    return [{**row, "verdict": below_one_verdict(row)} for row in here + there]


def _answer(rows: Sequence[KernelRate], pairs: Sequence[Mapping[str, Any]], roofs: Mapping[str, Any]) -> str:
    gflops, gbytes = roofs["flops_per_s"] / 1e9, roofs["bytes_per_s"] / 1e9
    parts = [f"At its best this device did {gflops:.3g} GFLOP/s and {gbytes:.3g} GB/s."]
    own = [row for row in rows if row.source == HERE]
    if own:
        best = max(own, key=lambda row: row.flops_per_s)
        parts.append(
            f"The most useful work a second: {best.kernel.called}, {best.part}, {best.flops_per_s / 1e9:.3g} GFLOP/s."
        )
    if any(row.kernel.place for row in own):
        steep, brought = len(cliffs(own)), len(cliffs([row for row in rows if row.source != HERE]))
        beside = f" here and {plural(brought, 'cliff')} in the imported tables" if brought else ""
        what = f"places where a useful FLOP is {JUMP:g}x slower than at the neighbour."
        parts.append(f"{plural(steep, 'cliff')}{beside}: {what}")
    elif own:
        op, spent, whole = _most_expensive_op(own)
        parts.append(f"Of {whole / 1e6:.3g} ms that a step spends in these kernels, {op} takes {spent / whole:.0%}.")
    counts = {
        answer: sum(pair["verdict"] == answer and pair["source"] == HERE for pair in pairs)
        for answer in (HOLDS, FAILS, OPEN)
    }
    if sum(counts.values()):
        words = ", ".join(f"{answer} in {count}" for answer, count in counts.items() if count)
        parts.append(f"That a 5x5 and a 3x3 take less time than a 7x7 {words} of {sum(counts.values())} cases.")
    return " ".join(parts)


def _reached_ceilings(request: Kernels) -> dict[str, Any]:
    """Return the FLOP/s and B/s that this device reached at the most with these threads, and by what."""
    stated = ceilings(request.device, threads=request.threads)
    if stated is None:
        raise StepscopeError("the ceilings of this device could not be measured", "stepscope doctor --ceilings")
    found = read_ceilings(stated)
    return {
        "flops_per_s": found.peak_flops_per_s,
        "flops_by": found.peak_by,
        "bytes_per_s": found.peak_bytes_per_s,
        "bytes_by": found.streamed_by,
    }


def _sweet_table(rows: Sequence[KernelRate]) -> ResultTable:
    columns = (
        "source", "op", "part", "sweet spot", "ps/FLOP", "low", "high", "GFLOP/s", "dearest", "relative cost",
        "as good",
    )  # fmt: skip
    body: list[tuple[Value, ...]] = [
        (
            row.best.source, row.best.kernel.op, row.best.part, row.best.kernel.called, row.best.ps_per_flop,
            _end(row.best, "low"), _end(row.best, "high"), row.best.flops_per_s / 1e9, row.worst.kernel.called,
            row.worst.ps_per_flop / row.best.ps_per_flop, f"{row.alike} of {row.of - 1} others",
        )
        for row in best_kernels(rows)
    ]  # fmt: skip
    note = "Time for one useful FLOP, with its 95 % CI; as good: others whose CI reaches into it."
    return ResultTable("sweet-spots", "Where a useful FLOP takes least time", columns, tuple(body), note)


def _most_expensive_op(own: Sequence[KernelRate]) -> tuple[str, float, float]:
    """The op on which a step of the model spends most, ns of it and of all; forward and backward."""
    spent: dict[str, float] = defaultdict(float)
    for row in own:
        if row.part != WHOLE:
            spent[row.kernel.op] += row.ns * row.times
    op = max(spent, key=lambda name: spent[name])
    return op, spent[op], sum(spent.values())


def _step_table(rows: Sequence[KernelRate]) -> ResultTable:
    """Return the time that a step of a model spends in each op, from the calls and times of its kernels."""
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in rows:
        if row.source == HERE and not row.kernel.place and row.part != WHOLE:
            for index, value in enumerate((row.ns, row.flops, row.bytes)):
                sums[row.kernel.op, row.part][index] += value * row.times
    body = tuple((op, part, ns / 1e6, flops / ns, moved / ns) for (op, part), (ns, flops, moved) in sums.items() if ns)
    note = "Each part as often as a step runs it, alone and with its tensors in the caches it can have."
    return ResultTable("step", "What a step spends", ("op", "part", "ms a step", "GFLOP/s", "GB/s"), body, note)


def _cliff_table(rows: Sequence[KernelRate]) -> ResultTable:
    columns = ("source", "op", "part", "axis", "from", "to", "beside", "slowdown", "at least")
    body = tuple(
        (c.source, c.op, c.part, c.axis, c.before, c.after, c.beside, c.jump, c.low)
        for c in cliffs(rows)[:_MOST_CLIFFS]
    )
    note = f"Along an axis a useful FLOP is {JUMP:g}x slower or more, and the CIs do not explain it."
    return ResultTable("cliffs", "Cliffs", columns, body, note)


PAIR_COLUMNS = ("source", "where", "part", "3x3 ms", "5x5 ms", "7x7 ms", "(5x5 + 3x3) / 7x7", "low", "high", "holds")


def _pair_table(pairs: Sequence[Mapping[str, Any]]) -> ResultTable:
    names = ("source", "where", "part", "ms_3", "ms_5", "ms_7", "ratio", "low", "high", "verdict")
    body = tuple(tuple(pair[name] for name in names) for pair in pairs)
    note = "Here: median over rounds that run all three in turn. Imported: mean over the repeats, Student's 95 % CI."
    return ResultTable("five-three", "A 5x5 and then a 3x3 against a 7x7", PAIR_COLUMNS, body, note)


def _roof_table(roofs: Mapping[str, Any]) -> ResultTable:
    body = (
        ("arithmetic", roofs["flops_per_s"] / 1e9, "GFLOP/s", roofs["flops_by"]),
        ("memory", roofs["bytes_per_s"] / 1e9, "GB/s", roofs["bytes_by"]),
    )
    note = "Measured on this device. A kernel can lie above: its data in a cache, or an algorithm with fewer products."
    return ResultTable("ceilings", "Ceilings", ("of", "reached", "unit", "by"), body, note)


def _bare_table(bare: Mapping[str, Mapping[str, Any]]) -> ResultTable:
    body = tuple((of["called"], of["part"], of["ratio"], of["low"], of["high"], _agreement(of)) for of in bare.values())
    note = "The same calls in a plain loop, alternated with the timer: 1 is agreement."
    columns = ("kernel", "part", "timer / bare loop", "low", "high", "within 3 %")
    return ResultTable("bare-loop", "The timer against a bare loop", columns, body, note)


def _imported_table(rows: Sequence[KernelRate]) -> ResultTable:
    """Self times for a useful FLOP beside imported ones of the same sizes."""
    own = {
        (row.part, tuple(sorted(row.kernel.place.items()))): row
        for row in rows
        if row.source == HERE and row.kernel.op == "conv"
    }
    body = []
    for row in rows:
        mine = own.get((row.part, tuple(sorted(row.kernel.place.items()))))
        if row.source != HERE and mine is not None:
            ratio = mine.ps_per_flop / row.ps_per_flop
            body.append((row.source, row.kernel.called, row.part, row.ps_per_flop, mine.ps_per_flop, ratio))
    columns = ("source", "kernel", "part", "imported ps/FLOP", "here ps/FLOP", "here / imported")
    note = "Time for a useful FLOP, since the imported convolutions were not padded and did a little less work."
    return ResultTable("imported", "Against the imported tables", columns, tuple(body), note)


def _every(rows: Sequence[KernelRate]) -> ResultTable:
    columns = ("source", "kernel", "part", "times a step", "us", "low", "high", "GFLOP/s", "GB/s", "FLOP/B")
    body = tuple(
        (
            row.source, row.kernel.called, row.part, row.times, row.ns / 1e3, _us(row.low_ns), _us(row.high_ns),
            row.flops_per_s / 1e9, row.bytes_per_s / 1e9, row.flops / row.bytes,
        )
        for row in rows
    )  # fmt: skip
    note = "Useful FLOPs: products and sums as written. Bytes: tensors in and out, each once."
    return ResultTable("kernels", "Every kernel", columns, body, note)


def _notes(evidence: Evidence, brought: ProfilerTables | None, pairs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for called, why in evidence.skipped.items():
        yield f"not timed: {called}: {why}"
    for where, cell in evidence.pairs.items():
        if "skipped" in cell:
            yield f"5x5 then 3x3 against 7x7, {where}: {cell['skipped']}"
    if not any(pair["source"] == HERE for pair in pairs):
        yield "5x5 then 3x3 against 7x7 was not tested here: it needs a sweep of conv over kernels 3, 5 and 7"
    if not any(row.kernel.place for row in evidence.rows):
        yield "shapes of a model lie on no axis: cliffs need a sweep"
    off = [of["called"] for of in evidence.bare.values() if _agreement(of) == "no"]
    if off:
        why = "background CPU load, or a call takes microseconds"
        yield f"timer and bare loop differ by more than 3 % for {'; '.join(off)}: {why}"
    if brought is not None:
        yield f"{len(brought.tables)} tables were imported; the first repeat of each kernel was excluded"
        if brought.unnamed:
            yield f"no table says its device: name it with --import-device: {', '.join(brought.unnamed)}"
        if brought.refused:
            yield f"{len(brought.refused)} files were not: {'; '.join(brought.refused[:3])}"


def _frames(rows: Sequence[KernelRate], roofs: Mapping[str, Any]) -> dict[str, pl.DataFrame]:
    if not rows:
        return {}
    every = rates_frame(rows)
    own = every.filter(pl.col("source") == HERE).unique("kernel_id", keep="first", maintain_order=True)
    whole = every.filter(pl.col("source") == HERE).unique(["kernel_id", "part"], keep="first", maintain_order=True)
    spent = pl.col("ns") * pl.col("count")
    reached = {"roof": ["compute", "memory"], "value": [roofs["flops_per_s"], roofs["bytes_per_s"]]}
    points = whole.with_columns(
        name=pl.format("{}, {}", "called", "part"),
        flop_per_byte=pl.col("flops") / pl.col("bytes"),
        share=spent / spent.filter(pl.col("part").is_in(_WHOLE_PARTS)).sum(),  # the other parts are in these
    ) if len(own) else whole  # fmt: skip
    frames = {"roofline": points, "roofs": pl.DataFrame(reached), "axes": every.filter(pl.col("axis").is_not_null())}
    return {name: frame for name, frame in frames.items() if not frame.is_empty()}


def _agreement(of: Mapping[str, Any]) -> str:
    """Return whether timer and bare loop agree within _WITHIN: undecided where the CI reaches out of it, or into it."""
    if of["low"] is None or of["high"] is None:
        return "cannot tell"
    if of["low"] >= 1 - _WITHIN and of["high"] <= 1 + _WITHIN:
        return "yes"
    return "cannot tell" if of["low"] <= 1 + _WITHIN and of["high"] >= 1 - _WITHIN else "no"


def _end(row: KernelRate, side: str) -> float | None:
    return None if row.low_ns is None else row.bound(side)


def _us(ns: float | None) -> float | None:
    return None if ns is None else ns / 1e3
