"""`stepscope study kernels`: time every kernel of the request, compare with the device's ceilings, and report."""

from __future__ import annotations

import contextlib
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from stepscope.analysis.device.occupancy import OTHERS
from stepscope.analysis.results import Findings, ResultTable, Value
from stepscope.experiments.engine.engine import Plan, Point, Result, device_name
from stepscope.experiments.engine.sweep_points import in_rounds
from stepscope.experiments.kernels import OPS, Kernels
from stepscope.experiments.kernels import rates as tables
from stepscope.experiments.kernels.measurements import (
    MOST_ATTEMPTS,
    VISITS,
    background_cores,
    compare_convolutions,
    compare_timer_with_bare_loop,
    count_attempts,
    measure_with_load,
    pair_id,
    reached_ceilings,
    time_kernel,
)
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
    rates_frame,
)
from stepscope.experiments.kernels.shapes import Kernel, kernels_of, sweep_kernels
from stepscope.experiments.kernels.timing import WHOLE
from stepscope.record.train import torch_threads
from stepscope.runfolder.schema import QUIET
from stepscope.units import percent, plural


def kernel_plan(request: Kernels) -> Plan:
    """Time the kernels in this process, one after the other, shuffled: what drifts must not look like an axis."""
    imported = None if request.import_ is None else tables.read_tables(request.import_, request.import_device)
    todo = _requested_kernels(request)
    places = {", ".join(f"{axis} {at}" for axis, at in where.items()): where for where in conv_5_vs_3_places(todo)}
    tasks: dict[str, tuple[str, Callable[[], Mapping[str, Any]]]] = {
        "ceilings": ("the ceilings of this device", lambda: reached_ceilings(request)),
        **{
            f"{kernel.id}-{visit}": (f"{kernel.label}, {visit + 1} of {VISITS}", partial(time_kernel, kernel, request))
            for kernel, visit in in_rounds(todo, VISITS, request.seed)
        },
        **{
            pair_id(where): (f"5x5 then 3x3 against 7x7, {name}", partial(compare_convolutions, where, request))
            for name, where in places.items()
        },
        "bare-loop": ("the timer against a bare loop", lambda: compare_timer_with_bare_loop(todo, request)),
    }

    def judge(results: Mapping[str, Result]) -> Findings:
        timed = [(kernel, [results[f"{kernel.id}-{visit}"] for visit in range(VISITS)]) for kernel in todo]
        skipped = {kernel.label: cell["skipped"] for kernel, cells in timed for cell in cells if "skipped" in cell}
        complete = [(kernel, cells) for kernel, cells in timed if kernel.label not in skipped]
        rows = [row for kernel, cells in complete for row in _rate_rows(kernel, cells)]
        pairs = {name: results[pair_id(where)] for name, where in places.items()}
        ratios = results["bare-loop"]
        bare = {op: ratios[op] for op in OPS if op in ratios}
        evidence = Evidence(rows, results["ceilings"], pairs, bare, skipped, background_cores(results.values()))
        return build_findings(evidence, imported, f"{device_name()}, {request.device}")

    folders: list[Path] = []

    @contextlib.contextmanager
    def around(folder: Path) -> Iterator[None]:
        folders[:] = [folder]
        with torch_threads(request.threads):
            yield

    def measure(point: Point) -> Mapping[str, Any]:
        with count_attempts(folders[0], point.id) as count:
            if count > MOST_ATTEMPTS and point.id != "ceilings":
                return {"skipped": f"this process was ended {MOST_ATTEMPTS} times while it was timed"}
            return measure_with_load(tasks[point.id][1])

    return Plan([Point(name, title) for name, (title, _) in tasks.items()], judge, measure, around=around)


def _requested_kernels(request: Kernels) -> list[Kernel]:
    if request.of is None:
        return sweep_kernels(request.ops, request.sweep)
    from stepscope import workloads

    return kernels_of(workloads.find(request.of), request.batch[0] if request.batch else None, request.ops)


def _rate_rows(kernel: Kernel, visits: Sequence[Mapping[str, Any]]) -> Iterator[KernelRate]:
    """Yield the rate of each part: the median of its visits, and what the intervals of all of them cover."""
    for part, first in visits[0]["parts"].items():
        timings = [visit["parts"][part] for visit in visits]
        low = min(of["least_ns"] if of["low_ns"] is None else of["low_ns"] for of in timings)
        high = max(of["most_ns"] if of["high_ns"] is None else of["high_ns"] for of in timings)
        ns = statistics.median(of["ns"] for of in timings)
        yield KernelRate(HERE, kernel, part, ns, low, high, first["flops"], first["bytes"])


_WITHIN = 0.03  # that the timer and a bare loop may differ
_MOST_CLIFFS = 25
_WHOLE_PARTS = ("forward and both", "update")  # the parts that add up to a training step


@dataclass(frozen=True)
class Evidence:
    """Results of this device: rows, roofs, 5x5 then 3x3 by place, timer against bare loop, and what was not timed.

    background_cores: mean background CPU load meanwhile, in cores.
    """

    rows: Sequence[KernelRate]
    roofs: Mapping[str, Any]
    pairs: Mapping[str, Mapping[str, Any]]
    bare: Mapping[str, Mapping[str, Any]]
    skipped: Mapping[str, str]
    background_cores: float | None = None


def build_findings(evidence: Evidence, imported: ProfilerTables | None, device: str) -> Findings:
    """The findings from evidence that has been gathered."""
    rows = [*evidence.rows, *(imported.rows() if imported else [])]
    pairs = _judged_pairs(evidence, imported)
    tables = [
        _step_table(rows), _sweet_table(rows), _cliff_table(rows), _pair_table(pairs), _roof_table(evidence.roofs),
        _bare_table(evidence.bare), *([_imported_table(rows)] if imported else []), _kernel_table(rows),
    ]  # fmt: skip
    return Findings(
        title="The kernels of training on this device",
        answer=_answer(rows, pairs, evidence.roofs),
        tables=tuple(table for table in tables if table.rows),
        notes=tuple(_limit_notes(evidence, imported, pairs)),
        frames=_frames(rows, evidence.roofs),
        device=device,
    )


def _judged_pairs(evidence: Evidence, imported: ProfilerTables | None) -> list[dict[str, Any]]:
    here = [
        {"source": HERE, "where": where, "part": part, **ratio}
        for where, cell in evidence.pairs.items()
        for part, ratio in cell.get("parts", {}).items()
    ]
    there = list(imported_conv_5_vs_3(imported.by_size())) if imported else []
    return [{**row, "verdict": below_one_verdict(row)} for row in here + there]


def _answer(rows: Sequence[KernelRate], pairs: Sequence[Mapping[str, Any]], roofs: Mapping[str, Any]) -> str:
    disturbed = ", disturbed by other load," if _is_disturbed(roofs) else ""
    reached = " and ".join(f"{rate:.3g} {unit}" for _, rate, unit, _ in _rates_reached(roofs))
    parts = [f"At its best this device{disturbed} did {reached}."]
    own = [row for row in rows if row.source == HERE]
    if own:
        best = max(own, key=lambda row: row.flops_per_s)
        parts.append(
            f"The most useful work a second: {best.kernel.label}, {best.part}, {best.flops_per_s / 1e9:.3g} GFLOP/s."
        )
    if any(row.kernel.place for row in own):
        steep, imported_cliffs = len(cliffs(own)), len(cliffs([row for row in rows if row.source != HERE]))
        beside = f" here and {plural(imported_cliffs, 'cliff')} in the imported tables" if imported_cliffs else ""
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


def _sweet_table(rows: Sequence[KernelRate]) -> ResultTable:
    columns = (
        "source", "op", "part", "sweet spot", "ps/FLOP", "low", "high", "GFLOP/s", "dearest", "relative cost",
        "as good",
    )  # fmt: skip
    body: list[tuple[Value, ...]] = [
        (
            row.best.source, row.best.kernel.op, row.best.part, row.best.kernel.label, row.best.ps_per_flop,
            _interval_end_ps(row.best, "low"), _interval_end_ps(row.best, "high"), row.best.flops_per_s / 1e9,
            row.worst.kernel.label, row.worst.ps_per_flop / row.best.ps_per_flop, f"{row.alike} of {row.of - 1} others",
        )
        for row in best_kernels(rows)
    ]  # fmt: skip
    note = "Time for one useful FLOP, with its 95 % CI; as good: others whose CI reaches into it."
    return ResultTable("sweet-spots", "Where a useful FLOP takes least time", columns, tuple(body), note)


def _is_disturbed(roofs: Mapping[str, Any]) -> bool:
    return (roofs.get("run_queue_share") or 0.0) > QUIET


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
    note = f"Along an axis a useful FLOP is {JUMP:g}x slower or more, and the CIs of {VISITS} visits do not explain it."
    return ResultTable("cliffs", "Cliffs", columns, body, note)


PAIR_COLUMNS = ("source", "where", "part", "3x3 ms", "5x5 ms", "7x7 ms", "(5x5 + 3x3) / 7x7", "low", "high", "holds")


def _pair_table(pairs: Sequence[Mapping[str, Any]]) -> ResultTable:
    names = ("source", "where", "part", "ms_3", "ms_5", "ms_7", "ratio", "low", "high", "verdict")
    body = tuple(tuple(pair[name] for name in names) for pair in pairs)
    note = "Here: median over rounds that run all three in turn. Imported: mean over the repeats, Student's 95 % CI."
    return ResultTable("five-three", "A 5x5 and then a 3x3 against a 7x7", PAIR_COLUMNS, body, note)


def _rates_reached(roofs: Mapping[str, Any]) -> Iterator[tuple[str, float, str, str]]:
    yield "arithmetic", roofs["flops_per_s"] / 1e9, "GFLOP/s", roofs["flops_by"]
    if roofs["bytes_per_s"] is not None:
        yield "memory", roofs["bytes_per_s"] / 1e9, "GB/s", roofs["bytes_by"]


def _roof_table(roofs: Mapping[str, Any]) -> ResultTable:
    body = tuple(_rates_reached(roofs))
    note = "Measured on this device. A kernel can lie above: its data in a cache, or an algorithm with fewer products."
    return ResultTable("ceilings", "Ceilings", ("of", "reached", "unit", "by"), body, note)


def _bare_table(bare: Mapping[str, Mapping[str, Any]]) -> ResultTable:
    body = tuple((of["kernel"], of["part"], of["ratio"], of["low"], of["high"], _agreement(of)) for of in bare.values())
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
            body.append((row.source, row.kernel.label, row.part, row.ps_per_flop, mine.ps_per_flop, ratio))
    columns = ("source", "kernel", "part", "imported ps/FLOP", "here ps/FLOP", "here / imported")
    note = "Time for a useful FLOP, since the imported convolutions were not padded and did a little less work."
    return ResultTable("imported", "Against the imported tables", columns, tuple(body), note)


def _kernel_table(rows: Sequence[KernelRate]) -> ResultTable:
    columns = ("source", "kernel", "part", "times a step", "us", "low", "high", "GFLOP/s", "GB/s", "FLOP/B")
    body = tuple(
        (
            row.source, row.kernel.label, row.part, row.times, row.ns / 1e3, row.low_ns and row.low_ns / 1e3,
            row.high_ns and row.high_ns / 1e3, row.flops_per_s / 1e9, row.bytes_per_s / 1e9, row.flops / row.bytes,
        )
        for row in rows
    )  # fmt: skip
    note = "Useful FLOPs: products and sums as written. Bytes: tensors in and out, each once."
    return ResultTable("kernels", "Every kernel", columns, body, note)


def _limit_notes(
    evidence: Evidence, imported: ProfilerTables | None, pairs: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    for label, why in evidence.skipped.items():
        yield f"not timed: {label}: {why}"
    for where, cell in evidence.pairs.items():
        if "skipped" in cell:
            yield f"5x5 then 3x3 against 7x7, {where}: {cell['skipped']}"
    if not any(pair["source"] == HERE for pair in pairs):
        yield "5x5 then 3x3 against 7x7 was not tested here: it needs a sweep of conv over kernels 3, 5 and 7"
    if not any(row.kernel.place for row in evidence.rows):
        yield "shapes of a model lie on no axis: cliffs need a sweep"
    if evidence.background_cores is not None and evidence.background_cores > OTHERS:
        load = f"{evidence.background_cores:.2g} cores were busy with other processes"
        yield f"{load}: times are not the kernels' alone; repeat the study on a quiet machine"
    if evidence.roofs["bytes_per_s"] is None:
        yield "the ceiling of the memory is not known: other load disturbed its probe in every block; repeat the study"
    if _is_disturbed(evidence.roofs):
        waited = percent(evidence.roofs["run_queue_share"], 0)
        yield f"the ceilings are too low: their probe waited for a CPU core in {waited} of its time; repeat the study"
    off = [of["kernel"] for of in evidence.bare.values() if _agreement(of) == "no"]
    if off:
        why = "background CPU load, or a call takes microseconds"
        yield f"timer and bare loop differ by more than 3 % for {'; '.join(off)}: {why}"
    if imported is not None:
        yield f"{len(imported.tables)} tables were imported; of several repeats of a kernel the first was excluded"
        if imported.unnamed:
            yield f"no table says its device: name it with --import-device: {', '.join(imported.unnamed)}"
        if imported.refused:
            yield f"{len(imported.refused)} files were not: {'; '.join(imported.refused[:3])}"


def _frames(rows: Sequence[KernelRate], roofs: Mapping[str, Any]) -> dict[str, pl.DataFrame]:
    if not rows:
        return {}
    every = rates_frame(rows)
    own = every.filter(pl.col("source") == HERE).unique("kernel_id", keep="first", maintain_order=True)
    whole = every.filter(pl.col("source") == HERE).unique(["kernel_id", "part"], keep="first", maintain_order=True)
    spent = pl.col("ns") * pl.col("count")
    roof_rows = [("compute", roofs["flops_per_s"]), ("memory", roofs["bytes_per_s"])]
    reached = pl.DataFrame(roof_rows, {"roof": pl.String, "value": pl.Float64}, orient="row").drop_nulls("value")
    points = whole.with_columns(
        name=pl.format("{}, {}", "kernel", "part"),
        flop_per_byte=pl.col("flops") / pl.col("bytes"),
        share=spent / spent.filter(pl.col("part").is_in(_WHOLE_PARTS)).sum(),  # the other parts are in these
    ) if len(own) else whole  # fmt: skip
    frames = {"roofline": points, "roofs": reached, "axes": every.filter(pl.col("axis").is_not_null())}
    return {name: frame for name, frame in frames.items() if not frame.is_empty()}


def _agreement(of: Mapping[str, Any]) -> str:
    """Return whether timer and bare loop agree within _WITHIN: undecided where the CI reaches out of it, or into it."""
    if of["low"] is None or of["high"] is None:
        return "cannot tell"
    if of["low"] >= 1 - _WITHIN and of["high"] <= 1 + _WITHIN:
        return "yes"
    return "cannot tell" if of["low"] <= 1 + _WITHIN and of["high"] >= 1 - _WITHIN else "no"


def _interval_end_ps(row: KernelRate, side: str) -> float | None:
    return None if row.low_ns is None else row.bound(side)
