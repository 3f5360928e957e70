"""What a counted bare run really trained, and what a run folder says that it did."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl

import stepscope
from benchmarks.scripts.programs import Program


@dataclass(frozen=True)
class Trained:
    """Steps of each process that trained; samples of a usual step; layers; `recorded` steps have their operators."""

    steps: tuple[int, ...]
    samples: float | None
    layers: int | None
    recorded: int | None = None


def counted(folder: Path, program: Program, stdout: str) -> Trained:
    """What the counter in front of a bare run has seen."""
    if program.truth.isdigit():
        steps: tuple[int, ...] = (int(program.truth),)
    elif program.truth not in COUNTS:
        said = re.search(program.truth, stdout)
        steps = (int(said[1]),) if said else ()
    else:
        steps = COUNTS[program.truth](folder)
    layers = max((len(file.read_text().splitlines()) for file in folder.glob("*.layer")), default=0)
    return Trained(steps, program.samples, program.layers if program.layers is not None else layers)


def _busiest(folder: Path) -> tuple[int, ...]:
    return tuple(max(sizes) for sizes in _sizes(folder).values())


def _all_optimizers(folder: Path) -> tuple[int, ...]:
    return tuple(sum(sizes) for sizes in _sizes(folder).values())


def _sizes(folder: Path) -> dict[str, list[int]]:
    sizes: dict[str, list[int]] = {}
    for file in sorted(folder.glob("*.step.*")):
        sizes.setdefault(file.name.split(".")[0], []).append(file.stat().st_size)
    return sizes


def _backward(folder: Path) -> tuple[int, ...]:
    return tuple(file.stat().st_size for file in sorted(folder.glob("*.backward")))


def _nothing(folder: Path) -> tuple[int, ...]:
    return ()


COUNTS = {"optimizer": _busiest, "optimizers": _all_optimizers, "backward": _backward, "none": _nothing}


def found(runs: Path) -> Trained:
    """What the run folders in `runs` say, a process each; of layers those with both forward and backward time."""
    parts = [part for one in sorted(runs.glob("*/run.json")) for part in stepscope.Run(one.parent).ranks]
    steps = tuple(one.steps.height for one in parts if one.steps.height)
    samples = [value for one in parts if (value := one.steps["samples"].drop_nulls().median()) is not None]
    recorded = max((int(one.steps["recorded"].sum()) for one in parts), default=0)
    return Trained(
        steps, float(str(samples[0])) if samples else None, max((_layers(one) for one in parts), default=0), recorded
    )


def _layers(run: stepscope.Run) -> int:
    """Modules with parameters of their own that have forward and backward time."""
    table = run.modules().filter(pl.col("module").is_not_null())
    if table.is_empty():
        return 0
    shown = pl.col("module").str.ends_with("_torch_params")  # where a Keras layer shows its variables to torch
    graph = pl.col("type") == "Functional"  # of Keras layers, which torch does not know as its parts
    table = table.filter(~shown & ~graph)
    below = table.group_by("parent").agg(pl.col("parameters").sum().alias("below"))
    own = table.join(below, left_on="module", right_on="parent", how="left").filter(
        pl.col("parameters") > pl.col("below").fill_null(0)
    )
    return own.filter((pl.col("forward_ns") > 0) & (pl.col("backward_ns") > 0)).height
