"""MLflow: a run with its settings, figures, a series a step and the page, in a tracking server or a folder."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from itertools import islice
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

TITLE = "MLflow run"
EXTRA = "mlflow"
_AT_ONCE = 1000  # metrics a request takes
_ENDED = {"ok": "FINISHED", "interrupted": "KILLED", "running": "RUNNING"}


def log_run(run: Run, out: str | Path | None = None, *, experiment: str = "stepscope", page: bool = True) -> str:
    """Log a run and return its MLflow run id; a second time makes a second one.

    out: a tracking address, or a folder; None: as MLflow itself is set up (MLFLOW_TRACKING_URI). Raises
    OutputNotWritable where the tracking server or the folder refuses.
    """
    library = import_library("mlflow", EXTRA)
    try:
        return _log(library, library.MlflowClient(tracking_uri=_address(out)), run, experiment, page)
    except (library.exceptions.MlflowException, OSError) as error:
        raise OutputNotWritable(
            f"MLflow did not take the run: {error}", "give a folder or a tracking address with --out"
        ) from error


def _address(out: str | Path | None) -> str | None:
    if out is None:
        return None
    if "://" in str(out) or str(out) == "databricks":
        return str(out)
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # newer versions keep folders for those who ask for one
    return Path(out).resolve().as_uri()


def _log(library: Any, client: Any, run: Run, experiment: str, page: bool) -> str:
    existing = client.get_experiment_by_name(experiment)
    group = client.create_experiment(experiment) if existing is None else existing.experiment_id
    began = start_unix_s(run)
    tags = {"stepscope.run": run.id, "stepscope.status": run.status, "stepscope.verdict": run.verdict().sentence}
    mlflow_run = client.create_run(
        group, start_time=None if began is None else round(began * 1e3), tags=tags, run_name=run.id
    )
    name: str = mlflow_run.info.run_id
    try:
        _fill(library.entities, client, name, run, page)
    except BaseException:
        with contextlib.suppress(Exception):  # that of the server which refused: what it refused is what matters
            client.set_terminated(name, status="FAILED")
        raise
    client.set_terminated(name, status=_ENDED.get(run.status, "FAILED"))
    return name


def _fill(entities: Any, client: Any, name: str, run: Run, page: bool) -> None:
    parameters = [entities.Param(key, value) for key, value in settings(run).items()]
    client.log_batch(name, params=parameters)
    metrics = _metrics(entities.Metric, run)
    while part := list(islice(metrics, _AT_ONCE)):
        client.log_batch(name, metrics=part)
    _files(client, name, run, page)


def _metrics(metric: Any, run: Run) -> Iterator[Any]:
    last, last_s = 0, start_unix_s(run) or 0.0
    for step, unix_s, step_values in step_series(run):
        last, last_s = step, unix_s
        for key, value in step_values.items():
            yield metric(key, value, round(unix_s * 1e3), step)
    for key, value in flatten_values(logged_values(run)).items():
        yield metric(key, value, round(last_s * 1e3), last)


def _files(client: Any, name: str, run: Run, page: bool) -> None:
    from stepscope.analysis.summary import summary

    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "summary.json").write_text(json.dumps(summary(run), indent=1), encoding="utf-8")
        if page:
            write_page(run, Path(folder))
        client.log_artifacts(name, folder, "stepscope")
