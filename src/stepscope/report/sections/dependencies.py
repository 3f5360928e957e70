"""Which operator waits for which: the critical path, what could overlap, and what device or cores are idle for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepscope.report.charts.steps import build_schedules
from stepscope.report.page.parts import Figure, Part, Section
from stepscope.report.table import Column, Table, interval_column, number_column, percent_bar_column, text_column
from stepscope.units import milliseconds, page_name, percent, plural

if TYPE_CHECKING:
    from stepscope.analysis.run import Run
    from stepscope.analysis.time.dependencies import Dependencies

TITLE = "Dependencies"
ORDER = 57
FIGURES = ("schedules",)

_MOST_ROWS = 300
_CAPTION = (
    "One step by phase: as recorded, with host code beside operators, and with independent operators on two lanes. "
    "Operators keep their times."
)
AT_MOST = (
    "Reached: by a schedule in which operators run as fast side by side as alone. At most: no order of these operators "
    "saves more. On cores that operators share already it is less, and may be nothing."
)


def build(run: Run) -> Section:
    """Tables of `run.dependencies()`."""
    dependencies = run.dependencies()
    if dependencies.units.is_empty():
        return Section(dependencies.why if len(run.steps) else "")
    parts: list[Part] = []
    if not dependencies.timeline.is_empty():
        parts.append(Figure(lambda width: build_schedules(dependencies.timeline, width), _CAPTION, FIGURES[0]))
    parts += [
        overlap_table(dependencies),
        *([idle_table(dependencies)] if len(dependencies.idle) else []),
        _path_table(dependencies),
    ]
    return Section(path_sentence(dependencies), tuple(parts), closed=True)


def path_sentence(dependencies: Dependencies) -> str:
    """Return the length of the critical path beside the work and the step, as a sentence."""
    path = f"{milliseconds(dependencies.critical_path_ns)} ms of {milliseconds(dependencies.work_ns)} ms of operators"
    share = percent(dependencies.critical_path_ns / dependencies.step_ns, 0)
    return f"Critical path along the data: {path}, {share} of the step; {plural(len(dependencies.units), 'operator')}."


def overlap_table(dependencies: Dependencies) -> Table:
    """Return the table of what could run side by side, and how much of a step that would save."""
    columns = (
        text_column("Could overlap", "what"),
        number_column("Lanes", "lanes", str),
        number_column("Reached, ms", "reached_ns", milliseconds),
        interval_column("reached_low_ns", "reached_high_ns", milliseconds),
        number_column("At most, ms", "most_ns", milliseconds),
        percent_bar_column("Of the step, at most", "share"),
    )
    return Table.from_rows("overlap", columns, dependencies.overlap.iter_rows(named=True), AT_MOST, lively=False)


def idle_table(dependencies: Dependencies) -> Table:
    """Return the table of what the accelerator, or the cores, are idle for."""
    columns = (
        text_column("Idle for", "cause"),
        text_column("Device", "device"),
        number_column("ms a step", "ns", milliseconds),
        percent_bar_column("Share", "share"),
    )
    on_cpu = bool((dependencies.idle["device"] == "cpu").all())
    caption = (
        "Idle core time, and its share of the time of all cores: one works while data load, outside operators and "
        "while they are dispatched; within operators it is what the measured CPU utilisation leaves."
        if on_cpu
        else "Time in which no kernel ran, by what the host did meanwhile, and its share of the step."
    )
    return Table.from_rows("idle", columns, dependencies.idle.iter_rows(named=True), caption, lively=False)


def _path_table(dependencies: Dependencies) -> Table:
    waited = dependencies.units["after"].list.len().alias("waits_for")
    path = dependencies.units.with_columns(waited).filter("critical").sort("duration_ns", descending=True)
    columns: tuple[Column, ...] = (
        text_column("On the critical path", "name", page_name),
        text_column("Layer", "module", page_name, missing=""),
        text_column("Phase", "phase"),
        number_column("ms", "duration_ns", milliseconds),
        number_column(
            "Waits for", "waits_for", str, meaning="Operators whose results it needs, or must not overwrite early"
        ),
    )
    return Table.from_rows("critical-path", columns, path.head(_MOST_ROWS).iter_rows(named=True), lively=len(path) > 12)
