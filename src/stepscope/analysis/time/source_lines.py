"""The line of the training's code that calls each layer and operator, as one profiled step of the run noted it."""

from __future__ import annotations

import polars as pl

from stepscope.analysis.time.operators import OUTSIDE
from stepscope.runfolder import MODULE_CALL, RunReader

_KEYS = ("phase", "module", "name")


def with_sources(ops: pl.DataFrame, sources: pl.DataFrame) -> pl.DataFrame:
    """Op calls in order of step and row with the column `source`: "model.py:12", null where it is not known."""
    if sources.is_empty() or ops.is_empty():
        return ops.with_columns(source=pl.lit(None, pl.String))
    texts = [pl.col(key).cast(pl.String).alias(f"_{key}") for key in _KEYS]
    keyed = ops.with_columns(*texts, _turn=pl.int_range(pl.len()).over("step", *_KEYS))
    renamed = {key: f"_{key}" for key in (*_KEYS, "turn")}
    always = sources.filter(pl.col("turn").is_null()).rename(renamed).select(*(f"_{key}" for key in _KEYS), "source")
    by_turn = sources.filter(pl.col("turn").is_not_null()).rename({**renamed, "source": "_source"})
    on = [f"_{key}" for key in _KEYS]
    joined = keyed.join(always, on=on, how="left", nulls_equal=True, maintain_order="left")
    joined = joined.join(by_turn, on=[*on, "_turn"], how="left", nulls_equal=True, maintain_order="left")
    return joined.with_columns(pl.coalesce("source", "_source").alias("source")).select(*ops.columns, "source")


def sources_of_modules(run: RunReader) -> dict[str, str]:
    """Where each module is called first: "model.py:12", and how many other places there are: "model.py:12, +1"."""
    calls = run.sources.filter(
        pl.col("name").str.starts_with(MODULE_CALL) & pl.col("module").is_not_null() & pl.col("source").is_not_null()
    )
    forward = calls.sort(pl.col("phase") != "forward", maintain_order=True)
    places = forward.group_by("module", maintain_order=True).agg(pl.col("source").unique(maintain_order=True))
    return {
        module: f"{lines[0]}, +{len(lines) - 1}" if len(lines) > 1 else lines[0] for module, lines in places.iter_rows()
    }


def sources_of_operators(run: RunReader, times: pl.DataFrame) -> dict[str, str]:
    """The line on which each operator spends the most time, by its name; `times` as `self_times` gives them."""
    known = run.sources.filter(pl.col("source").is_not_null()).with_columns(pl.col("module").fill_null(OUTSIDE))
    if known.is_empty():
        return {}
    counted = known.group_by(*_KEYS, "source", maintain_order=True).agg(part=pl.len() / 1.0)
    shares = counted.with_columns(pl.col("part") / pl.col("part").sum().over(_KEYS))
    spent = times.group_by(_KEYS).agg(pl.col("self_ns").sum())
    lines = shares.join(spent, on=list(_KEYS)).with_columns(ns=pl.col("part") * pl.col("self_ns"))
    summed = lines.group_by("name", "source").agg(pl.col("ns").sum()).sort("ns", "source", descending=[True, False])
    return dict(summed.unique("name", keep="first", maintain_order=True).select("name", "source").iter_rows())


def slice_names(ops: pl.DataFrame) -> pl.Series:
    """Names of slices of a timeline: "layer2.0.conv1 · aten::mm"; outside of layers the op's name alone."""
    name, module = (pl.col(column).cast(pl.String) for column in ("name", "module"))
    inside = module.is_not_null() & (module != "")
    named = pl.when(inside).then(pl.concat_str(module, pl.lit(" \u00b7 "), name)).otherwise(name)
    return ops.select(named.alias("name")).to_series()
