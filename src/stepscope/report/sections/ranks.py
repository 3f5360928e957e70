"""The processes of a distributed training side by side, and what their collectives cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from stepscope.report.page.parts import Items, More, Note, Part, Section
from stepscope.report.table import Cell, Column, Row, Table, interval_column, number_column, text_column, whole_percent
from stepscope.report.terminal_report import communication_sentences, rank_sentences
from stepscope.units import capitalize_first, milliseconds, number, page_name

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
    ranks, kinds = run.side_by_side, run.communication()
    if len(ranks.parts) < 2 and kinds.is_empty():
        return Section("")
    return Section(_opening_sentence(run), tuple(_parts(run, kinds)))


def _opening_sentence(run: Run) -> str:
    count = len(run.ranks)
    parts = [
        f"{count:,} {'process' if count == 1 else 'processes'} trained.",
        *(f"{capitalize_first(line)}." for line in rank_sentences(run.rank_table())),
    ]
    communication = communication_sentences(run)
    return " ".join([*parts, *(f"Communication: {communication[0]}." for _ in communication[:1])])


def _parts(run: Run, kinds: pl.DataFrame) -> Iterator[Part]:
    ranks = run.side_by_side
    if len(ranks.parts) > 1:
        yield _table(ranks.table)
    more: list[Part] = []
    if ranks.notes:
        more.append(Items(tuple((f"{capitalize_first(note)}.", "") for note in ranks.notes)))
    if not kinds.is_empty():
        more += [_collective_table(kinds), Note(_CAVEAT)]
    if more:
        yield More("Collectives, and what to know", tuple(more))


def _table(rows: pl.DataFrame) -> Table:
    columns = [
        Column("Rank", False, of=_rank),
        number_column("Samples/s", "samples_per_s", number),
    ]
    for key, (title, meaning) in _TIMES.items():
        columns.append(number_column(f"{title}, ms", f"{key}_ns", milliseconds, meaning=meaning))
        if key != "overlapped":
            columns.append(interval_column(f"{key}_low_ns", f"{key}_high_ns", milliseconds, title="95 % CI, ms"))
    columns += [
        number_column(
            "Last", "last_share", whole_percent, meaning="Share of the steps in which it was the last to arrive"
        ),
        number_column(
            "Peak memory",
            "peak_memory_bytes",
            "B",
            meaning="Most that was resident (RSS), pages shared with others included",
        ),
        number_column(
            "Peak PSS",
            "peak_pss_bytes",
            "B",
            meaning="The same with a shared page divided by its users, read less often",
        ),
        number_column(
            "CPU utilisation",
            "cpu_cores",
            "cores",
            meaning="CPU time of the process over time, in its steps after warm-up",
        ),
        interval_column("cpu_low_cores", "cpu_high_cores", "cores"),
        *(number_column(title, title.lower(), "{:,}".format) for title in ("Steps", "Profiled")),
        text_column("Status", "status"),
        number_column("Process", "pid", str, missing="", meaning="Its number in the system (pid)"),
    ]
    caption = "Medians of the profiled steps after warm-up, per step; the step time is of unprofiled steps where there "
    caption += "are enough of them. Open one part with stepscope report RUN/ranks/1."
    return Table.from_rows("ranks", columns, rows.iter_rows(named=True), caption)


def _rank(row: Row) -> Cell:
    return Cell(f"{row['rank']}" if row["rank"] is not None else f"process {row['process']}", row["process"])


def _collective_table(kinds: pl.DataFrame) -> Table:
    columns = (
        Column("Collective", False, of=lambda row: Cell(page_name(row["name"]), row["name"])),
        text_column("Where", "where", meaning="backend: beside the training; calling thread: within it"),
        number_column("Calls", "calls", number),
        number_column("Bytes", "bytes", "B"),
        number_column("Total, ms", "total_ns", milliseconds),
        number_column("Exposed, ms", "exposed_ns", milliseconds),
    )
    caption = "Means of the profiled steps after warm-up, per step, in this process. Collectives run at once: totals "
    caption += "count each by itself, exposed times count clock time once."
    return Table.from_rows("collectives", columns, kinds.iter_rows(named=True), caption, lively=False)
