"""`stepscope.study`: a question that needs many runs. The command `stepscope study` asks through the same functions."""

from __future__ import annotations

import importlib
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.api.progress import study_progress
from stepscope.api.requests import STUDIES
from stepscope.errors import UnknownName, UsageError

if TYPE_CHECKING:
    from stepscope.analysis.results import Findings
    from stepscope.experiments.engine.request import StudyRequest
    from stepscope.report.study_results import Charts

FIGURE_FORMATS = ("png", "svg", "pdf")


def study(
    question: str | StudyRequest, /, *, out: str | Path | None = None, progress: bool = False, **settings: Any
) -> Findings:
    """Answer a question with many runs, as `stepscope study NAME`; its answer, tables, notes and the frames of figures.

    question: a request of `stepscope.requests`, or its name with its fields as settings: kernels, breakdown, batch,
    threads, precision, power-modes, optimizers, partial, daily, observations. The fields are the options of the
    command, with _ for -: `quick=True`, `workload="lenet"`, `batch=[1, 2, 4]`, `lr={"adam": 0.003}`,
    `import_="tables"`; an amount is an SI number or a text: `fractions=(0.125,)` or `"12.5%"`, `charging="1h"`.
    out: the folder of the study, with page and figures; the same call with the same folder goes on where it stopped
    (studies/<time>-<name> by default). progress: on stderr. Units stand in the names of the columns; null is "not
    measured".

    Raises UnknownName for a study or setting that is not there, UsageError for a value that cannot be or a folder that
    holds another question, OutputNotWritable; KeyboardInterrupt leaves the folder so that it can be gone on with.
    """
    request = _request_named(question, settings) if isinstance(question, str) else question
    if settings and request is question:
        raise UsageError("a request has its settings already", "give the request, or the name of the study")
    checked = request.checked()
    return answer(request, checked, study_path(request, None if out is None else Path(out)), progress)


def answer(request: StudyRequest, checked: StudyRequest, folder: Path, progress: bool) -> Findings:
    """Answer a request in a folder, with findings.json, figures and page.html; `checked` is what it stores."""
    from stepscope.experiments.engine.engine import answer_study
    from stepscope.experiments.engine.folder import StudyFolder
    from stepscope.report.html import write_text
    from stepscope.report.study_results import render, save_figures

    with study_progress(progress) as watch:
        findings = answer_study(checked, folder, watch=watch, command=study_command(request, folder))
    StudyFolder(folder, request.study, checked.to_dict()).conclude(findings)
    charts = _charts(request.study, findings)
    save_figures(charts, folder / "figures", findings.title, FIGURE_FORMATS)
    write_text(folder / "page.html", render(findings, charts))
    return findings


def study_path(request: StudyRequest, out: Path | None) -> Path:
    """The folder of a study: the one given, else studies/<UTC time>-<study>[-<subject>]."""
    if out is not None:
        return out
    name = "-".join(part for part in (request.study, re.sub(r"[^A-Za-z0-9._-]+", "_", request.subject)) if part)
    return Path("studies") / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{name}"


def study_command(request: StudyRequest, folder: Path) -> str:
    """The line that asks this again, and goes on in the same folder."""
    return request.command_line("stepscope", "study", request.study, out=folder)


def _request_named(name: str, settings: dict[str, Any]) -> StudyRequest:
    if name == "compare":
        raise UsageError(
            f"'{name}' is no question of its own in Python", "use stepscope.compare and stepscope.check"
        )  # fmt: skip
    if name not in STUDIES:
        raise UnknownName("study", name, STUDIES)
    return STUDIES[name].request.from_settings(settings, name)


def _charts(study: str, findings: Findings) -> Charts:
    module, _, function = STUDIES[study].charts.partition(":")
    charts: Charts = {}
    if module:
        charts = getattr(importlib.import_module(f"stepscope.report.charts.{module}"), function)(findings.frames)
    return charts
