"""`stepscope fit --figures DIR`: the answer as pictures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError
from stepscope.units import bytes_

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from stepscope.record.job import Job
    from stepscope.studies.fit.allocators import Traded
    from stepscope.studies.fit.answer import Question
    from stepscope.studies.fit.result import FitResult

    Picture = tuple[str, Callable[[int], Any], str]  # name, chart of a width in px, description

_NEAR = 2.0  # a limit further above the peak than this would only make the drawing flat


def draw(
    folder: Path, forms: Sequence[str], found: FitResult, question: Question | None, beside: Sequence[Job],
    traded: Sequence[Traded],
) -> list[Path]:  # fmt: skip
    """Write every picture that the answer has data for; the paths.

    StepscopeError where fake tensors could not run the model, so that there is no step to draw.
    """
    from stepscope.report.figures import write_chart

    if found.events is None or found.events.is_empty():
        raise StepscopeError(f"there is no dry run of {found.name} to draw: {found.stopped}", "leave --figures out")
    pictures = [*_of_step(found), *_of_trade(found, traded)]
    if question is not None:
        pictures += [*_of_models(question, beside), *_of_table(found, question)]
    stem = found.name.replace(":", "-").replace("/", "-")
    return [
        write_chart(chart, description, folder, f"{name}-{stem}", form)
        for name, chart, description in pictures
        for form in forms
    ]


def _of_step(found: FitResult) -> Iterator[Picture]:
    from stepscope.analysis.memory_events import held_by_module, peak
    from stepscope.report.charts import memory_dry_step, memory_treemap
    from stepscope.studies.fit.drawn import step_series

    series, limit_mb = step_series(found.events), _limit_of_tensors(found)
    near = limit_mb if limit_mb is not None and limit_mb <= _NEAR * found.peak_bytes / 1e6 else None
    said = f"{found.name}, batch {found.batch}" if found.batch else found.name
    yield "fit-step", lambda width: memory_dry_step.build(series, width, near), f"{said}: live tensors over a step"
    reached = peak(found.events)
    if reached is not None:
        modules = held_by_module(reached.tensors)
        yield "fit-modules", lambda width: memory_treemap.build(modules, width), f"{said}: the peak by module"


def _of_models(question: Question, beside: Sequence[Job]) -> Iterator[Picture]:
    """Training against inference, and categories against batch, of this model and those beside it."""
    from stepscope.report.charts import memory_by_batch, memory_dry_step
    from stepscope.studies.fit import drawn
    from stepscope.studies.fit.simulator import Simulator

    simulator = Simulator(question.platform, question.kept, question.allocator)
    jobs = [question.job, *beside]
    both = drawn.training_and_inference(simulator, [(job, question.batch) for job in jobs])
    yield (
        "fit-inference",
        lambda width: memory_dry_step.build_side_by_side(both, width),
        "live tensors over a step, training and inference",
    )
    rows = drawn.categories_by_batch(simulator, jobs, drawn.batches_around(question.batch))
    yield "fit-batches", lambda width: memory_by_batch.build(rows, width), "live tensors at the peak by batch"


def _of_table(found: FitResult, question: Question) -> Iterator[Picture]:
    """Batches against options, where a limit was given."""
    from stepscope.report.charts import memory_fit
    from stepscope.studies.fit import drawn

    if question.limit is None:
        return
    names = [option.name for option in found.options if "accumulated" not in option.name]
    rows = drawn.options_by_batch(question, question.limit, names, drawn.batches_around(question.batch))
    said = f"{found.name}: peak of the process against a limit of {bytes_(question.limit.bytes)}"
    yield "fit-options", lambda width: memory_fit.build(rows, width), said


def _of_trade(found: FitResult, traded: Sequence[Traded]) -> Iterator[Picture]:
    from stepscope.report.charts import allocator_trade
    from stepscope.studies.fit.allocators import as_frame

    rows = as_frame(traded)
    if not rows.is_empty():
        said = f"{found.name}: what each allocator costs, measured"
        yield "fit-allocators", lambda width: allocator_trade.build(rows, width), said


def _limit_of_tensors(found: FitResult) -> float | None:
    """What a limit leaves for live tensors, MB, beside the empty process and the allocator."""
    if found.limit is None:
        return None
    return (found.limit.bytes - (found.process.middle - found.peak_bytes)) / 1e6
