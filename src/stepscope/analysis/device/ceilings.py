"""Ceilings of a device, as device.json has them: what an op call could take under them, and the roofline.

Roofline: Williams et al., 2009.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.time.accelerators import accelerator_without_kernels, launched_kernels
from stepscope.analysis.time.operators import CPU, OUTSIDE
from stepscope.arrays import Floats
from stepscope.errors import UnknownName
from stepscope.runfolder import RunReader
from stepscope.runfolder.schema import QUIET, Computation, calls_in_other_formats, main_computation
from stepscope.units import percent

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_WOULD_TELL = "measures what this device can reach (seconds, once), for the runs to come"
_WOULD_TELL_SIMULATED = "record it without --simulate: what this machine can reach is then measured after the run"
_WOULD_TELL_FORMAT = "ceilings are measured in float32, float64, bfloat16 and float16"
_CONVOLUTION = ("convolution", "convolution backward")


@dataclass(frozen=True)
class Curve:
    """A rate, a second, by the size of a call, measured at `size` (n,), growing; between them on logarithmic scales.

    most: the largest size that it is known to hold for.
    """

    size: Floats
    rate: Floats
    most: float = math.inf

    def at(self, size: Floats) -> Floats:
        """The rate of a call of this size; below the smallest one that was measured, its rate; NaN above `most`."""
        log_rate = np.interp(np.log(np.maximum(size, 1.0)), np.log(self.size), np.log(self.rate))
        return np.where(size <= self.most, np.exp(log_rate), np.nan)


@dataclass(frozen=True)
class Ceilings:
    """Ceilings of one device: FLOP/s of products and convolutions, B/s of what ops read, and ns of a call.

    `input_bandwidth`: B/s of the bytes of an op's inputs, where its result is allocated for it.
    """

    device: str
    products: Curve
    convolutions: Curve
    input_bandwidth: Curve
    peak_flops_per_s: float
    peak_bytes_per_s: float | None  # of arrays that no cache holds, read and written; None where these were disturbed
    peak_by: str
    streamed_by: str  # the kind of copying that reached peak_bytes_per_s; "" without
    op_ns: float
    run_queue_share: float | None
    precision: str = "float32"  # one of `runfolder.computation.PROBED`

    @property
    def place(self) -> str:
        """Return the device as rows of operators name it: an accelerator without a number is the first."""
        return self.device if self.device == CPU or ":" in self.device else f"{self.device}:0"

    def arithmetic_ns(self, names: Iterable[str], flops: Floats) -> Floats:
        """Time that the FLOPs of one call need at the rate that this device reached with calls of that size, ns."""
        of_convolutions = np.array(["conv" in name for name in names], dtype=np.bool_)
        rates = np.where(of_convolutions, self.convolutions.at(flops), self.products.at(flops))
        return np.asarray(flops / rates * 1e9)

    def memory_ns(self, input_bytes: Floats) -> Floats:
        """Time that reading these inputs and writing a result as large takes one call, ns; NaN where not known."""
        return np.asarray(input_bytes / self.input_bandwidth.at(input_bytes) * 1e9)


def ceilings_of(run: RunReader) -> Ceilings | None:
    """The ceilings that were written into a run; None where none were, or where other load disturbed their probe.

    They are measured with torch's kernels in one number format, and bound none of another framework or format.
    """
    limits = _ceilings_of_device_json(run) if run.framework == "torch" else None
    if limits is None or _is_measured_under_load(limits) or _other_format(run, limits) is not None:
        return None
    return limits


def _other_format(run: RunReader, limits: Ceilings | None) -> Computation | None:
    """Return what the run computes in, where that is not what its ceilings are of, or none are measured in it."""
    computation = main_computation(run.meta)
    if computation is None or (limits is None and computation.is_probed):
        return None
    return None if limits is not None and limits.precision == computation.precision else computation


def why_no_ceilings(run: RunReader, device: str = "this device") -> str:
    """Return why `ceilings_of` has none, as a part of a sentence."""
    if run.framework != "torch":
        return f"ceilings are measured with torch's kernels, and bound none of {run.framework}'s"
    limits = _ceilings_of_device_json(run)
    if limits is None and run.meta.get("simulated"):
        return "with simulated sensors no ceilings are measured"
    computation = _other_format(run, limits)
    if computation is not None:
        of = "none are measured in it" if limits is None else f"the ceilings in this run are of {limits.precision}"
        return f"most FLOPs of this training are in {computation.precision}, and {of}"
    if limits is None or not _is_measured_under_load(limits):  # they are of another device
        return f"the ceilings of {device} were not measured"
    waited = percent(limits.run_queue_share or 0.0, 0)
    return f"the ceilings of {device} are withheld: their probe waited for a CPU core in {waited} of its time"


def ceilings_remedy(run: RunReader, device: str = CPU) -> str:
    """Return what gives a run like this one ceilings of a device, as a sentence without its full stop."""
    if run.meta.get("simulated"):
        return _WOULD_TELL_SIMULATED
    computation = main_computation(run.meta) or Computation(device, "float32")
    if not computation.is_probed:
        return _WOULD_TELL_FORMAT
    if computation.device != CPU:
        device = computation.device
    where = "" if device == CPU else f" --device {device}"
    precision = "" if computation.precision == "float32" else f" --precision {computation.precision}"
    return f"stepscope doctor --ceilings{where}{precision} {_WOULD_TELL}"


def _ceilings_of_device_json(run: RunReader) -> Ceilings | None:
    stated = run.device.get("ceilings")
    try:
        return read_ceilings(stated) if isinstance(stated, Mapping) else None
    except (KeyError, TypeError, ValueError):
        return None


def _is_measured_under_load(limits: Ceilings) -> bool:
    """What was measured under other load is below what the device reaches, by an unknown factor of each size."""
    return (limits.run_queue_share or 0.0) > QUIET


def read_ceilings(stated: Mapping[str, Any]) -> Ceilings:
    """Return the ceilings of what a probe stated; KeyError, TypeError or ValueError where it states too little."""
    rates, moved, costs = stated["arithmetic"], stated["bandwidth"], stated["dispatch"]
    highest = max(rates, key=lambda row: float(row["flops_per_s"]))
    large = max(float(row["bytes"]) for row in moved) / 3
    streams = [row for row in moved if row["kind"] in ("copy", "triad") and float(row["bytes"]) >= large]
    fastest = max(_undisturbed_rates(streams), key=lambda row: float(row["bytes_per_s"]), default=None)
    fresh = [row for row in moved if row["kind"] == "fresh"] or [row for row in moved if row["kind"] == "copy"]
    quiet = _undisturbed_rates(fresh) or fresh
    most = math.inf if max(fresh, key=_bytes_of_row) in quiet else _bytes_of_row(max(quiet, key=_bytes_of_row)) / 2
    return Ceilings(
        device=str(stated.get("device") or CPU),
        products=_curve_through((row["flops"], row["flops_per_s"]) for row in rates if row["kind"] == "gemm"),
        convolutions=_curve_through((row["flops"], row["flops_per_s"]) for row in rates if row["kind"] in _CONVOLUTION),
        input_bandwidth=replace(_curve_through((row["bytes"] / 2, row["bytes_per_s"] / 2) for row in quiet), most=most),
        peak_flops_per_s=float(highest["flops_per_s"]),
        peak_bytes_per_s=None if fastest is None else float(fastest["bytes_per_s"]),
        peak_by=str(highest["what"]),
        streamed_by="" if fastest is None else str(fastest["kind"]),
        op_ns=float(costs["op_ns"]),
        run_queue_share=stated.get("run_queue_share"),
        precision=str(stated.get("precision") or "float32"),
    )


def _undisturbed_rates(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rates that no other load disturbed in each block: the largest arrays are stated in any case."""
    return [row for row in rows if float(row.get("waited") or 0.0) <= QUIET]


def _bytes_of_row(row: Mapping[str, Any]) -> float:
    return float(row["bytes"])


def _curve_through(points: Iterable[tuple[float, float]]) -> Curve:
    """The points in order of size; of equal sizes the highest rate. Raises ValueError without any."""
    best: dict[float, float] = {}
    for size, rate in points:
        best[float(size)] = max(float(rate), best.get(float(size), 0.0))
    sizes = sorted(best)
    if not sizes or min(best.values()) <= 0 or sizes[0] <= 0:
        raise ValueError("a ceiling needs sizes and rates above 0")
    return Curve(np.array(sizes), np.array([best[size] for size in sizes]))


ATTAINABLE_SCHEMA = {
    **dict.fromkeys(("phase", "module", "name"), pl.String),
    "calls": pl.Float64,  # a step
    **dict.fromkeys(("self_ns", "arithmetic_ns", "memory_ns", "attainable_ns"), pl.Float64),  # a step
    "limit": pl.String,  # "arithmetic", "memory", "dispatch", or null where neither FLOPs nor bytes are known
    "is_beyond": pl.Boolean,  # it was BEYOND times faster than its FLOPs at the ceilings
}
BEYOND = 1.5  # times faster than a ceiling: from here on it was measured of other work, and bounds none of this
_CACHE_FASTER = 8.0  # than memory, at most
_LITTLE = 0.05  # of the FLOPs of an operator: more in another number format speak against the roofs
_LAUNCHES = 0.1  # of the time of a module in a phase: from here on it computes elsewhere, and its other ops lead there
DISPATCH_CALLS = 10.0  # costs of an op call: what takes less time than so many, and computes less than one, is dispatch


def attainable_times(run: Run, limits: Ceilings) -> pl.DataFrame:
    """Time of each op beside what this device could do it in, a row a phase, module and op; ns a step.

    Times are of the device that the ceilings are of: on the CPU of a step as it runs unprofiled
    (`analysis.time.overhead_correction`), without operators that launch kernels; on an accelerator of their kernels.
    attainable_ns is the larger of what its FLOPs and its bytes need at the ceilings for calls of that size, and at
    most what the op took; of calls that compute less than a call costs, the cost of the call. Null where neither
    FLOPs nor bytes are known, and of products in another number format than that of most FLOPs.
    """
    table = _times_on_device(run, limits.place)
    if table.is_empty():
        return pl.DataFrame(schema=ATTAINABLE_SCHEMA)
    steps = float(table["step"].n_unique())
    sums = table.group_by("phase", "module", "name", maintain_order=True).agg(
        pl.col("count").sum(), pl.col("self_ns").sum(), *(_mean_stated(name) for name in ("flops", "bytes"))
    )
    count, self_ns = (sums[name].cast(pl.Float64).to_numpy() for name in ("count", "self_ns"))
    flops, moved = (sums[name].fill_null(0.0).fill_nan(0.0).to_numpy() for name in ("flops", "bytes"))
    moved = np.where(sums["name"].is_in(_VIEWS).to_numpy(), 0.0, moved)
    call_ns = self_ns / np.maximum(count, 1)
    arithmetic = np.where(flops > 0, limits.arithmetic_ns(sums["name"], np.maximum(flops, 1)), 0.0)
    traffic = np.where(moved > 0, limits.memory_ns(np.maximum(moved, 1)), 0.0)
    memory = np.fmin(np.nan_to_num(traffic), call_ns)
    fastest_bytes = limits.peak_bytes_per_s or limits.input_bandwidth.rate.max()
    own_ns = np.maximum(flops / limits.peak_flops_per_s, moved / fastest_bytes) * 1e9
    computes = flops / limits.peak_flops_per_s > _CACHE_FASTER * moved / fastest_bytes  # however slow its traffic is
    is_known = ((flops > 0) | (moved > 0)) & (computes | ~np.isnan(traffic))
    is_known &= ~sums.select(in_other_format(run)).to_series().to_numpy()
    if limits.place != CPU:  # of small calls the probe timed the launch: a kernel that is faster is under no ceiling
        is_known &= np.maximum(arithmetic, traffic) <= BEYOND * call_ns
    is_call = np.array([_is_wrapper_op(name) for name in sums["name"]])
    small = is_known & (own_ns < limits.op_ns) & (call_ns < DISPATCH_CALLS * limits.op_ns)
    dispatch = is_call | small | (~is_known & (call_ns < DISPATCH_CALLS * limits.op_ns))
    dispatch &= limits.place == CPU  # a kernel was launched long before it runs
    best = np.where(dispatch, limits.op_ns, np.maximum(arithmetic, memory))
    limit = np.where(dispatch, "dispatch", np.where(arithmetic >= memory, "arithmetic", "memory"))
    frame = sums.select("phase", "module", "name").with_columns(
        calls=pl.Series(count / steps),
        self_ns=pl.Series(self_ns / steps),
        arithmetic_ns=pl.Series(np.where(dispatch, 0.0, np.minimum(arithmetic, call_ns)) * count / steps),
        memory_ns=pl.Series(np.where(dispatch, 0.0, memory) * count / steps),
        attainable_ns=pl.Series(np.where(is_known | dispatch, np.minimum(best, call_ns), np.nan) * count / steps),
        limit=pl.Series(limit),
    )
    judged = frame.with_columns(
        limit=pl.when(pl.Series(is_known | dispatch)).then("limit"),
        is_beyond=pl.Series(~dispatch & (arithmetic > BEYOND * call_ns)),
    )
    return judged.select(pl.col(name).cast(kind) for name, kind in ATTAINABLE_SCHEMA.items()).fill_nan(None)


def in_other_format(run: RunReader) -> pl.Expr:
    """Return whether a row by module and name computes in another number format than the ceilings are of."""
    schema = {"name": pl.String, "module": pl.String}
    calls = [(name, OUTSIDE if module is None else module) for name, module in calls_in_other_formats(run.meta)]
    return pl.struct(list(schema)).is_in(pl.DataFrame(calls, schema=schema, orient="row").to_struct().implode())


def _times_on_device(run: Run, device: str) -> pl.DataFrame:
    """Rows of `StepTimes.table` of the operators that computed on a device; kernels count as their launcher's time.

    None of a training whose kernels were not recorded: what it computed on is not what these times are of.
    """
    table, keys = run.step_times.table.filter(pl.col("device") == CPU), ["phase", "module", "name"]
    launched = launched_kernels(run)
    if device == CPU:
        if accelerator_without_kernels(run) is not None:
            return table.clear()
        launches = pl.struct(keys).is_in(launched.select(pl.struct(keys)).to_series().implode())
        spent = pl.col("self_ns").sum().over("phase", "module")
        share = pl.col("self_ns").filter(launches).sum().over("phase", "module") / spent.clip(1)
        return table.filter(~launches & (share < _LAUNCHES)) if len(launched) else table
    kernels = launched.filter(pl.col("device") == device).select(*keys, "kernel_ns")
    rows = table.join(kernels, on=keys, maintain_order="left")
    kernel_ns = pl.col("kernel_ns") * len(run.step_times.steps) / pl.len().over(keys)
    return rows.with_columns(self_ns=kernel_ns.cast(table.schema["self_ns"])).drop("kernel_ns")


ATTAINED_BY = {"module": "module", "operator": "name"}
ATTAINED_SCHEMA = {
    "name": pl.String,
    **dict.fromkeys(("self_ns", "attainable_ns", "attained", "known"), pl.Float64),
    "limit": pl.String,
}


def attained_shares(run: Run, by: str = "module") -> pl.DataFrame:
    """Share of the attainable of each module or operator, dearest first; empty without ceilings of where they ran.

    Columns: name, self_ns and attainable_ns a step (of the ops whose FLOPs or bytes are known, or that are calls
    alone), attained (their ratio), known (share of the row's time that these take), limit (of most of it). Raises
    UnknownName.
    """
    if by not in ATTAINED_BY:
        raise UnknownName("grouping", by, ATTAINED_BY)
    limits = ceilings_of(run)
    if limits is None or run.step_times.is_empty:
        return pl.DataFrame(schema=ATTAINED_SCHEMA)
    rows = attainable_times(run, limits).rename({ATTAINED_BY[by]: "of"})
    is_known = pl.col("attainable_ns").is_not_null()
    self_ns, best_ns = (pl.col(name).filter(is_known).sum() for name in ("self_ns", "attainable_ns"))
    table = rows.group_by(name="of").agg(
        whole=pl.col("self_ns").sum(),
        self_ns=self_ns,
        attainable_ns=best_ns,
        limit=pl.col("limit").sort_by("self_ns").drop_nulls().last(),
    )
    ratios = table.filter(pl.col("whole") > 0).with_columns(
        attained=(pl.col("attainable_ns") / pl.col("self_ns")).clip(0, 1), known=pl.col("self_ns") / pl.col("whole")
    )
    ordered = ratios.sort("whole", "name", descending=[True, False])
    return ordered.select(pl.col(name).cast(kind) for name, kind in ATTAINED_SCHEMA.items()).fill_nan(None)


# Operators that return another view of the same memory: their inputs are neither read nor written.
_VIEWS = [
    f"aten::{name}"
    for name in (
        *("view", "view_as", "_unsafe_view", "_reshape_alias", "as_strided", "alias", "detach", "lift_fresh"),
        *("expand", "expand_as", "squeeze", "unsqueeze", "flatten", "unflatten", "diagonal", "unfold"),
        *("t", "transpose", "permute", "movedim", "swapaxes", "swapdims", "numpy_T", "adjoint"),
        *("slice", "select", "narrow", "split", "split_with_sizes", "chunk", "unbind", "tensor_split"),
    )
]
# Scopes of torch.compile whose kernels have none of their own: their self time is that of the compiled code.
_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "## Call CompiledFxGraph")


def _is_wrapper_op(name: str) -> bool:
    """Return whether an op computes nothing itself: a module, a node of autograd, a wrapper of the optimizer."""
    return not name.startswith(("aten::", *_COMPILED)) and (
        "::" not in name or name.startswith(("autograd::", "torch::autograd"))
    )


def _mean_stated(name: str) -> pl.Expr:
    """FLOPs or bytes of one call, of the rows that state them."""
    is_stated = pl.col(name).is_not_null()
    return (pl.col(name).filter(is_stated).sum() / pl.col("count").filter(is_stated).sum()).cast(pl.Float64).alias(name)


ROOFLINE_SCHEMA = {
    "name": pl.String,
    "device": pl.String,
    "flop_per_byte": pl.Float64,
    "flops_per_s": pl.Float64,
    "bytes_per_s": pl.Float64,
    "share": pl.Float64,  # of the step
    "total_ns": pl.Float64,
    "flops": pl.Float64,  # a step
    "bytes": pl.Float64,  # a step: what goes in, each tensor once
    "attained": pl.Float64,  # share of what this device reaches at that many FLOP/B; null without ceilings
    "bound_by": pl.String,  # memory or arithmetic: the side of the ridge of the device's own roofs; null without
}
ROOF_SCHEMA = {"device": pl.String, "roof": pl.String, "value": pl.Float64, "name": pl.String}


def roofline(run: Run) -> pl.DataFrame:
    """Operators that state both FLOPs and bytes, dearest first, under the roofs of the device that they computed on.

    Of those that launched kernels, times are of the kernels. None of a training whose kernels were not recorded.
    """
    kinds = pl.concat([_points_on_cpu(run), _points_of_kernels(run)], how="diagonal_relaxed")
    kinds = kinds.filter((pl.col("flops") > 0) & (pl.col("bytes") > 0) & (pl.col("total_ns") > 0))
    points = kinds.sort("total_ns", "name", descending=[True, False]).select(
        "name", "device", (pl.col("flops") / pl.col("bytes")).alias("flop_per_byte"), "flops_per_s",
        (pl.col("flops_per_s") / pl.col("flops") * pl.col("bytes")).alias("bytes_per_s"),
        "share", "total_ns", "flops", "bytes",
    )  # fmt: skip
    limits = ceilings_of(run)
    is_limited = pl.col("device") == ("" if limits is None else limits.place)
    compute = pl.lit(None if limits is None else limits.peak_flops_per_s, pl.Float64)
    memory = pl.lit(None if limits is None else limits.peak_bytes_per_s, pl.Float64)
    slope = pl.when(is_limited).then(pl.col("flop_per_byte") * memory)
    bound = pl.when(slope < compute).then(pl.lit("memory")).when(slope.is_not_null()).then(pl.lit("arithmetic"))
    roof = pl.when(slope.is_not_null()).then(pl.min_horizontal(slope, compute))
    attained = (pl.col("flops_per_s") / roof).clip(0, 1)
    own = ~pl.col("name").is_in(_ops_in_other_formats(run).implode())
    judged = points.with_columns(attained=pl.when(own).then(attained), bound_by=pl.when(own).then(bound))
    return judged.select(pl.col(name).cast(dtype) for name, dtype in ROOFLINE_SCHEMA.items())


def _ops_in_other_formats(run: Run) -> pl.Series:
    """Return the operators with a notable part of their FLOPs in another number format than the roofs are of."""
    flops = pl.col("flops").sum()
    sums = run.self_times.group_by("name").agg(flops, other=pl.col("flops").filter(in_other_format(run)).sum())
    return sums.filter(pl.col("other") > _LITTLE * pl.col("flops"))["name"]


def _points_on_cpu(run: Run) -> pl.DataFrame:
    launched = launched_kernels(run)["name"].unique()
    kinds = run.operators()
    return (
        kinds.clear() if accelerator_without_kernels(run) else kinds.filter(~pl.col("name").is_in(launched.implode()))
    )


def _points_of_kernels(run: Run) -> pl.DataFrame:
    """Operators by the device that their kernels ran on, columns as `Run.operators`; of calls that state their work."""
    sums = (
        launched_kernels(run).group_by("name", "device").agg(pl.col("kernel_ns", "costed_ns", "flops", "bytes").sum())
    )
    return sums.filter(pl.col("costed_ns") > 0).select(
        "name",
        "device",
        "flops",
        "bytes",
        total_ns="kernel_ns",
        share=pl.col("kernel_ns") / max(run.step_times.step_ns, 1.0),
        flops_per_s=pl.col("flops") / pl.col("costed_ns") * 1e9,
    )


def roofs(run: RunReader) -> pl.DataFrame:
    """The measured ceilings of the device, "compute" in FLOP/s, "memory" in B/s, and by what; empty where unknown."""
    limits = ceilings_of(run)
    if limits is None:
        return pl.DataFrame(schema=ROOF_SCHEMA)
    rows = [
        (limits.place, "compute", limits.peak_flops_per_s, limits.peak_by),
        (limits.place, "memory", limits.peak_bytes_per_s, "copy and triad of arrays that no cache holds"),
    ]
    rows = [row for row in rows if row[2] is not None]  # of the memory where there was no quiet moment
    return pl.DataFrame(rows, schema=ROOF_SCHEMA, orient="row")
