"""`stepscope fit`: will this training fit, at which batch, and what would make it fit?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from stepscope.record.job import Job
    from stepscope.studies.fit.allocators import Traded
    from stepscope.studies.fit.answer import Question
    from stepscope.studies.fit.kept import Kept
    from stepscope.studies.fit.result import FitResult

CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": False}


def fit(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A workload, module:function, or a script; its options after --.")],
    memory: Annotated[str | None, typer.Option(help="Memory the process may take: 8GB, 512MB, 7.5GiB.")] = None,
    device: Annotated[
        str | None, typer.Option(help="A board: tx2, orin-nano, rpi5; less what its system keeps.")
    ] = None,
    here: Annotated[bool, typer.Option("--here", help="What is available on this machine now.")] = False,
    batch: Annotated[int | None, typer.Option(help="Samples per step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Optimizer: sgd, momentum, adam, adamw, rmsprop.")] = None,
    precision: Annotated[str, typer.Option(help="float32, or bf16 for everything.")] = "float32",
    malloc: Annotated[str, typer.Option(help="Allocator: default (glibc), pinned or tcmalloc.")] = "default",
    on: Annotated[str, typer.Option(help="Kernels of: cpu, or cuda (workspaces as an interval).")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Threads that torch computes with.")] = None,
    options: Annotated[bool, typer.Option(help="Look for what would make it fit.")] = True,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure single operations here first.")] = False,
    probe: Annotated[bool, typer.Option("--probe", help="Really train with more and more samples.")] = False,
    allocators: Annotated[
        bool, typer.Option("--allocators", help="Really train under each allocator: memory against time.")
    ] = False,
    figures: Annotated[Path | None, typer.Option(help="Folder that pictures of the answer are written into.")] = None,
    beside: Annotated[
        list[str] | None, typer.Option(help="Another workload to draw beside it; may be given repeatedly.")
    ] = None,
    form: Annotated[
        list[str] | None, typer.Option("--format", help="Of pictures: png (unless said), svg, pdf or vega.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    really: Annotated[int | None, typer.Option("--really", hidden=True)] = None,
) -> None:
    """Say without training whether it fits: peak memory, largest batch, and what would make it fit.

    `stepscope fit resnet18-c32 --batch 64 --device tx2` makes one step on tensors without numbers. A script is followed
    to its second optimizer step. `--probe` then trains for real in child processes until one fails, and what it finds
    corrects later answers on this device. `--allocators` runs the step for real under each allocator.
    """
    from rich.console import Console

    _refuse_unknown(target)
    from stepscope.studies.fit.objects import is_script

    _check(target, batch, optimizer, precision, on, threads)
    _check_pictures(figures, beside, form)
    script = is_script(target)
    if script:
        _refuse_for_a_script(batch=batch, optimizer=optimizer, calibrate=calibrate, probe=probe, beside=beside)
    elif context.args:
        raise UsageError(f"'{' '.join(context.args)}' is for a script", "leave it out")
    job = None if script else _changed(_job(target, optimizer), precision)
    if really is not None:
        _print_cost(job, batch, target, context.args, really)
        return
    console = Console(stderr=as_json, highlight=False)
    question, kept = None, _learnt(job, device, calibrate)
    if job is None:
        found = _of_script(target, context.args, memory, device, here, malloc)
    else:
        question = _question(job, batch, memory, device, here, malloc, on, options, kept)
        found = _answered(question)
    words = [target, *_given(optimizer=optimizer, threads=threads, precision=None if script else precision)]
    traded = _traded(console, words, context.args, found, kept) if allocators else []
    _show(console, found, traded, as_json)
    if figures is not None:
        from stepscope.commands._fit_figures import draw

        drawn = draw(figures, form or ["png"], found, question, [_job(name, None) for name in beside or ()], traded)
        console.print("\n".join(map(str, drawn)), soft_wrap=True)
    if probe and question is not None:
        from stepscope.commands._fit_probe import probe_and_keep

        probe_and_keep(console, question, words, kept)


def _refuse_unknown(target: str) -> None:
    """A workload that is none, before anything heavy is imported."""
    if ":" not in target and not target.endswith(".py") and not Path(target).exists():
        from stepscope import workloads

        workloads.refuse_unknown(target)


def _check(target: str, batch: int | None, optimizer: str | None, precision: str, on: str, threads: int | None) -> None:
    if batch is not None and batch < 1:
        raise UsageError(f"a batch of {batch} samples cannot be trained", "use --batch 1 or more")
    if precision not in ("float32", "bf16"):
        raise UsageError(f"--precision {precision}: not known", "float32 or bf16")
    if on not in ("cpu", "cuda"):
        raise UsageError(f"--on {on}: not known", "cpu or cuda")
    if threads is not None:
        if threads < 1:
            raise UsageError(f"--threads {threads}: torch needs at least one")
        import torch

        torch.set_num_threads(threads)
    if optimizer is not None and ":" in target:
        raise UsageError("the function chooses the optimizer", "leave --optimizer out")


def _check_pictures(figures: Path | None, beside: list[str] | None, form: list[str] | None) -> None:
    if figures is None:
        if beside or form:
            raise UsageError(f"--{'beside' if beside else 'format'} is for pictures", "say where with --figures DIR")
        return
    from stepscope.errors import MissingDependency, UnknownName

    try:
        from stepscope.report.figures import SUFFIXES
    except ModuleNotFoundError as error:
        hint = "pip install 'stepscope[report]'"
        raise MissingDependency(f"pictures need {error.name}, which is not installed", hint) from error
    for unknown in (one for one in form or () if one not in SUFFIXES):
        raise UnknownName("format", unknown, SUFFIXES)


def _refuse_for_a_script(**given: Any) -> None:
    said = [f"--{name}" for name, value in given.items() if value]
    if said:
        raise UsageError(f"a script chooses that itself: {', '.join(said)}", "give the script's own options after --")


def _job(target: str, optimizer: str | None) -> Job:
    if ":" in target:
        from stepscope.studies.fit.objects import job_of_function

        return job_of_function(target)
    from stepscope import workloads
    from stepscope.commands._jobs import workload_job

    return workload_job(workloads.find(target), optimizer)


def _changed(job: Job, precision: str) -> Job:
    if precision == "float32":
        return job
    from dataclasses import replace

    from stepscope.studies.fit.transforms import bf16

    def build() -> Any:
        model, optimizers = job.build()
        return model, bf16(model, optimizers)

    return replace(job, build=build)


def _learnt(job: Job | None, device: str | None, calibrate: bool) -> Kept:
    """What is known of this device; of another board nothing is."""
    from stepscope.studies.fit import kept as kept_file

    if device is not None:
        if calibrate:
            raise UsageError(
                "--calibrate measures this machine, not a board by name", "run it on the board with --here"
            )
        return kept_file.Kept()
    kept = kept_file.load(kept_file.place())
    if calibrate and job is not None:
        from stepscope.studies.fit.calibrate import calibrated

        kept = calibrated(kept, job)
        kept_file.save(kept, kept_file.place())
    return kept


def _question(
    job: Job, batch: int | None, memory: str | None, device: str | None, here: bool, malloc: str, on: str,
    options: bool, kept: Kept,
) -> Question:  # fmt: skip
    from stepscope.record.workspaces import this_platform
    from stepscope.studies.fit.answer import Question
    from stepscope.studies.fit.python_api import bf16_of, limit_of

    return Question(
        job,
        job.default_batch if batch is None else batch,
        limit_of(memory, device, here),
        malloc,
        this_platform(on),
        kept,
        bf16_of(device),
        options,
    )


def _answered(question: Question) -> FitResult:
    from stepscope.studies.fit.answer import answer

    return answer(question)


def _of_script(
    target: str, arguments: list[str], memory: str | None, device: str | None, here: bool, malloc: str
) -> FitResult:
    from stepscope.studies.fit.python_api import limit_of
    from stepscope.studies.fit.script_answer import answer_of_script

    return answer_of_script(target, arguments, limit_of(memory, device, here), malloc)


def _traded(console: Console, words: list[str], arguments: list[str], found: FitResult, kept: Kept) -> list[Traded]:
    from stepscope.commands._fit_trade import measured

    sized = [*words, "--batch", str(found.batch)] if found.batch else words
    return measured(console, sized, arguments, found, kept)


def _show(console: Console, found: FitResult, traded: list[Traded], as_json: bool) -> None:
    if as_json:
        import json

        from stepscope.studies.fit.allocators import as_dicts

        measured = {"allocators": as_dicts(traded)} if traded else {}
        typer.echo(json.dumps({**found.as_dict(), **measured}, indent=1))
        return
    from stepscope.commands import _fit_text, _fit_trade

    _fit_text.show(console, found)
    if traded:
        _fit_trade.show(console, traded, found)


def _print_cost(job: Job | None, batch: int | None, target: str, arguments: list[str], steps: int) -> None:
    """The child's part of --probe and --allocators."""
    from stepscope.record.allocator_trade import report
    from stepscope.studies.fit.real_steps import job_steps, script_steps

    if job is None:
        typer.echo(report(script_steps(target, arguments, steps)))
    else:
        typer.echo(report(job_steps(job, batch or job.default_batch, steps)))


def _given(**options: Any) -> list[str]:
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]
