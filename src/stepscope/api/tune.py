"""`stepscope.tune`: try changes on a training and measure each; the command `stepscope tune` asks through it."""

from __future__ import annotations

import contextlib
import inspect
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepscope.errors import UnknownName, UsageError, script_not_found_error
from stepscope.experiments.tune import TuneRequest

if TYPE_CHECKING:
    from stepscope.analysis.results import Findings
    from stepscope.experiments.tune.experiment import Tuning
    from stepscope.experiments.tune.tuning_folder import ShowProgress
    from stepscope.experiments.tune.what_if import WhatIf
    from stepscope.report.study_results import Charts

_FIXED = 8  # batches of a loop that are kept for the experiment


def tune(
    training: str | Path | TuneRequest | Callable[[Any], Any],
    batches: Iterable[Any] = (),
    /,
    *,
    model: Any = None,
    optimizer: Any = None,
    others: Any = (),
    out: str | Path | None = None,
    progress: bool = False,
    **settings: Any,
) -> Findings:
    """Try changes on a training and measure each in pairs against it as it is; the findings: answer, tables, notes.

    training: the name of a workload, the path of a script, a request, or a function that makes one step of a batch and
    may return its loss. settings: the options of `stepscope tune` (`minutes=3`, `for_="memory"`, `only=`, `not_=`).

    Of a function: `batches` are a data loader, whose workers are tried as well, or a list of batches; `model` and
    `optimizer` are those that it trains (or lists of them), and `others` what else it changes (or a list). What it
    reaches by name, such as schedulers, generators, counts, lists and objects of your own, is among them anyway. All
    that is put back bit by bit after every block, so that the training goes on as if nothing had been tried. Only
    changes that a running process can make are tried.

    Raises UnknownName for a workload or change that is not there, and UsageError for what cannot be tuned.
    """
    if callable(training):
        named = tuple(others) if isinstance(others, (list, tuple)) else (others,)
        return _tune_step(training, batches, _targets(model, optimizer), named, out, progress, settings)
    if not isinstance(training, (str, Path, TuneRequest)):
        raise UsageError(
            f"{type(training).__name__!r} cannot be tuned",
            "give a workload, a script, or a function that makes a step: stepscope.tune(step, batches, model=..., ...)",
        )
    if isinstance(training, (str, Path)):
        training = TuneRequest.from_settings({"target": str(training), **settings}, "tune")
    findings, _ = run_tune_request(training, tune_path(training, None if out is None else Path(out)), progress)
    return findings


def run_tune_request(request: TuneRequest, folder: Path, progress: bool) -> tuple[Findings, Tuning | WhatIf]:
    """Tune a workload or script in a folder, with findings.json, figures and page.html."""
    from stepscope import workloads
    from stepscope.experiments.sweeps.user_training import refuse_no_function
    from stepscope.experiments.tune.changes import refuse_unknown
    from stepscope.experiments.tune.tuning_folder import tune_in_folder
    from stepscope.record.processes.modules import module_to_run

    request.orders()
    refuse_unknown((*request.only, *request.not_))
    if request.module:
        module_to_run(request.target)
    elif request.of_a_script and not Path(request.target).is_file():
        raise script_not_found_error(request.target)
    if request.of_a_function:
        with _line_if_long(f"calling {request.target}: it returns the parts of a training, and does not train itself"):
            refuse_no_function(request.target)
    elif not request.of_a_script:
        workloads.refuse_unknown(request.target)
    if request.what_if is not None:
        return what_if(request, folder, progress)
    with _progress(progress) as show_progress:
        findings, tuning = tune_in_folder(request, folder, show_progress)
    return _write_pictures(findings, folder), tuning


def what_if(request: TuneRequest, folder: Path, progress: bool) -> tuple[Findings, WhatIf]:
    """Delay each layer of a recorded run, its loader and its optimizer, and return what a perfect one would save."""
    from stepscope.analysis.device.ceilings import ceilings_of, why_no_ceilings
    from stepscope.analysis.run import open_run
    from stepscope.analysis.suggested_changes import refuse_other_training
    from stepscope.experiments.engine.engine import device_name, measured_on
    from stepscope.experiments.engine.folder import StudyFolder
    from stepscope.experiments.engine.sweep_points import training_file_digests
    from stepscope.experiments.tune.pair_statistics import ExperimentStore
    from stepscope.experiments.tune.process import RestartingTraining
    from stepscope.experiments.tune.tuning_folder import store_findings
    from stepscope.experiments.tune.what_if import STUDY, WhatIf, judge_parts, parts_of, recorded_facts

    assert request.what_if is not None
    run = open_run(str(request.what_if))
    refuse_other_training(run, request.target, request.batch, request.arguments, device_name(), request.module)
    request = _as_recorded(request, run.meta)
    orders = {**request.orders(), "facts": {}, "what_if": True}
    settings = {name: value for name, value in request.to_dict().items() if name != "minutes"}
    sources = training_file_digests(request.target, request.module)
    study_folder = StudyFolder(folder, STUDY, settings, sources, measured_on())
    with study_folder.locked(), _progress(progress) as show_progress:
        experiment = WhatIf(
            lambda: RestartingTraining(orders, folder / "runs" / "0.txt", {}), parts_of(run), 60 * request.minutes,
            ExperimentStore(study_folder.store_result, study_folder.results(), show_progress), recorded_facts(run.meta),
        )  # fmt: skip
        experiment.run()
    why = "" if ceilings_of(run) else why_no_ceilings(run)
    findings = judge_parts(experiment, f"What {request.subject} would gain if", why)
    findings = store_findings(replace(findings, study=STUDY), request, study_folder, folder)
    return _write_pictures(findings, folder), experiment


def _as_recorded(request: TuneRequest, meta: Mapping[str, Any]) -> TuneRequest:
    """Return the request with what it leaves open as it was in a run: threads; of a workload batch and optimizer."""
    from stepscope import workloads

    about = meta.get("workload") or {}
    request = replace(request, threads=request.threads or meta.get("threads"))
    if request.of_a_script or request.of_a_function:
        return request
    momentum = bool((about.get("hyperparameters") or {}).get("momentum"))
    workload = workloads.find(request.target)
    names = [
        name for name, maker in workload.makers.items()
        if getattr(maker, "__name__", "") == about.get("optimizer")
        and bool(workload.hyperparameters.get(name, {}).get("momentum")) == momentum
    ]  # fmt: skip
    if names and request.optimizer not in (None, *names):
        raise UsageError(f"--what-if: the run is of {names[0]}, not of {request.optimizer}", f"--optimizer {names[0]}")
    optimizer = request.optimizer or next(iter(names), None)
    return replace(request, batch=about.get("batch_size"), optimizer=optimizer)


def tune_path(request: TuneRequest, out: Path | None) -> Path:
    """The folder of an experiment: the one given, else studies/<UTC time>-tune-<subject>."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "_", request.subject)
    kind = "tune" if request.what_if is None else "what-if"
    return out or Path("studies") / f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{kind}-{name}"


def _write_pictures(findings: Findings, folder: Path) -> Findings:
    """Return the findings, once their figures and their page are written."""
    from stepscope.report.study_results import write_pictures

    write_pictures(findings, lambda: _charts(findings), folder, ("png", "svg", "pdf"))
    return findings


def _charts(findings: Findings) -> Charts:
    from stepscope.report.charts.comparison import tuning_charts

    if findings.settings.get("for_") != "energy":
        return tuning_charts(findings.frames)
    is_estimated = any(note.startswith("Energy is estimated") for note in findings.notes)
    return tuning_charts(findings.frames, "estimated energy" if is_estimated else "energy")


def _targets(model: Any, optimizer: Any) -> Any:
    """Return the models and optimizers of a step; UsageError where it could not be put back."""
    from stepscope.experiments.tune.training import Targets

    models = tuple(model) if isinstance(model, (list, tuple)) else () if model is None else (model,)
    optimizers = tuple(optimizer) if isinstance(optimizer, (list, tuple)) else () if optimizer is None else (optimizer,)
    if not models or not optimizers:
        raise UsageError(
            "which model and optimizer does the step train?",
            "stepscope.tune(step, batches, model=model, optimizer=optimizer): they are put back after each block",
        )
    import torch

    wrong = [part for part in models if not isinstance(part, torch.nn.Module)]
    wrong += [part for part in optimizers if not hasattr(part, "param_groups")]
    if wrong:
        raise UsageError(
            f"{type(wrong[0]).__name__!r} is given for a model or an optimizer, and is none",
            "stepscope.tune(step, batches, model=model, optimizer=optimizer)",
        )
    return Targets(models, optimizers)


def _refuse_other_arguments(step: Callable[..., Any], name: str) -> None:
    """UsageError where the function cannot be called with one batch."""
    with contextlib.suppress(ValueError):  # of a builtin nothing is known
        try:
            inspect.signature(step).bind(None)
        except TypeError as error:
            hint = "take the batch as it comes: def step(batch): inputs, targets = batch"
            raise UsageError(f"'{name}' cannot be called with one batch ({error})", hint) from None


def _tune_step(
    step: Callable[[Any], Any],
    batches: Iterable[Any],
    targets: Any,
    others: tuple[Any, ...],
    out: str | Path | None,
    progress: bool,
    settings: Mapping[str, Any],
) -> Findings:
    from stepscope.experiments.tune.block_runner import LocalTraining, loop_identity, runner_for_loop
    from stepscope.experiments.tune.changes import refuse_unknown
    from stepscope.experiments.tune.loop_protection import recompiled_after
    from stepscope.experiments.tune.training_state import RandomNumbers
    from stepscope.experiments.tune.tuning_folder import measure_changes

    setting_names = {"minutes", "for_", "only", "not_", "plug", "meter_command", "power_model", "apply_power"}
    unknown = [name for name in settings if name not in setting_names]
    if unknown:
        raise UnknownName("setting of a tuned loop", unknown[0], setting_names)
    name = getattr(step, "__name__", "loop")
    _refuse_other_arguments(step, name)
    request = TuneRequest.from_settings({"target": name, **settings}, "tune")
    request.refuse_unused_meters()
    refuse_unknown((*request.only, *request.not_))
    drawn = RandomNumbers()  # libraries that are imported on the way draw some as well
    try:
        with recompiled_after():
            bench = runner_for_loop(step, batches, targets, others, _FIXED)
            place, sources = LocalTraining(bench), loop_identity(step, batches, targets, bench)
            folder = tune_path(request, None if out is None else Path(out))
            with _progress(progress) as show_progress:
                findings, tuning = measure_changes(
                    request, lambda changes, facts: place, folder, show_progress, apart=False, sources=sources
                )
            findings = _write_pictures(findings, folder)
    finally:
        drawn.restore()
    if tuning.interrupted:
        raise KeyboardInterrupt
    return findings


_LONG_S = 5.0  # without a line, that people take for a process that hangs


@contextmanager
def _line_if_long(text: str) -> Iterator[None]:
    """Say on stderr what is being done, if it takes seconds."""
    line = threading.Timer(_LONG_S, sys.stderr.write, [f"{text} ...\n"])
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()


@contextmanager
def _progress(visible: bool) -> Iterator[ShowProgress]:
    """A line on stderr that says what is tried and how much of the time is used; drawn at most twice a second."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    if not visible:
        yield lambda what, share: None
        return
    if not console.is_terminal:
        last = [""]

        def show(what: str, share: float) -> None:
            if what != last[0] and (share >= 0.68 or not last[0]):
                sys.stderr.write(f"{100 * min(1.0, share):3.0f} % {what}\n")
            last[0] = what

        yield show
        return
    columns = (BarColumn(), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, refresh_per_second=2, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, share: bar.update(task, description=what, completed=min(1.0, share))
