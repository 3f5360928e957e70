"""The processes of a distributed training side by side, and what their collectives cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.report.page.parts import Cell, Column, Items, More, Note, Part, Section, Table
from stepscope.report.page.reading import milliseconds, name
from stepscope.report.text import communication_sentences, rank_sentences
from stepscope.units import amount, bytes_, interval, number, percent

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Ranks"
ORDER = 25

_CAVEAT = (
    "Exposed is time in which no operator of the training ran and a collective was awaited, with what the training "
    "itself did to start it. Time in which Python did other work until a collective ended cannot be told from waiting "
    "for it, and is counted as exposed."
)
_TIMES = {
    "step": ("Step", ""),
    "exposed": ("Exposed", "Communication that nothing overlaps"),
    "overlapped": ("Overlapped", "Communication during operators of the training"),
    "waiting": ("Waiting", "Of the exposed time, that before the last rank arrived"),
    "late": ("Late", "After the first rank, at the collective of each step at which the ranks were furthest apart"),
}


def build(run: Run) -> Section:
    """Table of ranks, who is late, and the kinds of collectives; a sentence where one process trained alone."""
    found, kinds = run.side_by_side, run.communication()
    if len(found.parts) < 2 and kinds.is_empty():
        return Section("")
    return Section(_lede(run), tuple(_parts(run, kinds)))


def _lede(run: Run) -> str:
    count = len(run.ranks)
    said = [
        f"{count:,} {'process' if count == 1 else 'processes'} trained.",
        *(f"{_capital(line)}." for line in rank_sentences(run.rank_table())),
    ]
    communication = communication_sentences(run)
    return " ".join([*said, *(f"Communication: {communication[0]}." for _ in communication[:1])])


def _parts(run: Run, kinds: pl.DataFrame) -> Iterator[Part]:
    found = run.side_by_side
    if len(found.parts) > 1:
        yield _table(found.table)
    more: list[Part] = []
    if found.notes:
        more.append(Items(tuple((f"{_capital(note)}.", "") for note in found.notes)))
    if not kinds.is_empty():
        more += [_kinds(kinds), Note(_CAVEAT)]
    if more:
        yield More("Collectives, and what to know", tuple(more))


def _table(rows: pl.DataFrame) -> Table:
    columns = [Column("Rank", numeric=False), Column("Process", meaning="Its number in the system (pid)")]
    columns += [Column("Status", numeric=False), Column("Steps"), Column("Profiled"), Column("Samples/s")]
    for title, meaning in _TIMES.values():
        columns.append(Column(f"{title}, ms", meaning=meaning))
        if title != "Overlapped":
            columns.append(Column("95 % CI, ms"))
    columns.append(Column("Last", meaning="Share of the steps in which it was the last to arrive"))
    columns.append(Column("Peak memory", meaning="Most that was resident (RSS), pages shared with others included"))
    columns.append(Column("Peak PSS", meaning="The same with a shared page divided by its users, read less often"))
    columns.append(Column("CPU utilisation", meaning="CPU time of the process over time, in its steps after warm-up"))
    columns.append(Column("95 % CI"))
    caption = "Medians of the profiled steps after warm-up, per step; the step time is of unprofiled steps where there "
    caption += "are enough of them. A part opens by itself with stepscope report RUN/ranks/1."
    return Table("ranks", tuple(columns), [_row(row) for row in rows.iter_rows(named=True)], caption)


def _row(row: dict[str, Any]) -> tuple[Cell, ...]:
    rank = f"{row['rank']}" if row["rank"] is not None else f"process {row['process']}"
    cells = [Cell(rank, row["process"]), Cell(str(row["pid"] or ""), row["pid"]), Cell(row["status"], row["status"])]
    cells += [Cell(f"{row[key]:,}", row[key]) for key in ("steps", "profiled")]
    cells.append(Cell(number(row["samples_per_s"]), row["samples_per_s"]))
    for key in _TIMES:
        cells.append(Cell(milliseconds(row[f"{key}_ns"]), row[f"{key}_ns"]))
        if key != "overlapped":
            low, high = row[f"{key}_low_ns"], row[f"{key}_high_ns"]
            cells.append(Cell("" if low is None else f"[{milliseconds(low)}, {milliseconds(high)}]", low))
    cells.append(Cell(percent(row["last_share"], 0), row["last_share"]))
    cells += [Cell(bytes_(row[key]), row[key]) for key in ("peak_memory_bytes", "peak_pss_bytes")]
    cells.append(Cell(amount(row["cpu_cores"], "cores"), row["cpu_cores"]))
    return (*cells, Cell(interval(row["cpu_low_cores"], row["cpu_high_cores"], "cores"), row["cpu_low_cores"]))


def _kinds(kinds: pl.DataFrame) -> Table:
    columns = (
        Column("Collective", numeric=False),
        Column("Where", numeric=False, meaning="backend: beside the training; calling thread: within it"),
        *(Column("Calls"), Column("Bytes"), Column("Total, ms"), Column("Exposed, ms")),
    )
    rows = [
        (
            Cell(name(row["name"]), row["name"]),
            Cell(row["where"], row["where"]),
            Cell(number(row["calls"]), row["calls"]),
            Cell(bytes_(row["bytes"]), row["bytes"]),
            Cell(milliseconds(row["total_ns"]), row["total_ns"]),
            Cell(milliseconds(row["exposed_ns"]), row["exposed_ns"]),
        )
        for row in kinds.iter_rows(named=True)
    ]
    caption = "Means of the profiled steps after warm-up, per step, in this process. Collectives run at once: totals "
    caption += "count each by itself, exposed times count clock time once."
    return Table("collectives", columns, rows, caption, lively=False)


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
