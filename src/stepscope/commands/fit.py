"""`stepscope fit`: will this training fit, at which batch, and what would make it fit?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from stepscope.record.job import Job
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
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    really: Annotated[bool, typer.Option("--really", hidden=True)] = False,
) -> None:
    """Say without training whether it fits: peak memory, largest batch, and what would make it fit.

    `stepscope fit resnet18-c32 --batch 64 --device tx2` makes one step on tensors without numbers. A script is followed
    to its second optimizer step. `--probe` then trains for real in child processes until one fails, and what it finds
    corrects later answers on this device.
    """
    from rich.console import Console

    from stepscope.studies.fit.objects import is_script

    _check(target, batch, optimizer, precision, on, threads)
    if is_script(target):
        _refuse_for_a_script(batch=batch, optimizer=optimizer, calibrate=calibrate, probe=probe)
        _show_script(target, context.args, memory, device, here, malloc, as_json)
        return
    if context.args:
        raise UsageError(f"'{' '.join(context.args)}' is for a script", "leave it out")
    job = _changed(_job(target, optimizer), precision)
    if really:
        _print_real_peak(job, batch)
        return
    console = Console(stderr=as_json, highlight=False)
    kept = _learnt(job, device, calibrate)
    question = _question(job, batch, memory, device, here, malloc, on, options, kept)
    found = _answered(question)
    if as_json:
        _print_json(found)
    else:
        from stepscope.commands._fit_text import show

        show(console, found)
    if probe:
        words = [target, *_given(optimizer=optimizer, threads=threads, precision=precision)]
        _probe(console, question, words, kept)


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


def _learnt(job: Job, device: str | None, calibrate: bool) -> Kept:
    """What is known of this device; of another board nothing is."""
    from stepscope.studies.fit import kept as kept_file

    if device is not None:
        if calibrate:
            raise UsageError(
                "--calibrate measures this machine, not a board by name", "run it on the board with --here"
            )
        return kept_file.Kept()
    kept = kept_file.load(kept_file.place())
    if calibrate:
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


def _show_script(
    target: str, arguments: list[str], memory: str | None, device: str | None, here: bool, malloc: str, as_json: bool
) -> None:
    from rich.console import Console

    from stepscope.commands._fit_text import show
    from stepscope.studies.fit.python_api import limit_of
    from stepscope.studies.fit.script_answer import answer_of_script

    found = answer_of_script(target, arguments, limit_of(memory, device, here), malloc)
    if as_json:
        _print_json(found)
    else:
        show(Console(highlight=False), found)


def _print_json(found: FitResult) -> None:
    import json

    typer.echo(json.dumps(found.as_dict(), indent=1))


def _print_real_peak(job: Job, batch: int | None) -> None:
    import json

    from stepscope.studies.fit.probe import real_peak

    typer.echo(json.dumps({"peak": real_peak(job, batch or job.default_batch)}))


def _given(**options: Any) -> list[str]:
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]


def _probe(console: Console, question: Question, words: list[str], kept: Kept) -> None:
    """Train for real, batch after batch; keep how far the predictions were off."""
    import sys
    from dataclasses import replace

    from stepscope.commands._fit_text import show_try
    from stepscope.studies.fit import kept as kept_file
    from stepscope.studies.fit.probe import probe

    command: Callable[[int], list[str]] = lambda batch: [  # noqa: E731 - one line of words
        sys.executable, "-m", "stepscope", "fit", *words, "--batch", str(batch), "--really",
    ]  # fmt: skip

    def predicted(batch: int) -> Any:
        return _answered(replace(question, batch=batch, options=False, largest=False, limit=None)).process

    limit = None if question.limit is None else float(question.limit.bytes)
    ratios = list(kept.ratios)
    for tried in probe(command, predicted, question.batch, limit, question.allocator):
        show_try(console, tried)
        if tried.off != 1.0:
            ratios.append(round(tried.off, 4))
    if tuple(ratios) != kept.ratios:
        kept_file.save(replace(kept, ratios=tuple(ratios[-20:])), kept_file.place())
        console.print("Some peaks lay outside the prediction: later answers on this device allow for that.")
