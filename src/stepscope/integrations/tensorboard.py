"""TensorBoard: scalars a step, the figures of the run, its verdict as text, and the page beside the event file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import OutputNotWritable
from stepscope.integrations._library_hooks import import_library
from stepscope.integrations._run_content import (
    flatten_values,
    logged_values,
    settings,
    start_unix_s,
    step_series,
    write_page,
)

if TYPE_CHECKING:
    from stepscope.analysis.run import Run

TITLE = "TensorBoard event file, the page beside it"
EXTRA = "tensorboard"


def log_run(run: Run, out: str | Path | None = None, *, page: bool = True) -> str:
    """Write an event file, with the times of the run itself, and return its folder.

    out: the log folder that TensorBoard is given (default `tensorboard`); the run has a folder of its id in it.
    """
    library = import_library("tensorboard.summary.writer.event_file_writer", EXTRA)
    folder = Path(out or "tensorboard") / run.id
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writer = library.EventFileWriter(str(folder))
        try:
            _write(writer, run)
        finally:
            writer.close()
    except OSError as error:
        raise OutputNotWritable(
            f"cannot write '{folder}': {error.strerror or error}", "choose a folder with --out"
        ) from error
    if page:
        write_page(run, folder)
    return str(folder)


def _write(writer: Any, run: Run) -> None:
    events = import_library("tensorboard.compat.proto.event_pb2", EXTRA)
    summaries = import_library("tensorboard.compat.proto.summary_pb2", EXTRA)
    last, last_s = 0, start_unix_s(run) or 0.0
    for step, unix_s, step_values in step_series(run):
        last, last_s = step, unix_s
        values = [summaries.Summary.Value(tag=f"step/{key}", simple_value=value) for key, value in step_values.items()]
        writer.add_event(events.Event(wall_time=unix_s, step=step, summary=summaries.Summary(value=values)))
    values = [
        summaries.Summary.Value(tag=f"run/{key}", simple_value=v)
        for key, v in flatten_values(logged_values(run)).items()
    ]
    values.append(_text(summaries, run))
    writer.add_event(events.Event(wall_time=last_s, step=last, summary=summaries.Summary(value=values)))


def _text(summaries: Any, run: Run) -> Any:
    tensors = import_library("tensorboard.compat.proto.tensor_pb2", EXTRA)
    types = import_library("tensorboard.compat.proto.types_pb2", EXTRA)
    from stepscope.report.table import escaped_markdown

    verdict = run.verdict()
    lines = [
        escaped_markdown(verdict.sentence),
        "",
        *(f"- {escaped_markdown(advice)}" for advice in verdict.next),
        "",
        "| | |",
        "| --- | --- |",
    ]
    lines += [
        f"| {key} | {escaped_markdown(str(value))} |" for key, value in {"status": run.status, **settings(run)}.items()
    ]
    plugin = summaries.SummaryMetadata.PluginData(plugin_name="text")
    return summaries.Summary.Value(
        tag="verdict",
        metadata=summaries.SummaryMetadata(plugin_data=plugin),
        tensor=tensors.TensorProto(dtype=types.DT_STRING, string_val=["\n".join(lines).encode()]),
    )
