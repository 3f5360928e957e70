"""The answer: how fast, at what cost, what limits it, what to do next, and where a step goes by phase."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import polars as pl

from stepscope.analysis.first_screen import headline
from stepscope.analysis.memory.headroom import fits_sentence
from stepscope.analysis.process_scopes import ALL, CHILDREN, LAUNCHER, RANK, WATCHED
from stepscope.analysis.time.steps import profiled_sentence
from stepscope.analysis.time.tables import UNPROFILED, phases_by_step
from stepscope.analysis.verdict import TITLES
from stepscope.quantities import find_quantity, simulated_badge, sort_metrics
from stepscope.report.charts import steps as chart
from stepscope.report.first_screen import advice_sentences, phase_name
from stepscope.report.page.parts import (
    BottleneckAnswer,
    Figure,
    KeyFigure,
    KeyFigures,
    More,
    Note,
    Part,
    Section,
    Shares,
)
from stepscope.report.table import (
    SHARE_MEANING,
    Cell,
    Column,
    Table,
    interval_column,
    number_column,
    share_cell,
    shares_sentence,
)
from stepscope.report.terminal_tables import short_source
from stepscope.units import (
    NOT_MEASURED,
    ROW_LABELS,
    amount,
    capitalize_first,
    duration,
    interval_of_value,
    milliseconds,
    percent,
    row_label,
    without_long_words,
)

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "Answer"
ORDER = 10
FIGURES = ("phases", "step-phases")

_COMMAND = re.compile(r"^(stepscope .+?)(?= (?:tries|measures) )")
_EVIDENCE, _NEXT = 2, 3
_SMALL_LAYER = 0.1  # of the step
_FEWEST_BARS, _MOST_BARS = 8, 150
_TALLEST = 2.5  # times the median step: what is longer is cut
_OF_TIME = ("step_time", "throughput")
_SHORT = {"temperature": "Hottest zone", "accuracy": "Accuracy", "mean_power": "Power"}

_WHOLE = ("run", "cpu", "system", "total", "device")  # scopes that go without saying
_SAID = {WATCHED: " of the training process", CHILDREN: " of child processes", ALL: " of all processes"}
# Of several rows, the one that is not so is shown.
_PREFERRED = (pl.col("scope") == CHILDREN, ~pl.col("source").is_in(["peak_rss", "rss"]), pl.col("source") != "peak_rss")


def build(run: Run) -> Section:
    """Headline numbers, bottleneck with its evidence, phases; every number of the run closed below."""
    verdict = run.verdict()
    first = verdict.causes[0] if verdict.causes else None
    title = verdict.why or verdict.sentence if first is None else f"{TITLES[first.bound]}: {first.name}"
    answer = BottleneckAnswer(
        title=without_long_words(title),
        confidence="" if first is None else first.confidence,
        evidence=() if first is None else tuple(capitalize_first(entry.text) for entry in first.evidence[:_EVIDENCE]),
        cautions=tuple(
            caution for caution in verdict.cautions if not caution.startswith(simulated_badge(run.simulated) or "\0")
        ),
        next=tuple(_COMMAND.sub(r"`\1`", advice) for advice in advice_sentences(run)[:_NEXT]),
        fits=_memory_fit_sentence(run),
        layer=_most_expensive(run),
    )
    headline_figures, every = tuple(headlines(run)), tuple(_key_figures(run))
    phases = run.phases()
    parts: list[Part] = [
        *([KeyFigures(headline_figures)] if headline_figures else []),
        answer,
        *_shares(phases),
        *_phases_by_step_figure(run),
    ]
    more: list[Part] = [*([KeyFigures(every)] if every else []), *_by_phase(phases), *_phase_table(run)]
    if first is not None:
        more.insert(0, Note(without_long_words(verdict.sentence)))
    return Section("", (*parts, *([More("Every headline number, and the phases", tuple(more))] if more else [])))


def headlines(run: Run) -> Iterator[KeyFigure]:
    """The few numbers that answer how fast and at what cost."""
    rows = headline(run)
    metrics = {row.metric for row in rows}
    why = "no power in the import" if run.meta.get("imported") else "see `stepscope doctor`"
    unknown = [KeyFigure("Energy per step", NOT_MEASURED, note=why)]
    unknown = [] if "energy_per_step" in metrics or not len(run.steps) else unknown
    for row in rows:
        note = row.note if row.metric in ("temperature", "accuracy", "throughput") else ""
        note = f"of {amount(row.whole, row.unit)}" if row.whole else note
        label = _SHORT.get(row.metric, row.label)
        if row.metric not in _OF_TIME and unknown:
            yield unknown.pop()
        ends = interval_of_value(row.value, row.low, row.high, row.unit)
        yield KeyFigure(label, amount(row.value, row.unit), ends, note, row.kind)
    yield from unknown


def _memory_fit_sentence(run: Run) -> str:
    """Whether common sizes of memory hold the training; why that cannot be told; nothing where nothing trained."""
    sentence = fits_sentence(run)
    if sentence is None and len(run.steps):
        return "Cannot tell, because the memory of the process was not sampled: `stepscope fit` predicts it"
    return capitalize_first(sentence or "")


def _most_expensive(run: Run) -> str:
    """The layer that takes longest: its name, type, time and share of the step, and the line that calls it."""
    for row in run.layers().head(1).iter_rows(named=True):
        on_device, ns = bool(row["device_ns"]), row["device_ns"] or row["total_ns"]
        if ns and row["layer"]:
            where = "on the accelerator" if on_device else f"{_share(row['share'])} of the step"
            source = [short_source(row["source"])] if row["source"] else []
            kind = f" ({row['type']})" if row["type"] else ""
            return ", ".join([f"{row['layer']}{kind}: {duration(ns)}", where, *source]) + _same_type_total_text(
                run, row
            )
        if ns and "compiled" in set(run.model["region"].drop_nulls() if "region" in run.model.columns else ()):
            return "cannot be told: torch.compile ran the layers as one; a run without it lists them"
    return ""


def _same_type_total_text(run: Run, row: dict[str, Any]) -> str:
    """What all layers of a type take together, where a single one is a small part of the step; else nothing."""
    alike = run.layers().filter(pl.col("type") == pl.lit(row["type"], pl.String))
    if row["device_ns"] or len(alike) < 2 or (row["share"] or 1.0) >= _SMALL_LAYER:
        return ""
    return f"; all {len(alike):,} {row['type']} layers: {percent(float(alike['share'].sum()), 0)}"


def _share(share: float | None) -> str:
    return percent(share, 0 if share is None or share >= _SMALL_LAYER else 1)


def _key_figures(run: Run) -> Iterator[KeyFigure]:
    of_a_rank = pl.col("scope").str.starts_with(RANK) | (pl.col("scope") == LAUNCHER)  # in the table of ranks
    metrics = run.metrics().filter(pl.col("value").is_not_null() & ~of_a_rank)
    for metric in sort_metrics(metrics["metric"]):
        rows = metrics.filter(pl.col("metric") == metric).sort(*_PREFERRED, maintain_order=True)
        definition = find_quantity(metric, rows["unit"][0])
        for row in rows.head(len(rows) if definition.plain else int(definition.headline)).iter_rows(named=True):
            of = "" if row["scope"] in _WHOLE else _SAID.get(row["scope"], f", {row['scope'].replace(':', ' ')}")
            unit = definition.shown_unit
            ends = interval_of_value(row["value"], row["low"], row["high"], unit)
            yield KeyFigure(f"{definition.label}{of}", amount(row["value"], unit), ends, row["note"] or "")
    accuracy = (run.meta.get("result") or {}).get("accuracy")
    if isinstance(accuracy, int | float):
        yield KeyFigure("Accuracy on test data", percent(accuracy), note=_data(run))


def _data(run: Run) -> str:
    data = (run.meta.get("workload") or {}).get("data")
    return f"{data.get('name')}, {data.get('kind')}" if isinstance(data, dict) else ""


def _shares(phases: pl.DataFrame) -> Iterator[Part]:
    """The step by phase as one bar with its shares; what is below 0 (threads overlap) is in the table only."""
    rows = phases.filter(pl.col("share") > 0).iter_rows(named=True)
    shares = tuple((phase_name(row["phase"], phases), row["phase"], row["share"]) for row in rows)
    if shares:
        yield Shares("Where the step goes", shares)


def _phases_by_step_figure(run: Run) -> Iterator[Part]:
    """A stacked bar for each step over the run: a step that differs from the others, and in which phase."""
    parts = phases_by_step(run, _MOST_BARS)
    if parts["step"].n_unique() < _FEWEST_BARS:
        return
    ms = pl.col("ns") / 1e6
    drawn = parts.with_columns(
        phase=pl.col("phase").replace({**ROW_LABELS, UNPROFILED: "time only"}),
        at=pl.col("step").rank("dense").cast(pl.Int64) - 1,
        t0_ms=pl.col("t0_ns") / 1e6,
        t1_ms=(pl.col("t0_ns") + pl.col("ns")) / 1e6,
    ).with_columns(hover=pl.format("step {}: {} {} ms", "step", "phase", ms.round(3)))
    lengths = parts.group_by("step").agg(ms.sum())["ns"]
    top = min(float(lengths.max() or 0), _TALLEST * float(lengths.median() or 0))  # type: ignore[arg-type]
    count, chosen = parts["step"].n_unique(), len(run.steps) - run.warmup_steps
    which = f"{count} of the {chosen:,} steps" if count < chosen else f"All {chosen:,} steps"
    cut = f" Steps longer than {_TALLEST:g} times the median are cut off." if float(lengths.max() or 0) > top else ""  # type: ignore[arg-type]
    grey = " Coloured: profiled. Grey: only timed." if (parts["phase"] == UNPROFILED).any() else ""
    caption = f"{which} after warm-up, in order, as they ran.{grey}{cut}"
    yield Figure(lambda width: chart.build_step_phases(drawn, top, width), caption, FIGURES[1])


def _by_phase(phases: pl.DataFrame) -> Iterator[Part]:
    """The bar of phases; a framework overhead below 0 (threads overlap) is in the table only."""
    if phases.is_empty():
        return
    drawn = phases.filter(pl.col("ns") > 0).with_columns(
        phase=pl.col("phase").replace(ROW_LABELS), t1_ms=pl.col("ns").cum_sum() / 1e6
    )
    drawn = drawn.with_columns(t0_ms=pl.col("t1_ms") - pl.col("ns") / 1e6, hover=_hover())
    caption = "Where the step goes, as it runs without the profiler."
    yield Figure(
        lambda width: chart.build_phases(drawn.select("phase", "t0_ms", "t1_ms", "hover"), width), caption, FIGURES[0]
    )


def _phase_table(run: Run) -> Iterator[Part]:
    phases = run.phases()
    if not phases.is_empty():
        yield _table(phases)
        yield Note(f"Of {profiled_sentence(run)}.")


def _hover() -> pl.Expr:
    ms, percents = (pl.col("ns") / 1e6).round(3), (pl.col("share") * 100).round(1)
    return pl.format("{}: {} ms, {} % of the step", "phase", ms, percents)


def _table(phases: pl.DataFrame) -> Table:
    columns = (
        Column("Phase", False, of=lambda row: Cell(row_label(row["phase"]), row["phase"])),
        number_column("ms a step", "ns", milliseconds),
        interval_column("low_ns", "high_ns", milliseconds, title="95 % CI, ms", missing=NOT_MEASURED),
        Column("Share", meaning=SHARE_MEANING, of=lambda row: share_cell(row, "ns", bar=False)),
        *(
            [number_column("Kernels, ms a step", "device_ns", milliseconds)]
            if phases["device_ns"].is_not_null().any()
            else []
        ),
    )
    caption = shares_sentence(phases.iter_rows(named=True), "ns").strip()
    return Table.from_rows("phases", columns, phases.iter_rows(named=True), caption, lively=False)
