"""Ceilings of a device, as device.json has them: what an op call could take under them, and the roofline.

Roofline: Williams et al., 2009.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from stepscope.analysis.time.operators import CPU
from stepscope.arrays import Floats
from stepscope.errors import UnknownName
from stepscope.runfolder import RunReader
from stepscope.runfolder.schema import QUIET
from stepscope.units import percent

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

_WOULD_TELL = "stepscope doctor --ceilings measures what this device can reach (seconds, once), for the runs to come"
_WOULD_TELL_SIMULATED = "record it without --simulate: what this machine can reach is then measured after the run"
_CONVOLUTION = ("convolution", "convolution backward")


@dataclass(frozen=True)
class Curve:
    """A rate, a second, by the size of a call, measured at `size` (n,), growing; between them on logarithmic scales."""

    size: Floats
    rate: Floats

    def at(self, size: Floats) -> Floats:
        """The rate of a call of this size; below the smallest one that was measured, its rate."""
        known = np.interp(np.log(np.maximum(size, 1.0)), np.log(self.size), np.log(self.rate))
        return np.asarray(np.exp(known))


@dataclass(frozen=True)
class Ceilings:
    """Ceilings of one device: FLOP/s of products and convolutions, B/s of what ops read, and ns of a call.

    `given`: B/s of the bytes that an op is given (its inputs), where its result is allocated for it.
    """

    device: str
    products: Curve
    convolutions: Curve
    given: Curve
    peak_flops_per_s: float
    peak_bytes_per_s: float  # of arrays that no cache holds, read and written
    peak_by: str
    streamed_by: str  # the kind of copying that reached peak_bytes_per_s
    op_ns: float
    threads: int | None
    run_queue_share: float | None

    def arithmetic_ns(self, names: Iterable[str], flops: Floats) -> Floats:
        """Time that the FLOPs of one call need at the rate that this device reached with calls of that size, ns."""
        of_convolutions = np.array(["conv" in name for name in names], dtype=np.bool_)
        rates = np.where(of_convolutions, self.convolutions.at(flops), self.products.at(flops))
        return np.asarray(flops / rates * 1e9)

    def memory_ns(self, given_bytes: Floats) -> Floats:
        """Time that reading these inputs and writing a result as large takes one call, ns."""
        return np.asarray(given_bytes / self.given.at(given_bytes) * 1e9)


def ceilings_of(run: RunReader) -> Ceilings | None:
    """The ceilings that were written into a run; None where none were, or where other load disturbed their probe.

    They are measured with torch's kernels, and bound no others.
    """
    found = _stated(run) if run.framework == "torch" else None
    return None if found is None or _is_measured_under_load(found) else found


def why_no_ceilings(run: RunReader, device: str = "this device") -> str:
    """Return why `ceilings_of` has none, as a part of a sentence."""
    if run.framework != "torch":
        return f"ceilings are measured with torch's kernels, and bound none of {run.framework}'s"
    found = _stated(run)
    if found is None and run.meta.get("simulated"):
        return "with simulated sensors no ceilings are measured"
    if found is None:
        return f"the ceilings of {device} were not measured"
    waited = percent(found.run_queue_share or 0.0, 0)
    return f"the ceilings of {device} are withheld: their probe waited for a CPU core in {waited} of its time"


def ceilings_remedy(run: RunReader) -> str:
    """Return what gives a run like this one ceilings, as a sentence without its full stop."""
    return _WOULD_TELL_SIMULATED if run.meta.get("simulated") else _WOULD_TELL


def _stated(run: RunReader) -> Ceilings | None:
    stated = run.device.get("ceilings")
    try:
        return read_ceilings(stated) if isinstance(stated, Mapping) else None
    except (KeyError, TypeError, ValueError):
        return None


def _is_measured_under_load(found: Ceilings) -> bool:
    """What was measured under other load is below what the device reaches, by an unknown factor of each size."""
    return (found.run_queue_share or 0.0) > QUIET


def read_ceilings(stated: Mapping[str, Any]) -> Ceilings:
    """Return the ceilings of what a probe stated; KeyError, TypeError or ValueError where it states too little."""
    rates, moved, costs = stated["arithmetic"], stated["bandwidth"], stated["dispatch"]
    highest = max(rates, key=lambda row: float(row["flops_per_s"]))
    large = max(float(row["bytes"]) for row in moved) / 3
    streams = [row for row in moved if row["kind"] in ("copy", "triad") and float(row["bytes"]) >= large]
    fastest = max(streams, key=lambda row: float(row["bytes_per_s"]))
    fresh = [row for row in moved if row["kind"] == "fresh"] or [row for row in moved if row["kind"] == "copy"]
    return Ceilings(
        device=str(stated.get("device") or CPU),
        products=_curve((row["flops"], row["flops_per_s"]) for row in rates if row["kind"] == "gemm"),
        convolutions=_curve((row["flops"], row["flops_per_s"]) for row in rates if row["kind"] in _CONVOLUTION),
        given=_curve((row["bytes"] / 2, row["bytes_per_s"] / 2) for row in fresh),
        peak_flops_per_s=float(highest["flops_per_s"]),
        peak_bytes_per_s=float(fastest["bytes_per_s"]),
        peak_by=str(highest["what"]),
        streamed_by=str(fastest["kind"]),
        op_ns=float(costs["op_ns"]),
        threads=stated.get("threads"),
        run_queue_share=stated.get("run_queue_share"),
    )


def _curve(points: Iterable[tuple[float, float]]) -> Curve:
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
}
DISPATCH_CALLS = 10.0  # costs of an op call: what takes less time than so many, and computes less than one, is dispatch


def attainable_times(run: Run, limits: Ceilings) -> pl.DataFrame:
    """Time of each op of the CPU beside what this device could do it in, a row a phase, module and op; ns a step.

    Times are of a step as it runs unprofiled (`analysis.time.correction`).
    attainable_ns is the larger of what its FLOPs and its bytes need at the ceilings for calls of that size, and at
    most what the op took; of calls that compute less than a call costs, the cost of the call. Null where neither
    FLOPs nor bytes are known.
    """
    table = run.step_times.table.filter(pl.col("device") == CPU)
    if table.is_empty():
        return pl.DataFrame(schema=ATTAINABLE_SCHEMA)
    steps = float(table["step"].n_unique())
    sums = table.group_by("phase", "module", "name", maintain_order=True).agg(
        pl.col("count").sum(), pl.col("self_ns").sum(), *(_mean_stated(name) for name in ("flops", "bytes"))
    )
    count, self_ns = (sums[name].cast(pl.Float64).to_numpy() for name in ("count", "self_ns"))
    flops, moved = (sums[name].fill_null(0.0).fill_nan(0.0).to_numpy() for name in ("flops", "bytes"))
    each_ns = self_ns / np.maximum(count, 1)
    arithmetic = np.where(flops > 0, limits.arithmetic_ns(sums["name"], np.maximum(flops, 1)), 0.0)
    memory = np.where(moved > 0, np.minimum(limits.memory_ns(np.maximum(moved, 1)), each_ns), 0.0)
    own_ns = np.maximum(flops / limits.peak_flops_per_s, moved / limits.peak_bytes_per_s) * 1e9
    known = (flops > 0) | (moved > 0)
    is_call = np.array([_is_wrapper_op(name) for name in sums["name"]])
    small = known & (own_ns < limits.op_ns) & (each_ns < DISPATCH_CALLS * limits.op_ns)
    dispatch = is_call | small | (~known & (each_ns < DISPATCH_CALLS * limits.op_ns))
    best = np.where(dispatch, limits.op_ns, np.maximum(arithmetic, memory))
    limit = np.where(dispatch, "dispatch", np.where(arithmetic >= memory, "arithmetic", "memory"))
    frame = sums.select("phase", "module", "name").with_columns(
        calls=pl.Series(count / steps),
        self_ns=pl.Series(self_ns / steps),
        arithmetic_ns=pl.Series(np.where(dispatch, 0.0, np.minimum(arithmetic, each_ns)) * count / steps),
        memory_ns=pl.Series(np.where(dispatch, 0.0, memory) * count / steps),
        attainable_ns=pl.Series(np.where(known | dispatch, np.minimum(best, each_ns), np.nan) * count / steps),
        limit=pl.Series(limit),
    )
    unknown = pl.Series(~(known | dispatch))
    judged = frame.with_columns(limit=pl.when(~unknown).then("limit"))
    return judged.select(pl.col(name).cast(kind) for name, kind in ATTAINABLE_SCHEMA.items()).fill_nan(None)


ATTAINED_BY = {"module": "module", "operator": "name"}
ATTAINED_SCHEMA = {
    "name": pl.String,
    **dict.fromkeys(("self_ns", "attainable_ns", "attained", "known"), pl.Float64),
    "limit": pl.String,
}


def attained_shares(run: Run, by: str = "module") -> pl.DataFrame:
    """Share of the attainable of each module or operator of the CPU, dearest first; empty without ceilings.

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
    known = pl.col("attainable_ns").is_not_null()
    self_ns, best_ns = (pl.col(name).filter(known).sum() for name in ("self_ns", "attainable_ns"))
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


# Scopes of torch.compile whose kernels have none of their own: their self time is that of the compiled code.
_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "## Call CompiledFxGraph")


def _is_wrapper_op(name: str) -> bool:
    """Return whether an op computes nothing itself: a module, a node of autograd, a wrapper of the optimizer."""
    return not name.startswith(("aten::", *_COMPILED)) and (
        "::" not in name or name.startswith(("autograd::", "torch::autograd"))
    )


def _mean_stated(name: str) -> pl.Expr:
    """FLOPs or bytes of one call, of the rows that state them."""
    known = pl.col(name).is_not_null()
    return (pl.col(name).filter(known).sum() / pl.col("count").filter(known).sum()).cast(pl.Float64).alias(name)


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
    "waits_for": pl.String,  # memory or arithmetic: the side of the ridge of the device's own roofs; null without
}
ROOF_SCHEMA = {"device": pl.String, "roof": pl.String, "value": pl.Float64, "name": pl.String}


def roofline(run: Run) -> pl.DataFrame:
    """Operators that state both FLOPs and bytes, dearest first, under the roofs of the device."""
    kinds = run.operators().filter((pl.col("flops") > 0) & (pl.col("bytes") > 0) & (pl.col("total_ns") > 0))
    points = kinds.select(
        "name", "device", (pl.col("flops") / pl.col("bytes")).alias("flop_per_byte"), "flops_per_s",
        (pl.col("flops_per_s") / pl.col("flops") * pl.col("bytes")).alias("bytes_per_s"),
        "share", "total_ns", "flops", "bytes",
    )  # fmt: skip
    limits = {device: {roof: value} for device, roof, value, _ in roofs(run).iter_rows() if roof == "compute"}
    for device, roof, value, _ in roofs(run).iter_rows():
        limits[device][roof] = value

    def of(roof: str) -> pl.Expr:
        known = {device: of_device[roof] for device, of_device in limits.items()}
        return pl.col("device").replace_strict(known, default=None, return_dtype=pl.Float64)

    slope = pl.col("flop_per_byte") * of("memory")
    waits = pl.when(slope < of("compute")).then(pl.lit("memory")).when(slope.is_not_null()).then(pl.lit("arithmetic"))
    attained = (pl.col("flops_per_s") / pl.min_horizontal(slope, of("compute"))).clip(0, 1)
    judged = points.with_columns(attained=attained, waits_for=waits)
    return judged.select(pl.col(name).cast(dtype) for name, dtype in ROOFLINE_SCHEMA.items())


def roofs(run: RunReader) -> pl.DataFrame:
    """The measured ceilings of the device, "compute" in FLOP/s, "memory" in B/s, and by what; empty where unknown."""
    limits = ceilings_of(run)
    if limits is None:
        return pl.DataFrame(schema=ROOF_SCHEMA)
    rows = [
        (limits.device, "compute", limits.peak_flops_per_s, limits.peak_by),
        (limits.device, "memory", limits.peak_bytes_per_s, "copy and triad of arrays that no cache holds"),
    ]
    return pl.DataFrame(rows, schema=ROOF_SCHEMA, orient="row")
