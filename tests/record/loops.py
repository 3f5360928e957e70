"""Small real training loops that the recorder's tests record."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import torch
from torch import nn

import stepscope
from stepscope.runfolder import RunReader

Loop = Callable[[Callable[[], None]], Any]


def record(loop: Loop, out: Path, model: Any = None, **options: Any) -> RunReader:
    """Run `loop(step)` inside `stepscope.profile` with every step recorded, and open the run."""
    options.setdefault("record", "all")
    with stepscope.profile(model, out=out, **options) as scope:
        loop(scope.step)
    return RunReader(scope.path)


def simple_loop(model: nn.Module, steps: int, batch: int = 4, width: int = 8) -> Loop:
    """SGD on random input: the plainest step there is."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loop(step: Callable[[], None]) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            model(torch.randn(batch, width)).sum().backward()
            optimizer.step()
            step()

    return loop


def last_step(run: RunReader) -> pl.DataFrame:
    """Rows of the last profiled step, text columns as text."""
    ops = run.ops.with_columns(pl.col("name", "module", "phase", "device").cast(pl.String))
    return ops.filter(pl.col("step") == ops["step"].max())


def counts(rows: pl.DataFrame, **where: str) -> dict[str, int]:
    """How often each op name occurs among the rows that match."""
    for column, value in where.items():
        rows = rows.filter(pl.col(column) == value)
    return {str(name): int(n) for name, n in rows.group_by("name").len().iter_rows()}
