"""Roofline of a run: how fast each kind of operation computes against how often it uses a byte (Williams et al., 2009).

The roofs are what this run itself reached, so they are lower bounds of what the device can do: a device's own limits
are not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

SCHEMA = {
    "name": pl.String,
    "device": pl.String,
    "flop_per_byte": pl.Float64,
    "flops_per_s": pl.Float64,
    "bytes_per_s": pl.Float64,
    "share": pl.Float64,  # of the step
    "total_ns": pl.Float64,
    "flops": pl.Float64,  # a step
    "bytes": pl.Float64,  # a step: what goes in and comes out, each tensor once
    "waits_for": pl.String,  # memory or arithmetic: the side of the ridge, where the two roofs of its device meet
}
ROOFS = {"device": pl.String, "roof": pl.String, "value": pl.Float64, "name": pl.String}
_LEAST_SHARE = 0.002  # of the step: what takes less is timed too coarsely to set a roof


def roofline(run: Run) -> pl.DataFrame:
    """Kinds of operation that state both FLOPs and bytes, dearest first; a byte in a cache counts like any other."""
    kinds = run.op_kinds().filter((pl.col("flops") > 0) & (pl.col("bytes") > 0) & (pl.col("total_ns") > 0))
    points = kinds.select(
        "name",
        "device",
        (pl.col("flops") / pl.col("bytes")).alias("flop_per_byte"),
        "flops_per_s",
        (pl.col("flops_per_s") / pl.col("flops") * pl.col("bytes")).alias("bytes_per_s"),
        "share",
        "total_ns",
        "flops",
        "bytes",
    )
    ridges = _ridges(roofs(points))
    left = pl.col("flop_per_byte") < pl.col("device").replace_strict(ridges, default=None, return_dtype=pl.Float64)
    judged = points.with_columns(waits_for=pl.when(left).then(pl.lit("memory")).when(~left).then(pl.lit("arithmetic")))
    return judged.select(pl.col(name).cast(dtype) for name, dtype in SCHEMA.items())


def _ridges(reached: pl.DataFrame) -> dict[str, float]:
    """FLOP/B at which the two roofs of a device meet."""
    of = {(device, roof): value for device, roof, value, _ in reached.iter_rows()}
    return {device: of[device, "compute"] / of[device, "memory"] for device, roof in of if roof == "compute"}


def roofs(points: pl.DataFrame) -> pl.DataFrame:
    """The highest rates that were reached, a row a device and roof ("compute", FLOP/s; "memory", B/s), and by whom."""
    found = [pl.DataFrame(schema=ROOFS)]
    for (device,), rows in points.filter(pl.col("share") >= _LEAST_SHARE).group_by(["device"], maintain_order=True):
        for roof, column in (("compute", "flops_per_s"), ("memory", "bytes_per_s")):
            top = rows.sort(column, descending=True).row(0, named=True)
            row = {"device": [str(device)], "roof": [roof], "value": [top[column]], "name": [top["name"]]}
            found.append(pl.DataFrame(row, schema=ROOFS))
    return pl.concat(found)
