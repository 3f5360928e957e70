"""Memory of the training process, or of all processes, over the run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from stepscope.analysis.memory.limits import fit_command
from stepscope.analysis.process_scopes import (
    ALL,
    CHILDREN,
    RANK,
    WATCHED,
    has_several_processes,
    proportional_of_all,
    resident_of_all,
    scope_name,
)
from stepscope.report.charts import memory as chart
from stepscope.report.page.parts import Command, Figure, KeyFigure, KeyFigures, Note, Part, Section
from stepscope.units import amount, interval

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Process memory"
ORDER = 60
FIGURES = ("memory",)

_SERIES = {"rss": "resident (RSS)", "pss": "proportional (PSS)"}
_HEADLINES = {"peak_memory": "Peak", "resident_memory": "Median in the steps"}
_SOURCES = {"peak_rss": "resident, the kernel's own mark", "rss": "resident, as read", "pss": "proportional, as read"}
_MOST_POINTS = 500  # a line; of the readings that fall on one point the largest is drawn
_MOST_RANKS = 8  # with a line each
_LONG_PERIODS = 20  # a longer silence breaks the line


def build(run: Run) -> Section:
    """Resident and proportional memory against time, with its peaks."""
    figures = tuple(_key_figures(run))
    parts: list[Part] = [KeyFigures(figures)] if figures else []
    lines = [line for name, label in _SERIES.items() for line in _lines(run, name, label)]
    if not lines:
        return Section("it was not sampled in this run", tuple(parts), closed=True)
    drawn = pl.concat(lines)
    caption = "Where readings are denser than the drawing, the largest is drawn. A broken line is a gap."
    parts.append(Figure(lambda width: chart.build_memory(drawn, width), caption, FIGURES[0]))
    command = None if has_several_processes(run) else fit_command(run.meta)  # it predicts one process
    if command is not None:
        parts += [Note("What the training alone takes, without this recording and before it runs:"), Command(command)]
    whose = "the processes of the run" if has_several_processes(run) else "the training process"
    unused = f"what Python and {run.framework} have reserved and do not use at the moment"
    lede = f"What the system gave to {whose}, with {unused}."
    return Section(lede, tuple(parts), closed=True)


def _key_figures(run: Run) -> Iterator[KeyFigure]:
    no_child = (pl.col("scope") == CHILDREN) & (pl.col("value") == 0)
    of_rank = pl.lit(bool(run.part_folders)) & pl.col("scope").str.starts_with(RANK)  # in the table of ranks
    is_headline = pl.col("value").is_not_null() & ~no_child & ~of_rank
    metrics = run.metrics().filter(is_headline).sort("metric", maintain_order=True)
    for row in metrics.filter(pl.col("metric").is_in(list(_HEADLINES))).iter_rows(named=True):
        source = _SOURCES.get(row["source"], row["source"])
        label = f"{_HEADLINES[row['metric']]}, {source}{_scope_suffix(row['scope'])}"
        yield KeyFigure(label, amount(row["value"], "B"), interval(row["low"], row["high"], "B"), row["note"] or "")


def _lines(run: Run, name: str, label: str) -> Iterator[pl.DataFrame]:
    """One line a scope: series, piece, t_s, mb; a new piece begins where a reading is missing or late."""
    samples, steps, whole = run.samples(name), run.steps, has_several_processes(run)
    start = int(steps["t0_ns"][0]) if len(steps) else None
    together = (resident_of_all(run) if name == "rss" else proportional_of_all(run)) if whole else None
    if together is not None and len(together.t_ns) > 1:
        read = pl.DataFrame({"t0_ns": together.t_ns.astype("int64"), "value": together.values, "dark": 0})
        yield _line(read, int(read["t0_ns"][0]) if start is None else start, f"{label}{_scope_suffix(ALL)}")
    crowded = whole and len(run.part_folders) >= _MOST_RANKS
    for (scope,), frame in samples.group_by(["scope"], maintain_order=True):
        if crowded and str(scope).startswith(RANK):
            continue
        read = frame.sort("t0_ns").with_columns(dark=pl.col("value").is_null().cum_sum()).drop_nulls("value")
        if len(read) < 2 or (scope == CHILDREN and (whole or float(read["value"].to_numpy().max()) == 0)):
            continue  # of several processes, they are in the sum
        series = f"{label}{_scope_suffix(scope_name(run, str(scope)))}"
        yield _line(read, int(read["t0_ns"][0]) if start is None else start, series)


def _scope_suffix(scope: str) -> str:
    """Behind a name: whose memory it is, where it is not that of the only training process."""
    owner = {WATCHED: "", CHILDREN: "child processes", ALL: "all processes"}.get(scope, scope.replace(":", " "))
    return f", {owner}" if owner else ""


def _line(read: pl.DataFrame, start_ns: int, series: str) -> pl.DataFrame:
    step = pl.col("t0_ns").diff()
    broken = (step > _LONG_PERIODS * step.median()) | (pl.col("dark").diff() > 0)
    pieces = read.with_columns(piece=broken.fill_null(False).cum_sum())
    width = max(1, -(-len(pieces) // _MOST_POINTS))
    thinned = pieces.group_by("piece", pl.int_range(pl.len()) // width, maintain_order=True).agg(
        pl.col("t0_ns").get(pl.col("value").arg_max()), pl.col("value").max()
    )
    return thinned.select(
        series=pl.lit(series),
        piece=pl.format("{} {}", pl.lit(series), "piece"),
        t_s=(pl.col("t0_ns") - start_ns) / 1e9,
        mb=pl.col("value") / 1e6,
    )
