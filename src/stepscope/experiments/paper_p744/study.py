"""The heap of the 2020 project's networks on dry runs, and its statements, each judged beside what it printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import polars as pl

from stepscope import workloads
from stepscope.analysis.memory.events import events_of_device, live_tensors
from stepscope.analysis.results import Findings, ResultTable, Value
from stepscope.experiments.breakdown.study import OPERATORS, op_family
from stepscope.experiments.engine.engine import Result
from stepscope.experiments.kernels.rates import HERE
from stepscope.experiments.paper_p744 import LENET, MOBILENET, RESNET, PaperP744
from stepscope.footprint.chart_data import INFERENCE, TRAINING, inference_job
from stepscope.footprint.jobs import workload_job
from stepscope.record.dry.dry_run import DryRunStopped, dry_run
from stepscope.record.dry.platform import this_platform
from stepscope.record.dry.workspaces import Workspaces
from stepscope.units import category_label


def count_heap(orders: Mapping[str, Any]) -> dict[str, Any]:
    """Return the heap of training and of inference, in B: peak, and what is live at it and allocated in the step.

    `live` and `allocated` are lists of [call site, holder, bytes]; the call site is the operator that allocated, by
    family. `over_step` has [allocations since the step began, call site, bytes] at most 200 instants.
    """
    job, hidden = workload_job(workloads.find(orders["workload"])), Workspaces(this_platform())
    heaps: dict[str, Any] = {}
    for kind, of in ((TRAINING, job), (INFERENCE, inference_job(job))):
        try:
            events = dry_run(of, orders["batch"], hidden).events()
        except DryRunStopped as stopped:
            return {"status": "refused", "reason": f"fake tensors stopped at {stopped}"}
        heaps[kind] = _heap_of(events)
    return heaps


def _heap_of(events: pl.DataFrame) -> dict[str, Any]:
    rows = events_of_device(events)
    allocations = rows.filter(pl.col("bytes") > 0).unique("tensor", keep="first")
    sites = {op: op_family(op) for op in allocations["op"].unique() if op is not None}
    built = pl.col("op").is_null() | pl.col("category").is_in(("parameter", "buffer", "input"))
    site = pl.when(built).then(pl.lit(_BUILT)).otherwise(pl.col("op").replace_strict(sites, default=_BUILT))
    rows = rows.join(allocations.select("tensor", site.alias("site")), on="tensor", maintain_order="left")
    live = rows["bytes"].cum_sum()
    at = int(live.arg_max() or 0)
    tensors = live_tensors(rows[: at + 1]).join(rows.select("tensor", "site").unique("tensor"), on="tensor")
    own = pl.col("step") == rows["step"][at]  # a dry run makes two steps: the first without the optimizer's state
    allocated = rows.filter(own & (pl.col("bytes") > 0) & (pl.col("site") != _BUILT)).with_columns(category="phase")
    return {
        "peak": int(live[at]),
        "live": _bytes_by_site(tensors),
        "allocated": _bytes_by_site(allocated),
        "over_step": _over_step(rows, own),
    }


_BUILT = "model and input"  # parameters, buffers and the batch: no operator of the step allocated them
_INSTANTS = 200
_SHOWN = 0.001  # of the peak or of what is allocated
_AT_PEAK, _ALLOCATED = "MB at the peak", "MB allocated a step"


def _bytes_by_site(rows: pl.DataFrame) -> list[list[Any]]:
    sums = rows.group_by("site", "category").agg(pl.col("bytes").sum()).sort("bytes", "site", descending=[True, False])
    return [list(row) for row in sums.iter_rows()]


def _over_step(rows: pl.DataFrame, own: pl.Expr) -> list[list[Any]]:
    """Live bytes by call site in one step; of each stretch of it the instant with the most, so that no peak is lost."""
    sites = rows["site"].unique(maintain_order=True).to_list()
    by_site = [pl.when(pl.col("site") == name).then("bytes").otherwise(0).cum_sum().alias(name) for name in sites]
    series = rows.select("step", pl.col("bytes").cum_sum().alias("live"), *by_site).filter(own).with_row_index("at")
    width = -(-len(series) // _INSTANTS)
    stretch = (pl.col("at") // width).alias("stretch")
    instants = series.group_by(stretch, maintain_order=True).agg(pl.all().sort_by("live").last())
    long = instants.select("at", *sites).unpivot(sites, index="at", variable_name="site", value_name="bytes")
    return [list(row) for row in long.iter_rows()]


def heap_findings(request: PaperP744, results: Mapping[str, Result]) -> Findings:
    """The findings of the heap from the dry runs of each network."""
    counted = {name: result for name, result in results.items() if result["status"] == "ok"}
    notes = [f"{name}: {of['status']}: {of['reason']}" for name, of in results.items() if of["status"] != "ok"]
    heaps = [(network, kind, counted[network][kind]) for network in counted for kind in (TRAINING, INFERENCE)]
    series = [
        (f"{network}, batch {request.batch}", kind, at, site, size / 1e6)
        for network, kind, heap in heaps
        for at, site, size in heap["over_step"]
    ]
    columns = {"model": pl.String, "kind": pl.String, "at": pl.Int64, "site": pl.String, "mb": pl.Float64}
    frames = {"heap-over-step": pl.DataFrame(series, schema=columns, orient="row")} if series else {}
    tables = (_site_table(heaps), _holder_table(heaps))
    return Findings(_TITLE, _heap_answer(counted), tables, notes=tuple(notes), frames=frames)


def _site_table(heaps: Sequence[tuple[str, str, Mapping[str, Any]]]) -> ResultTable:
    rows: list[tuple[Value, ...]] = []
    for network, kind, heap in heaps:
        live, allocated = sum_by_site(heap["live"]), sum_by_site(heap["allocated"])
        whole, churn = sum(live.values()), sum(allocated.values())
        for site in sorted({*live, *allocated}, key=lambda name: (-live.get(name, 0), -allocated.get(name, 0))):
            size, churned = live.get(site, 0), allocated.get(site, 0)
            if max(size / whole, churned / churn) < _SHOWN:
                continue
            rows.append((network, kind, site, size / 1e6, 100 * size / whole, churned / 1e6, 100 * churned / churn))
    columns = ("network", "mode", "call site", _AT_PEAK, "% of peak", _ALLOCATED, "% of allocated")
    note = "The call site is the operator that allocates, as massif sees it; all that a step allocates is beside it. "
    note += f"Those below {_SHOWN:.1%} of both are omitted."
    return ResultTable("heap-by-site", "The heap by call site", columns, tuple(rows), note)


def _holder_table(heaps: Sequence[tuple[str, str, Mapping[str, Any]]]) -> ResultTable:
    rows: list[tuple[Value, ...]] = []
    for network, kind, heap in heaps:
        sizes: dict[str, int] = {}
        for _, holder, size in heap["live"]:
            sizes[holder] = sizes.get(holder, 0) + size
        rows += [
            (network, kind, category_label(name), size / 1e6, 100 * size / heap["peak"]) for name, size in sizes.items()
        ]
        rows.append((network, kind, "whole peak", heap["peak"] / 1e6, 100.0))
    columns = ("network", "mode", "category", _AT_PEAK, "%")
    note = "Live tensors of a dry run with the kernels of this CPU, without the process around them (stepscope fit)."
    return ResultTable("heap-by-holder", "The heap by category of tensor", columns, tuple(rows), note)


def sum_by_site(sums: Sequence[Sequence[Any]]) -> dict[str, int]:
    """Bytes by call site, of the lists that `count_heap` returns."""
    sizes: dict[str, int] = {}
    for site, _, size in sums:
        sizes[site] = sizes.get(site, 0) + size
    return sizes


def _heap_answer(counted: Mapping[str, Mapping[str, Any]]) -> str:
    if not {MOBILENET, RESNET} <= set(counted):
        return ""
    mobile, res = (counted[name][TRAINING]["peak"] / 1e6 for name in (MOBILENET, RESNET))
    return f"Training holds {mobile:.4g} MB in MobileNetV1 and {res:.4g} MB in ResNet18."


@dataclass(frozen=True)
class Judgement:
    """A statement of the project, what it printed for it, and the verdict here with its evidence."""

    where: str
    says: str
    printed: str
    verdict: str
    because: str


_MODEST = 30  # % of memory
_COUNTED = 4  # of two networks each in training and in inference
HOLDS, FAILS, OPEN, UNMEASURED = _VERDICTS = "holds", "does not hold", "cannot tell", "not measured"
_TITLE = "The 2020 project P744 on this device"


def project_findings(request: PaperP744, findings: Mapping[str, Findings]) -> Findings:
    """Join the findings of all parts, and judge the project's statements by their tables."""
    parts = [*_judge_heap(findings["heap"]), *_judge_operators(request, findings)]
    parts += [*_judge_convolutions(findings), *_judge_partial(request, findings)]
    rows = tuple(astuple(judgement) for judgement in parts)
    columns = ("of it", "the project says", "it printed", "here", "because")
    note = "What it printed is from its text; its pictures were not measured. Verdicts follow from the tables below."
    tables = [ResultTable("statements", "What the project says, and this device", columns, rows, note)]
    notes: list[str] = []
    frames: dict[str, pl.DataFrame] = {}
    for name, part in findings.items():
        prefix = "" if name == "heap" else f"{name}-"
        heading = "" if name == "heap" else f"{_HEADINGS[name]}: "
        tables += [replace(t, name=f"{prefix}{t.name}", title=f"{heading}{t.title}") for t in part.tables]
        notes += [f"{heading}{note}" for note in part.notes]
        frames |= {f"{prefix}{frame}": rows for frame, rows in part.frames.items()}
    counts = Counter(judgement.verdict for judgement in parts)
    words = ", ".join(f"{verdict}: {counts[verdict]}" for verdict in _VERDICTS if counts[verdict])
    answer = f"{len(parts)} statements of the project ({words}). {findings['heap'].answer}"
    if request.small or request.batch != 32:
        here = f"{'32 x 32' if request.small else '224 x 224'} in batches of {request.batch}"
        notes.append(f"the heap is of {here}, the project's of 224 x 224 in 32: which network holds more may differ")
    if request.plan_ == "dry":
        notes.append("the plan dry trains nothing: --plan hour times operators and convolutions, and trains in parts")
    return Findings(_TITLE, answer, tuple(tables), notes=(*notes, *_NOTES), frames=frames)


_HEADINGS = {
    "figure-1": "Figure 1, operators", "figures-7-to-9": "Figures 7 to 9, convolutions",
    "figure-10": "Figure 10, LeNet in parts", "figure-11": "Figure 11, ResNet18 in parts",
    "figure-12": "Figure 12, transfer",
}  # fmt: skip
_NOTES = (
    "the project used PyTorch and TensorFlow of 2019 on a laptop, a Jetson TX2 and a P100; where kernels differ, its "
    "libraries may be why",
    "its transfer went from ImageNet to MINC; here LeNet goes from pieces of clothing to digits",
)


def _judge_heap(heap: Findings) -> Iterator[Judgement]:
    """Judge the statements of figures 2 to 6."""
    sites: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for row in _table_rows(heap, "heap-by-site"):
        if row["call site"] != _BUILT:
            sizes = (row[_AT_PEAK], row[_ALLOCATED])
            sites.setdefault((row["network"], row["mode"]), {})[row["call site"]] = sizes
    holders = _table_rows(heap, "heap-by-holder")
    peaks = {(row["network"], row["mode"]): row[_AT_PEAK] for row in holders if row["category"] == "whole peak"}
    for kind, printed in ((TRAINING, "4.4 and 3.0 GB (CPU), 4.0 and 3.3 GB (GPU)"), (INFERENCE, "")):
        mobile, res = peaks.get((MOBILENET, kind)), peaks.get((RESNET, kind))
        says = f"MobileNetV1 holds more than ResNet18 in {kind}"
        if mobile is None or res is None:
            yield Judgement("figures 2 to 6", says, printed, UNMEASURED, "a network could not be counted")
            continue
        verdict = HOLDS if mobile > res else FAILS
        yield Judgement("figures 2 to 6", says, printed, verdict, f"{mobile:.4g} and {res:.4g} MB at the peak")
    both = {key: of for key, of in sites.items() if key[0] != LENET}
    for says, place, name, column in (
        ("convolutions allocate the most memory, at the peak", 0, "convolution", 0),
        ("batch norm allocates the second most, at the peak", 1, "batch norm", 0),
        ("batch norm allocates the second most, over the whole step", 1, "batch norm", 1),
    ):
        by_network = {key: {site: pair[column] for site, pair in of.items()} for key, of in both.items()}
        yield _judge_site_rank("figures 2 to 5", says, by_network, place, name)


def _judge_site_rank(
    where: str, says: str, sizes: Mapping[tuple[str, str], Mapping[str, float]], place: int, name: str
) -> Judgement:
    """Whether a call site has this place (0: the most) in each network and kind of step; what is equal shares one."""
    if not sizes:
        return Judgement(where, says, "", UNMEASURED, "no network could be counted")
    others, ties = [], []
    for key, of in sizes.items():
        own = of.get(name, 0.0)
        if own <= 0 or sum(size > own for size in of.values()) != place:
            order = sorted((site for site in of if of[site] > 0), key=lambda site: -of[site])
            others.append(f"{', '.join(key)}: {order[place] if len(order) > place else 'nothing'}")
        ties += [f"{', '.join(key)}: as much as {site}" for site in of if site != name and of[site] == own > 0]
    reasons = [f"in each of {len(sizes)} (network and kind of step)", *ties]
    verdict = FAILS if others else HOLDS if len(sizes) == _COUNTED else OPEN
    return Judgement(where, says, "", verdict, "; ".join(others or reasons))


def _judge_operators(request: PaperP744, findings: Mapping[str, Findings]) -> Iterator[Judgement]:
    says, printed = "convolution takes at least twice the time of the next operator", "factor 2 (figure 1)"
    on_gpu = "" if request.device == "cpu" else "operators are timed on the CPU, which only launches them here"
    rows = [] if on_gpu else _table_rows(findings.get("figure-1"), "time")
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if (row["model"], row["mode"]) == (model, TRAINING)]
        times = {row["operator"]: _value_and_interval(row, "ms a step") for row in own if row["operator"] in OPERATORS}
        if "convolution" not in times or len(times) < 2:
            continue
        second = max((name for name in times if name != "convolution"), key=lambda name: times[name][0])
        verdict, ratio = _judge_time_ratio(times["convolution"], times[second], 2.0)
        yield Judgement("figure 1", f"{model}: {says}", printed, verdict, f"{ratio} of {second}")
    if not rows:
        yield Judgement("figure 1", says, printed, UNMEASURED, on_gpu or _why_unmeasured(findings, "figure-1"))


def _judge_time_ratio(above: Sequence[Any], below: Sequence[Any], least: float) -> tuple[str, str]:
    """Verdict whether a time is at least so many times another, by the ends of both 95 % CIs, and the ratio as text."""
    ratio = above[0] / below[0]
    if None in (*above, *below):
        return OPEN, f"{ratio:.3g} times (no CI)"
    low, high = above[1] / below[2] if below[2] else 0.0, above[2] / below[1] if below[1] else float("inf")
    text = f"{ratio:.3g} times [{low:.3g}, {high:.3g}]"
    return (HOLDS if low >= least else FAILS if high < least else OPEN), f"{text} the time"


def _judge_convolutions(findings: Mapping[str, Findings]) -> Iterator[Judgement]:
    """Judge the statements of figures 7 to 9, by the times along each axis and the table of 5x5 with 3x3."""
    part = findings.get("figures-7-to-9")
    axes = None if part is None else part.frames.get("axes")
    says = "a kernel beyond 5x5 is penalised: a useful FLOP of 7x7 takes longer than of 5x5"
    if part is None or axes is None:
        why = _why_unmeasured(findings, "figures-7-to-9")
        for where, what in (("figure 7", says), ("figure 7", _FIVE_THREE), ("figures 8, 9", _BATCH)):
            yield Judgement(where, what, "", UNMEASURED, why)
        return
    for which, batch, name in (("forward", 4, INFERENCE), ("forward and both", 32, TRAINING)):
        line = _time_per_flop_along_axis(axes, "kernel", which, f"batch {batch}, channels 32, size 256")
        what = f"{name}, batch {batch}: {says}"
        both = {5, 7} <= set(line)
        verdict, why = _judge_time_ratio(line[7], line[5], 1.0) if both else (UNMEASURED, "7x7 or 5x5 was not timed")
        yield Judgement("figure 7", what, "steeper from 5 to 7", verdict, why)
    for row in _table_rows(part, "five-three"):
        printed = "less on the Jetson, less so on a P100"
        source, where, which = row["source"], row["where"], row["part"]
        ratio, low, high = _value_and_interval(row, "(5x5 + 3x3) / 7x7")
        if source == HERE and which not in ("forward", "forward and both"):  # its inference and its training
            continue
        text = f"{ratio:.3g}" if low is None else f"{ratio:.3g} [{low:.3g}, {high:.3g}]"
        verdict = OPEN if row["holds"] == "cannot be judged" else row["holds"]
        yield Judgement("figure 7", f"{source}, {where}, {which}: {_FIVE_THREE}", printed, verdict, f"{text} of 7x7")
    for side in (3, 5, 7):
        for which, name in (("forward", INFERENCE), ("forward and both", TRAINING)):
            line = _time_per_flop_along_axis(axes, "batch", which, f"kernel {side}, channels 32, size 256")
            if len(line) < 2:
                continue
            few, many = min(line), max(line)
            verdict, ratio = _judge_time_ratio(line[few], line[many], 1.05)
            what = f"{side}x{side}, {name}: {_BATCH}"
            why = f"batch {few}: {ratio} of batch {many}"
            yield Judgement("figures 8, 9", what, "yes on the GPU, no on the CPU", verdict, why)


_FIVE_THREE = "a 5x5 and then a 3x3 take less time than a 7x7"
_BATCH = "a larger batch takes at least 5 % less time an image"


def _time_per_flop_along_axis(
    axes: pl.DataFrame, axis: str, part: str, beside: str
) -> dict[int, tuple[float, float | None, float | None]]:
    """ps for a useful FLOP, low and high along an axis of this device's convolutions, by the place on it."""
    rows = axes.filter(
        (pl.col("source") == HERE) & (pl.col("axis") == axis) & (pl.col("part") == part) & (pl.col("beside") == beside)
    )
    scale = 1e3 / rows["flops"]
    return {
        int(row[0]): (row[1], row[2], row[3])
        for row in rows.select("at", pl.col("ns") * scale, pl.col("low_ns") * scale, pl.col("high_ns") * scale).rows()
    }


def _judge_partial(request: PaperP744, findings: Mapping[str, Findings]) -> Iterator[Judgement]:
    """Judge the statements of figures 10 to 12, by the tables of accuracy and of savings."""
    easy, way = findings.get("figure-10"), "filters 60 %"
    where, says = "figure 10", "LeNet: training 60 % of the filters"
    if _table_rows(easy, "ways"):
        yield _judge_loss(easy, where, f"{says} loses little accuracy", "2 to 3 points", way, 5.0)
        savings = {row["way"]: row for row in _table_rows(easy, "savings")}
        if {"all", way} <= set(savings):
            whole, own = (_value_and_interval(savings[name], "ms a step") for name in ("all", way))
            verdict, ratio = _judge_time_ratio(whole, own, 2.0)
            yield Judgement(where, f"{says} takes at most half of the time", "", verdict, f"training all takes {ratio}")
            saved = savings[way]["of peak saved %"]
            if saved is not None:
                verdict = HOLDS if saved < _MODEST else FAILS
                because = f"{round(saved, 1) + 0:g} % of the peak of live tensors, bar {_MODEST} %"
                yield Judgement(where, f"{says} saves only little memory", "14 %", verdict, because)
    else:
        yield Judgement(
            where, f"{says} loses little accuracy", "2 to 3 points", UNMEASURED, _why_unmeasured(findings, "figure-10")
        )
    for name, where, subject, printed in (
        ("figure-11", "figure 11", "ResNet18: training 20 or 40 % of the filters loses much", "10 to 15 points"),
        ("figure-12", "figure 12", "transfer: training 20 or 60 % of the filters loses much", "a significant drop"),
    ):
        part = findings.get(name)
        ways = [row["way"] for row in _table_rows(part, "ways") if row["way"].startswith(("filters", "cumulative"))]
        for way in ways:
            as_is = "as its code does" if way.startswith("cumulative") else "as it describes"
            loss = _judge_loss(part, where, f"{subject} ({way}, {as_is})", printed, way, 5.0)
            opposite = {HOLDS: FAILS, FAILS: HOLDS}.get(loss.verdict, loss.verdict)
            yield replace(loss, verdict=opposite)
        if not ways:
            longer = "--plan night trains it" if name == "figure-11" and request.plan_ != "night" else ""
            yield Judgement(where, subject, printed, UNMEASURED, longer or _why_unmeasured(findings, name))


def _judge_loss(part: Findings | None, where: str, says: str, printed: str, way: str, little: float) -> Judgement:
    """Whether a way of training a part loses at most so many points of accuracy against training all.

    The interval is the widest that those of the two accuracies allow.
    """
    ways = {row["way"]: _value_and_interval(row, "accuracy %") for row in _table_rows(part, "ways")}
    data = next((note for note in part.notes if note.startswith("data: ")), "") if part is not None else ""
    if way not in ways or "all" not in ways:
        return Judgement(where, says, printed, UNMEASURED, "no training of it ended well")
    whole, own = ways["all"], ways[way]
    lost = whole[0] - own[0]
    if None in (*whole, *own):
        return Judgement(where, says, printed, OPEN, f"{lost:.3g} points (one seed gives no CI); {data}")
    low, high = whole[1] - own[2], whole[2] - own[1]
    verdict = HOLDS if high <= little else FAILS if low > little else OPEN
    why = f"{lost:.3g} points [{low:.3g}, {high:.3g}], bar {little:g}; {data}"
    return Judgement(where, says, printed, verdict, why)


def _table_rows(part: Findings | None, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table by the names of its columns; none where it is missing."""
    tables = () if part is None else part.tables
    return [dict(zip(table.columns, row, strict=True)) for table in tables if table.name == name for row in table.rows]


def _value_and_interval(row: Mapping[str, Any], column: str) -> tuple[Any, Any, Any]:
    """Return the value of a column with the bounds of its CI, in the columns "low" and "high"."""
    return row[column], row["low"], row["high"]


def _why_unmeasured(findings: Mapping[str, Findings], name: str) -> str:
    if name not in findings:
        return "--plan hour measures it"
    return findings[name].notes[0] if findings[name].notes else "nothing of it could be measured"
