"""`stepscope fit --figures DIR`: the answer as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.units import bytes_

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stepscope.footprint.measurements import AllocatorTrade
    from stepscope.footprint.prediction import JobQuestion
    from stepscope.footprint.result import FitResult
    from stepscope.record.dry.job import Job

    Picture = tuple[str, Callable[[int], Any], str]  # name, chart of a width in px, description

_NEAR = 2.0  # a limit further above the peak than this would only make the drawing flat


def draw_figures(
    folder: Path, forms: Sequence[str], found: FitResult, question: JobQuestion | None, beside: Sequence[Job],
    traded: Sequence[AllocatorTrade],
) -> list[Path]:  # fmt: skip
    """Write every picture that the answer has data for; the paths.

    StepscopeError where fake tensors could not run the model, so that there is no step to draw.
    """
    from stepscope.report.figures import write_chart

    if found.events is None or found.events.is_empty():
        raise StepscopeError(f"there is no dry run of {found.name} to draw: {found.stopped}", "leave --figures out")
    pictures = [*_step_pictures(found), *_trade_pictures(found, traded), *_plan_pictures(found)]
    if question is not None:
        pictures += [*_model_pictures(question, beside), *_option_pictures(found, question)]
    stem = found.name.replace(":", "-").replace("/", "-")
    return [
        write_chart(chart, description, folder, f"{name}-{stem}", form)
        for name, chart, description in pictures
        for form in forms
    ]


def _step_pictures(found: FitResult) -> Iterator[Picture]:
    from stepscope.analysis.memory.events import live_by_module, peak
    from stepscope.footprint.chart_data import step_series
    from stepscope.report.charts import memory

    series, limit_mb = step_series(found.events), _tensor_limit(found)
    near = limit_mb if limit_mb is not None and limit_mb <= _NEAR * found.peak_bytes / 1e6 else None
    said = f"{found.name}, batch {found.batch}" if found.batch else found.name
    yield "fit-step", lambda width: memory.build_dry_step(series, width, near), f"{said}: live tensors over a step"
    reached = peak(found.events)
    if reached is not None:
        modules = live_by_module(reached.tensors)
        yield "fit-modules", lambda width: memory.build_treemap(modules, width), f"{said}: the peak by module"


def _model_pictures(question: JobQuestion, beside: Sequence[Job]) -> Iterator[Picture]:
    """Training against inference, and categories against batch, of this model and those beside it."""
    from stepscope.footprint import chart_data
    from stepscope.footprint.simulator import Simulator
    from stepscope.report.charts import across_runs, memory

    simulator = Simulator(question.platform, question.kept, question.allocator)
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


def _option_pictures(found: FitResult, question: JobQuestion) -> Iterator[Picture]:
    """Batches against options, where a limit was given."""
    from stepscope.footprint import chart_data
    from stepscope.report.charts import memory

    if question.limit is None:
        return
    names = [option.name for option in found.options if "accumulated" not in option.name]
    rows = chart_data.options_by_batch(question, question.limit, names, chart_data.batches_around(question.batch))
    said = f"{found.name}: peak of the process against a limit of {bytes_(question.limit.bytes)}"
    yield "fit-options", lambda width: memory.build_options(rows, width), said


def _trade_pictures(found: FitResult, traded: Sequence[AllocatorTrade]) -> Iterator[Picture]:
    from stepscope.footprint.measurements import trade_frame
    from stepscope.report.charts import memory

    rows = trade_frame(traded)
    if not rows.is_empty():
        said = f"{found.name}: what each allocator costs, measured"
        yield "fit-allocators", lambda width: memory.build_allocators(rows, width), said


def _plan_pictures(found: FitResult) -> Iterator[Picture]:
    from stepscope.report.charts import memory

    plan = found.plan
    if plan is not None and plan.candidates:
        limit = None if found.limit is None else found.limit.bytes / 1e6
        rows, said = plan.frame(), f"{found.name}: memory against time of a step"
        yield "fit-plan", lambda width: memory.build_plan(rows, width, limit), said


def _tensor_limit(found: FitResult) -> float | None:
    """Return what a limit leaves for live tensors, MB, beside the empty process and the allocator."""
    if found.limit is None:
        return None
    return (found.limit.bytes - (found.process.middle - found.peak_bytes)) / 1e6
