"""`stepscope fit`: will this training fit, at which batch, and what would make it fit?"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from stepscope.api.requests import FitRequest
from stepscope.cli._options import ScriptCommand, make_command, refuse_unknown_target
from stepscope.errors import StepscopeError, UsageError, script_not_found_error
from stepscope.record.processes.modules import module_to_run
from stepscope.request import UNITS, is_function
from stepscope.units import bytes_, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from stepscope.analysis.memory.limits import BaselineMemory, Limit, ProcessPeak
    from stepscope.footprint.calibration import DeviceCalibration
    from stepscope.footprint.plan import Plan
    from stepscope.footprint.prediction import JobQuestion
    from stepscope.footprint.prediction_trials import AllocatorTrade, Trial
    from stepscope.footprint.real_steps import RealSteps
    from stepscope.footprint.result import FitResult
    from stepscope.footprint.transforms import Variant
    from stepscope.record.dry import Job
    from stepscope.record.dry.allocator_costs import StepCost


CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": False}
PARSER = ScriptCommand


def _fit(
    request: FitRequest,
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print every option and category.")] = False,
) -> None:
    from rich.console import Console

    target, batch = request.target, request.batch
    _refuse_unknown(request)
    from stepscope.footprint.jobs import is_script

    _check_request_set_threads(request)
    _check_pictures(request.figures, request.beside, request.format)
    script = request.module or is_script(target)
    out = _reserve_stdout_for_answer() if script else sys.stdout
    if script:
        _refuse_for_a_script(
            request.device, batch=batch, optimizer=request.optimizer, calibrate=request.calibrate, probe=request.probe,
            beside=request.beside, plan=request.plan, prove=request.prove,
            precision=_is_option_typed(context, "precision"),
        )  # fmt: skip
    elif context.args:
        extra = " ".join(context.args)
        of_a_unit = bool(request.memory) and extra.lower() in UNITS["B"].factors
        hint = f"an amount is one word: --memory {request.memory}{extra}" if of_a_unit else "that is for a script"
        raise UsageError(f"'{extra}': a workload takes no arguments of its own", hint)
    from stepscope.cli._fit_answer import draw_figures
    from stepscope.footprint.jobs import job_of_target
    from stepscope.footprint.prediction import predict_fit, requested_limit
    from stepscope.footprint.real_steps import RealSteps

    job = None if script else job_of_target(target, request.optimizer, request.precision, numbers=False)
    console = Console(file=sys.stderr if as_json else out, highlight=False)
    question, calibration = None, _load_or_measure_calibration(console, job, request)
    limit = requested_limit(request.memory, request.board, request.here, request.account)
    if job is None:
        answer = _predict_script_fit(console, request, context.args, limit)
    else:
        question = _build_job_question(request, job, limit, calibration)
        answer = predict_fit(question)
    real = RealSteps(
        target, answer.batch or None, request.optimizer, request.precision, request.threads, tuple(context.args),
        module=request.module,
    )  # fmt: skip
    trades = measure_allocators(console, real, answer, calibration) if request.allocators else []
    if question is not None and (request.plan or request.prove):
        answer = _with_plan(console, question, request, real, answer)
    _print(console, answer, trades, out if as_json else None, verbose)
    if request.figures is not None:
        beside = [job_of_target(name, None, numbers=False) for name in request.beside or ()]
        files = draw_figures(request.figures, request.format or ["png"], answer, question, beside, trades)
        console.print("\n".join(map(str, files)), soft_wrap=True)
    if request.probe and question is not None:
        store_prediction_errors(console, question, real)


fit = make_command(FitRequest, _fit, "fit")


def _print(
    console: Console, answer: FitResult, trades: list[AllocatorTrade], json_out: TextIO | None, verbose: bool
) -> None:
    from stepscope.cli._fit_answer import print_answer, print_plan, print_trades
    from stepscope.footprint.prediction_trials import trade_dicts

    if json_out is not None:
        measured = {"allocators": trade_dicts(trades)} if trades else {}
        typer.echo(json.dumps({**answer.as_dict(), **measured}, indent=1), file=json_out)
        return
    print_answer(console, answer, verbose)
    if trades:
        print_trades(console, trades, answer)
    if answer.plan is not None:
        print_plan(console, answer.plan)


def _with_plan(
    console: Console, question: JobQuestion, request: FitRequest, real: RealSteps, answer: FitResult
) -> FitResult:
    """The answer with its plan, or with why there is none."""
    from stepscope.footprint.plan import NoPlan
    from stepscope.record.dry.dry_run import model_of

    if answer.stopped is not None:
        return replace(answer, notes=(*answer.notes, f"no plan: {answer.stopped}"))
    try:
        plan, notes = _make_and_prove_plan(console, question, request, real)
    except NoPlan as error:
        return replace(answer, notes=(*answer.notes, str(error)))
    return replace(answer, plan=plan, notes=(*answer.notes, *notes, *plan.notes(model_of(question.job))))


def _make_and_prove_plan(
    console: Console, question: JobQuestion, request: FitRequest, real: RealSteps
) -> tuple[Plan, list[str]]:
    """The cheapest combination that fits, priced by real steps of small batches here, and its proof; notes on both."""
    from stepscope.footprint.plan import make_plan, measured_step_time, with_measured_times
    from stepscope.footprint.prediction_trials import prove_under_limit, train_in_child

    def step(batch: int) -> StepCost:
        # what an allocator is slower by is told against the default
        return train_in_child(replace(real, batch=batch).command(_PRICED), "default")

    def steps_of(settings: Variant) -> StepCost:
        return train_in_child(replace(real, changed=asdict(settings)).command(_TIMED), settings.allocator)

    elsewhere, priced = request.board is not None or request.device != "cpu", None
    notes: list[str] = []
    if not elsewhere:
        with console.status("timing small batches"):
            try:
                priced = measured_step_time(step, question.batch)
            except StepscopeError as error:
                notes.append(f"plan: prices are FLOPs, because small batches could not be timed: {error}")
    with console.status("simulating combinations"):
        plan = make_plan(question, priced)
    if priced is not None:
        with console.status("timing the plan"):
            plan = with_measured_times(plan, steps_of)
    if not request.prove or plan.chosen is None or question.limit is None:
        return plan, notes
    if elsewhere:
        raise UsageError("--prove trains on this machine's processor", "run it on the board with --memory")
    settings = plan.chosen.settings
    with console.status("running the plan under the limit"):
        proof = prove_under_limit(
            replace(real, changed=asdict(settings)).command(3), settings.allocator, question.limit
        )
    return replace(plan, proof=proof), notes


def _refuse_unknown(request: FitRequest) -> None:
    """A workload, script or module that is none, before anything heavy is imported, or said of it."""
    target = request.target
    if request.module:
        module_to_run(target)
        return
    if target.endswith(".py") and not Path(target).is_file():
        raise script_not_found_error(target)
    if ":" not in target and not target.endswith(".py") and not Path(target).exists():
        refuse_unknown_target(target, "fit")


def _check_request_set_threads(request: FitRequest) -> None:
    batch, precision, device, threads = request.batch, request.precision, request.device, request.threads
    if batch is not None and batch < 1:
        raise UsageError(f"a batch of {batch} samples cannot be trained", "use --batch 1 or more")
    if precision not in ("float32", "bf16"):
        raise UsageError(f"--precision {precision}: not known", "fp32 or bf16")
    if device not in ("cpu", "cuda"):
        raise UsageError(f"--device {device}: not known, cpu or cuda", f"of a board: --board {device}")
    if device == "cuda" and (request.here or request.account != "resident"):
        raise UsageError("--here and --account are of this machine's RAM", "give the GPU's memory: --memory 8GB")
    elsewhere = f"--board {request.board}" if request.board is not None else f"--device {device}"
    for name in ("allocators", "probe"):
        if getattr(request, name) and elsewhere != "--device cpu":
            raise UsageError(f"--{name} trains on this machine's processor, not on {elsewhere}", "run it there")
    if threads is not None:
        if threads < 1:
            raise UsageError(f"--threads {threads}: torch needs at least one")
        import torch

        torch.set_num_threads(threads)
    if request.optimizer is not None and not request.module and is_function(request.target):
        raise UsageError("the function chooses the optimizer", "leave --optimizer out")


def _check_pictures(figures: Path | None, beside: Sequence[str] | None, form: Sequence[str] | None) -> None:
    if figures is None:
        if beside or form:
            raise UsageError(f"--{'beside' if beside else 'format'} is for pictures", "give a folder: --figures DIR")
        return
    from stepscope.errors import MissingDependency, UnknownName

    try:
        from stepscope.report.figures import SUFFIXES
    except ModuleNotFoundError as error:
        hint = "pip install 'stepscope[report]'"
        raise MissingDependency(f"pictures need {error.name}, which is not installed", hint) from error
    for unknown in (suffix for suffix in form or () if suffix not in SUFFIXES):
        raise UnknownName("format", unknown, SUFFIXES)


def _is_option_typed(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_for_a_script(device: str, **options: Any) -> None:
    if device != "cpu":
        raise UsageError(
            f"--device {device}: of a script, fit knows the host memory alone",
            f"for GPU memory: stepscope fit module:function --device {device}, or a workload",
        )
    parts = [f"--{name}" for name, value in options.items() if value]
    if parts:
        raise UsageError(f"a script chooses that itself: {', '.join(parts)}", "give the script's own options after --")


def _load_or_measure_calibration(console: Console, job: Job | None, request: FitRequest) -> DeviceCalibration:
    """Return what is known of this device; of another board nothing is."""
    from stepscope.footprint import calibration
    from stepscope.footprint.prediction import device_measurements

    if request.board is not None and request.calibrate:
        raise UsageError("--calibrate measures this machine, not a board by name", "run it on the board with --here")
    if job is None:
        return calibration.DeviceCalibration()
    with console.status("measuring the empty process, once for this environment"):
        stored = device_measurements(request.board, request.malloc if request.device == "cpu" else "default", job)
    if request.calibrate:
        stored = calibration.add_probed_ops(stored, job)
        calibration.save_calibration(stored, calibration.calibration_path())
    return stored


def _build_job_question(
    request: FitRequest, job: Job, limit: Limit | None, calibration: DeviceCalibration
) -> JobQuestion:
    from stepscope import workloads
    from stepscope.footprint.prediction import JobQuestion, board_has_bf16, platform_of

    if request.batch is not None and not is_function(request.target):
        workloads.find(request.target).refuse_small_batch(request.batch)
    return JobQuestion(
        job,
        job.default_batch if request.batch is None else request.batch,
        limit,
        request.malloc,
        platform_of(request.board, request.device, request.threads),
        calibration,
        board_has_bf16(request.board),
        request.options,
    )


def _predict_script_fit(console: Console, request: FitRequest, arguments: list[str], limit: Limit | None) -> FitResult:
    from stepscope.footprint.calibration import measured_environment
    from stepscope.footprint.prediction import platform_of, predict_script_fit

    def environment(imports: Iterable[str]) -> BaselineMemory:
        with console.status("measuring the empty process, once for these imports"):
            return measured_environment(request.malloc, imports)

    here = None if request.board is not None else environment
    typer.echo(f"{request.target} runs on tensors without values: losses that it prints now mean nothing", err=True)
    platform = platform_of(request.board, threads=request.threads)
    answer = predict_script_fit(request.target, arguments, limit, request.malloc, here, platform, request.module)
    return answer if request.options else replace(answer, options=())


def _reserve_stdout_for_answer() -> TextIO:
    """Return stdout for the answer alone: what a script writes there below Python, or as it exits, goes to stderr."""
    try:
        if sys.stdout.fileno() != _STDOUT:
            return sys.stdout
        sys.stdout.flush()
        answer = os.fdopen(os.dup(_STDOUT), "w", encoding=sys.stdout.encoding, errors=sys.stdout.errors)
        os.dup2(sys.stderr.fileno(), _STDOUT)
    except (OSError, ValueError, AttributeError):  # closed, or none of the system's
        return sys.stdout
    return answer


_STDOUT = 1


_PRICED = 7  # real steps of each of the two batches that rank combinations
_TIMED = 5  # real updates of a plan


def measure_allocators(
    console: Console, real: RealSteps, answer: FitResult, calibration: DeviceCalibration
) -> list[AllocatorTrade]:
    """Run them in turns, with a line that says which; the table is the caller's to show."""
    from stepscope.footprint.prediction_trials import TIMED_STEPS, trade_allocators
    from stepscope.footprint.simulator import Simulator
    from stepscope.record.dry.platform import this_platform

    command = real.command(TIMED_STEPS)
    simulator = answer.simulator or Simulator(this_platform(), calibration, answer.allocator)
    with console.status("allocators: the step really runs") as status:
        return trade_allocators(command, answer, simulator, progress=lambda now: status.update(f"allocators: {now}"))


_RATIOS_STORED = 20  # ratios


def store_prediction_errors(console: Console, question: JobQuestion, real: RealSteps) -> None:
    """Train for real, batch after batch; keep how far the predictions were off."""
    from stepscope.footprint import calibration
    from stepscope.footprint.prediction import predict_fit
    from stepscope.footprint.prediction_trials import probe_batches

    def command(batch: int) -> list[str]:
        return replace(real, batch=batch).command(1)

    def predicted(batch: int) -> ProcessPeak:
        return predict_fit(replace(question, batch=batch, options=False, largest=False, limit=None)).process

    limit = None if question.limit is None else float(question.limit.bytes)
    ratios: list[float] = []
    for trial in probe_batches(command, predicted, question.batch, limit, question.allocator):
        _print_trial(console, trial)
        if trial.error_ratio != 1.0:
            ratios.append(round(trial.error_ratio, 4))
    if ratios:
        path = calibration.calibration_path()
        stored = calibration.load_calibration(path)  # with the ops that predictions have probed meanwhile
        ratios = [*stored.ratios, *ratios][-_RATIOS_STORED:]
        calibration.save_calibration(replace(stored, ratios=tuple(ratios)), path)
        console.print("Some peaks lay outside the predicted interval: later predictions on this device allow for it.")


def _print_trial(console: Console, trial: Trial) -> None:
    text = f"predicted [{bytes_(trial.predicted.low)}, {bytes_(trial.predicted.high)}]"
    if trial.peak_bytes is None:
        console.print(f"batch {trial.batch}: failed ({trial.failure}); {text}")
        return
    match = "within" if trial.error_ratio == 1.0 else f"off by {percent(trial.error_ratio - 1)}"
    console.print(f"batch {trial.batch}: measured {bytes_(trial.peak_bytes)}; {text}: {match}")
