"""The answer of `stepscope fit` in words, tables and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.text import Text

from stepscope.errors import StepscopeError
from stepscope.report.table import Cell, Column, Table, terminal_table
from stepscope.report.terminal_tables import labelled
from stepscope.units import bytes_, category_label, estimate, interval, join_interval, percent, plural

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from stepscope.footprint.plan import Plan
    from stepscope.footprint.prediction_trials import AllocatorTrade
    from stepscope.footprint.result import FitResult, Option

# `stepscope fit` on the terminal: the verdict, the memory at the peak, and what would make it smaller.

_VERDICT_TEXTS = {
    "fits": "It fits.",
    "likely fits": "It likely fits.",
    "too close": "Too close to say.",
    "cannot tell": "Cannot tell: a part of the script was followed, and the rest may take more.",
    "does not fit": "It does not fit.",
}
_DOUBTFUL = dict.fromkeys(("likely fits", "too close", "cannot tell"), "yellow")
_COLOURS = {"fits": "green", **_DOUBTFUL, "does not fit": "red"}
_OPTIONS = 4  # of those that need less, without -v


def print_answer(console: Console, answer: FitResult, verbose: bool = False) -> None:
    """Verdict first, then where the bytes are, then what would help."""
    batch = f", batch {answer.batch}" if answer.batch else ""
    console.print(Text(f"{answer.name}{batch}"))
    if answer.limit is not None and answer.verdict is not None:
        limit = f"The limit is {bytes_(answer.limit.bytes)} ({answer.limit.source})."
        console.print(Text.assemble((_VERDICT_TEXTS[answer.verdict], f"bold {_COLOURS[answer.verdict]}"), f" {limit}"))
    elif answer.limit is None:
        console.print(Text("Give a limit to have it judged: --memory 8GB, --board rpi5 or --here", style="dim"))
    console.print(*_facts(answer), sep="\n")
    console.print(_peak_table(answer, verbose))
    if answer.options:
        console.print(*_options(answer, verbose), sep="\n")
    if answer.not_modelled:
        console.print(Text(f"Workspace not known, counted as 0: {', '.join(sorted(answer.not_modelled))}"))
    for note in answer.notes:
        console.print(Text(f"- {note}", style="dim"))
    console.print(Text(f"{answer.method}, {answer.platform}, allocator {answer.allocator}", style="dim"))


def _facts(answer: FitResult) -> Iterator[RenderableType]:
    """Peak of the process, the largest batch, and who reaches the peak."""
    ends = join_interval(bytes_(answer.process.low), bytes_(answer.process.high))
    name = "process peak" if answer.live.reserved is None else "GPU memory"
    text = f"at least {bytes_(answer.process.low)}" if answer.at_least else f"{bytes_(answer.process.middle)} {ends}"
    yield labelled(name, f"{text}, {bytes_(answer.peak_bytes)} of it tensors")
    if answer.live.reserved is not None:
        yield labelled("reserved", f"{interval(*answer.live.reserved, 'B')} by the caching allocator")
    if answer.largest_batch is not None:
        sample_note = f"; each sample takes {bytes_(answer.bytes_per_sample)}" if answer.bytes_per_sample else ""
        yield labelled("largest batch", f"{_largest_batch(answer)}{sample_note}")
    where = f"layer '{answer.peak_module}'" if answer.peak_module else "no layer"
    yield labelled("reached by", f"{answer.peak_op} of {where}, in {answer.live.phase}")
    if answer.scenes:
        decides = max(answer.scenes, key=lambda scene: scene.bytes)
        peaks = ", ".join(f"{scene.name} {bytes_(scene.bytes)}" for scene in answer.scenes)
        yield labelled("tensors while", f"{peaks}: {decides.name} decides")
    if answer.stopped:
        yield labelled("no dry run", answer.stopped)
    if answer.unsure:
        yield labelled("not certain", *answer.unsure)


def _largest_batch(answer: FitResult) -> str:
    """The largest that fits at the upper end of the interval; behind it the largest at its middle."""
    likely = answer.likely_batch if answer.likely_batch and answer.likely_batch > (answer.largest_batch or 0) else None
    if not answer.largest_batch:
        return "none is certain to fit" + (f"; {likely:,} likely fits" if likely else "")
    return f"{answer.largest_batch:,}" + (f" ({likely:,} likely fits)" if likely else "")


def _peak_table(answer: FitResult, verbose: bool) -> RenderableType:
    """Bytes at the peak by category, the largest first; those that round to nothing are one row without -v."""
    total = answer.process.middle
    rows = sorted(answer.breakdown.items(), key=lambda row: -row[1])
    listed = [row for row in rows if verbose or row[1] >= _SMALL * total]
    low, high = answer.process.empty_process
    cells = []
    for name, size in listed:
        ends = name in ("CUDA context", "empty process") and low < high
        names = estimate(size, low, high, "B") if ends else bytes_(size)
        cells.append((Cell(category_label(name)), Cell(names), Cell(percent(size / total))))
    others = [size for name, size in rows if (name, size) not in listed]
    if others:
        cells.append(
            (Cell(plural(len(others), "other")), Cell(bytes_(sum(others))), Cell(percent(sum(others) / total)))
        )
    return terminal_table(Table("peak", (_name_column("at the peak"), Column(""), Column("share")), cells), "list")


def _name_column(title: str) -> Column:
    return Column(title, False, fold=True)


_SMALL = 0.005  # of the peak


def _options(answer: FitResult, verbose: bool) -> Iterator[RenderableType]:
    """What needs less, the most first: a row each, and below the table what each costs, on lines that can be copied."""
    listed = answer.options if verbose else answer.options[:_OPTIONS]
    peak = "process peak" if answer.live.reserved is None else "GPU memory"
    titles = (
        _name_column("what needs less memory (simulated)"),
        *map(Column, (peak, "less", "FLOPs")),
        Column("", False),
    )
    rows = [_option_row(option) for option in listed]
    yield from (Text(""), terminal_table(Table("options", titles, rows), "list"))
    yield from (Text(f"  {option.name}: {option.price}", style="dim") for option in listed)
    if len(listed) < len(answer.options):
        yield Text(f"{len(answer.options) - len(listed)} more: stepscope fit {answer.name} ... -v", style="dim")
    if answer.verdict == "does not fit" and not any(option.verdict == "fits" for option in answer.options):
        yield Text("None of them alone is enough: --plan tries them together.")


def _option_row(option: Option) -> tuple[Cell, ...]:
    ends = interval(option.process.low, option.process.high, "B")
    texts = (option.name, ends, percent(option.gain), f"x {option.compute:.2f}")
    return (*map(Cell, texts), _verdict(option.verdict or ""))


def _verdict(verdict: str) -> Cell:
    return Cell(verdict, style=_COLOURS.get(verdict, ""))


def print_plan(console: Console, plan: Plan) -> None:
    """The chosen combination with the code that does it, and those that no other beats in memory and time."""
    if plan.chosen is None:
        console.print("No combination that was tried fits: it needs a smaller batch or model.")
    else:
        chosen = plan.chosen
        took = f"; an update takes {_seconds(chosen.seconds)}, measured" if chosen.seconds and chosen.timed else ""
        console.print(f"plan: {chosen.settings.words}{took}")
        code = chosen.settings.code(plan.batch)
        console.print(code, markup=False, soft_wrap=True) if code else None
    if plan.proof is not None:
        console.print(f"proof: {plan.proof}")
    priced = plan.step_time
    source = (
        "FLOPs against the present step"
        if priced is None
        else (f"seconds of an update, by a line through steps of {priced.samples[0]} and {priced.samples[1]} samples")
    )
    columns = (
        Column("", False, of=lambda row: row.settings.words, fold=True),
        Column("process peak", of=lambda row: interval(row.process.low, row.process.high, "B")),
        Column("time", of=lambda row: f"x {row.compute:.2f}" if row.seconds is None else _seconds(row.seconds)),
        Column("", False, of=lambda row: "measured" if row.timed else ""),
        Column("", False, of=lambda row: _verdict(row.verdict)),
    )
    console.print(
        terminal_table(Table.from_rows("plan", columns, plan.front), "list", title=f"memory against time: {source}")
    )
    if not plan.complete and not plan.time_over:
        console.print("- combinations that are not expected to be cheaper than the plan were not all simulated")


def _seconds(ends: tuple[float, float]) -> str:
    return estimate(sum(ends) / 2, *ends, "s")


def print_trades(console: Console, trades: Sequence[AllocatorTrade], answer: FitResult) -> None:
    """A line an allocator, the default first: peak and time with their spread, and the difference to the default."""
    titles = ("", "process peak", "", "predicted peak", "CPU time", "")
    rows = [tuple(map(Cell, _trade_row(trade, trades[0]))) for trade in trades]
    table = Table("allocators", tuple(Column(title, False) for title in titles), rows)
    console.print(terminal_table(table, "bold list", title="allocators, measured on this step"))
    for within, text in ((True, "within"), (False, "above")) if answer.limit is not None else ():
        names = [trade.cost.allocator for trade in trades if trade.within_limit is within]
        if names:
            console.print(f"{text} the limit: {', '.join(names)}")
    for trade in trades:
        if trade.cost.missing:
            console.print(f"{trade.cost.allocator}: {_unmeasured_text(trade)}")


def _unmeasured_text(trade: AllocatorTrade) -> str:
    some = trade.cost.peak_bytes is not None
    return f"{'one of its runs was' if some else ''} not measured: {trade.cost.missing}".lstrip()


def _trade_row(trade: AllocatorTrade, first: AllocatorTrade) -> tuple[str, ...]:
    cost, base = trade.cost, first.cost
    low, high = trade.predicted
    if cost.peak_bytes is None or cost.step_s is None or base.peak_bytes is None or base.step_s is None:
        return cost.allocator, "not measured", "", interval(low, high, "B"), "", ""
    return (
        cost.allocator,
        estimate(cost.peak_bytes, cost.peak_low, cost.peak_high, "B"),
        "" if trade is first else f"{cost.peak_bytes / base.peak_bytes - 1:+.1%}",
        interval(low, high, "B"),
        estimate(cost.step_s, cost.step_low_s, cost.step_high_s, "s"),
        "" if trade is first else f"x {cost.step_s / base.step_s:.2f}",
    )


# `stepscope fit --figures DIR`: the answer as pictures.

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stepscope.footprint.prediction import JobQuestion
    from stepscope.footprint.prediction_trials import AllocatorTrade
    from stepscope.footprint.result import FitResult
    from stepscope.record.dry import Job

    Picture = tuple[str, Callable[[int], Any], str]  # name, chart of a width in px, description

_NEAR = 2.0  # a limit further above the peak than this would only make the drawing flat


def draw_figures(
    folder: Path, forms: Sequence[str], answer: FitResult, question: JobQuestion | None, beside: Sequence[Job],
    trades: Sequence[AllocatorTrade],
) -> list[Path]:  # fmt: skip
    """Write every picture that the answer has data for; the paths.

    StepscopeError where fake tensors could not run the model, so that there is no step to draw.
    """
    from stepscope.report.figures import write_chart

    if answer.events is None or answer.events.is_empty():
        raise StepscopeError(f"there is no dry run of {answer.name} to draw: {answer.stopped}", "leave --figures out")
    pictures = [*_step_pictures(answer), *_trade_pictures(answer, trades), *_plan_pictures(answer)]
    if question is not None:
        pictures += [*_model_pictures(question, beside), *_option_pictures(answer, question)]
    stem = answer.name.replace(":", "-").replace("/", "-")
    return [
        write_chart(chart, description, folder, f"{name}-{stem}", form)
        for name, chart, description in pictures
        for form in forms
    ]


def _step_pictures(answer: FitResult) -> Iterator[Picture]:
    from stepscope.analysis.memory.events import live_by_module, peak
    from stepscope.footprint.chart_data import step_series
    from stepscope.report.charts import memory

    series, limit_mb = step_series(answer.events), _tensor_limit(answer)
    near = limit_mb if limit_mb is not None and limit_mb <= _NEAR * answer.peak_bytes / 1e6 else None
    text = f"{answer.name}, batch {answer.batch}" if answer.batch else answer.name
    step = partial(memory.build_step_memory, series, limit_mb=near, across="op")
    yield "fit-step", step, f"{text}: live tensors over a step"
    reached = peak(answer.events)
    if reached is not None:
        modules = live_by_module(reached.tensors)
        yield "fit-modules", lambda width: memory.build_treemap(modules, width), f"{text}: the peak by module"


def _model_pictures(question: JobQuestion, beside: Sequence[Job]) -> Iterator[Picture]:
    """Training against inference, and categories against batch, of this model and those beside it."""
    from stepscope.footprint import chart_data
    from stepscope.footprint.simulator import Simulator
    from stepscope.report.charts import across_runs, memory

    simulator = Simulator(question.platform, question.calibration, question.allocator)
    jobs = [question.job, *beside]
    both = chart_data.training_and_inference(simulator, [(job, question.batch) for job in jobs])
    yield (
        "fit-inference",
        lambda width: memory.build_side_by_side(both, width),
        "live tensors over a step, training and inference",
    )
    peaks = chart_data.peaks(both)
    yield "fit-peak", lambda width: across_runs.build_memory(peaks, width), "live at the peak, training and inference"
    rows = chart_data.categories_by_batch(simulator, jobs, chart_data.batches_around(question.batch))
    yield "fit-batches", lambda width: memory.build_batches(rows, width), "live tensors at the peak by batch"


def _option_pictures(answer: FitResult, question: JobQuestion) -> Iterator[Picture]:
    """Batches against options, where a limit was given."""
    from stepscope.footprint import chart_data
    from stepscope.report.charts import memory

    if question.limit is None:
        return
    names = [option.name for option in answer.options if "accumulated" not in option.name]
    rows = chart_data.options_by_batch(question, question.limit, names, chart_data.batches_around(question.batch))
    text = f"{answer.name}: peak of the process against a limit of {bytes_(question.limit.bytes)}"
    yield "fit-options", lambda width: memory.build_options(rows, width), text


def _trade_pictures(answer: FitResult, trades: Sequence[AllocatorTrade]) -> Iterator[Picture]:
    from stepscope.footprint.prediction_trials import trade_frame
    from stepscope.report.charts import memory

    rows = trade_frame(trades)
    if not rows.is_empty():
        text = f"{answer.name}: what each allocator costs, measured"
        yield "fit-allocators", lambda width: memory.build_allocators(rows, width), text


def _plan_pictures(answer: FitResult) -> Iterator[Picture]:
    from stepscope.report.charts import memory

    plan = answer.plan
    if plan is not None and plan.candidates:
        limit = None if answer.limit is None else answer.limit.bytes / 1e6
        rows, text = plan.frame(), f"{answer.name}: memory against time of a step"
        yield "fit-plan", lambda width: memory.build_plan(rows, width, limit), text


def _tensor_limit(answer: FitResult) -> float | None:
    """Return what a limit leaves for live tensors, MB, beside the empty process and the allocator."""
    if answer.limit is None:
        return None
    return (answer.limit.bytes - (answer.process.middle - answer.peak_bytes)) / 1e6
