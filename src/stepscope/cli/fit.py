"""`stepscope fit`: will this training fit, at which batch, and what would make it fit?"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import UsageError
from stepscope.units import bytes_, estimate, percent

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rich.console import Console

    from stepscope.analysis.memory.limits import Environment, Limit, ProcessPeak
    from stepscope.footprint.calibration import DeviceCalibration
    from stepscope.footprint.measurements import AllocatorTrade, Trial
    from stepscope.footprint.prediction import FitRequest
    from stepscope.footprint.result import FitResult
    from stepscope.record.dry.job import Job


CONTEXT = {"allow_extra_args": True, "ignore_unknown_options": False}


def fit(
    context: typer.Context,
    target: Annotated[str, typer.Argument(help="A workload, module:function, or a script; its options after --.")],
    memory: Annotated[str | None, typer.Option(help="Memory the process may take: 8GB, 512MB, 7.5GiB.")] = None,
    device: Annotated[
        str | None, typer.Option(help="A board: tx2, orin-nano, rpi5; less what its system keeps.")
    ] = None,
    account: Annotated[
        str, typer.Option(help="Who counts --memory: resident (RAM), cgroup, address-space (ulimit -v), data (-d).")
    ] = "resident",
    here: Annotated[bool, typer.Option("--here", help="What is available on this machine now.")] = False,
    batch: Annotated[int | None, typer.Option(help="Samples per step.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Optimizer: sgd, momentum, adam, adamw, rmsprop.")] = None,
    precision: Annotated[str, typer.Option(help="float32, or bf16 for everything.")] = "float32",
    malloc: Annotated[str, typer.Option(help="Allocator: default (glibc), pinned or tcmalloc.")] = "default",
    on: Annotated[str, typer.Option(help="Kernels of: cpu, or cuda (workspaces as an interval).")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="Threads that torch computes with.")] = None,
    options: Annotated[bool, typer.Option(help="Look for what would make it fit.")] = True,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure single operators here first.")] = False,
    probe: Annotated[bool, typer.Option("--probe", help="Really train with more and more samples.")] = False,
    allocators: Annotated[
        bool, typer.Option("--allocators", help="Really train under each allocator: memory against time.")
    ] = False,
    figures: Annotated[Path | None, typer.Option(help="Folder that pictures of the answer are written into.")] = None,
    beside: Annotated[
        list[str] | None, typer.Option(help="Another workload to draw beside it; may be given repeatedly.")
    ] = None,
    form: Annotated[
        list[str] | None, typer.Option("--format", help="Of pictures: png (default), svg, pdf or vega.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON.")] = False,
    really: Annotated[int | None, typer.Option("--really", hidden=True)] = None,
) -> None:
    """Say without training whether it fits: peak memory, largest batch, and what would make it fit.

    `stepscope fit resnet18-c32 --batch 64 --device tx2` makes one step on tensors without numbers. A script is followed
    to its end, with long loops cut. `--probe` then trains for real in child processes until one fails, and what it
    finds corrects later answers on this device. `--allocators` runs the step for real under each allocator.
    """
    from rich.console import Console

    _refuse_unknown(target)
    from stepscope.footprint.jobs import is_script

    _check(target, batch, optimizer, precision, on, threads)
    _check_pictures(figures, beside, form)
    script = is_script(target)
    if script:
        _refuse_for_a_script(batch=batch, optimizer=optimizer, calibrate=calibrate, probe=probe, beside=beside)
    elif context.args:
        raise UsageError(f"'{' '.join(context.args)}' is for a script", "leave it out")
    job = None if script else _with_precision(_job(target, optimizer), precision)
    if really is not None:
        _print_cost(job, batch, target, context.args, really)
        return
    console = Console(stderr=as_json, highlight=False)
    question, kept = None, _calibration(console, job, device, malloc, calibrate)
    limit = _limit(memory, device, here, account)
    if job is None:
        found = _answer_script(console, target, context.args, limit, device, malloc)
    else:
        question = _request(job, batch, limit, device, malloc, on, options, kept)
        found = _answer(question)
    words = [target, *_option_words(optimizer=optimizer, threads=threads, precision=None if script else precision)]
    traded = _allocator_trades(console, words, context.args, found, kept) if allocators else []
    _print_all(console, found, traded, as_json)
    if figures is not None:
        from stepscope.cli._fit_figures import draw_figures

        drawn = draw_figures(
            figures, form or ["png"], found, question, [_job(name, None) for name in beside or ()], traded
        )
        console.print("\n".join(map(str, drawn)), soft_wrap=True)
    if probe and question is not None:
        probe_and_store(console, question, words, kept)


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
        from stepscope.footprint.jobs import job_of_function

        return job_of_function(target)
    from stepscope import workloads
    from stepscope.footprint.jobs import workload_job

    return workload_job(workloads.find(target), optimizer)


def _with_precision(job: Job, precision: str) -> Job:
    if precision == "float32":
        return job
    from dataclasses import replace

    from stepscope.footprint.transforms import bf16

    def build() -> Any:
        model, optimizers = job.build()
        return model, bf16(model, optimizers)

    return replace(job, build=build)


def _calibration(
    console: Console, job: Job | None, device: str | None, malloc: str, calibrate: bool
) -> DeviceCalibration:
    """Return what is known of this device; of another board nothing is."""
    from stepscope.footprint import calibration
    from stepscope.footprint.prediction import known_of_device

    if device is not None and calibrate:
        raise UsageError("--calibrate measures this machine, not a board by name", "run it on the board with --here")
    if job is None:
        return calibration.DeviceCalibration()
    with console.status("the empty process is measured, once for this environment"):
        kept = known_of_device(device, malloc, job)
    if calibrate:
        kept = calibration.measure_calibration(kept, job)
        calibration.save_calibration(kept, calibration.calibration_path())
    return kept


def _limit(memory: str | None, device: str | None, here: bool, account: str) -> Limit | None:
    from stepscope.footprint.prediction import requested_limit

    return requested_limit(memory, device, here, account)


def _request(
    job: Job, batch: int | None, limit: Limit | None, device: str | None, malloc: str, on: str, options: bool,
    kept: DeviceCalibration,
) -> FitRequest:  # fmt: skip
    from stepscope.footprint.prediction import FitRequest, board_has_bf16
    from stepscope.record.dry.workspaces import this_platform

    return FitRequest(
        job,
        job.default_batch if batch is None else batch,
        limit,
        malloc,
        this_platform(on),
        kept,
        board_has_bf16(device),
        options,
    )


def _answer(question: FitRequest) -> FitResult:
    from stepscope.footprint.prediction import predict_fit

    return predict_fit(question)


def _answer_script(
    console: Console, target: str, arguments: list[str], limit: Limit | None, device: str | None, malloc: str
) -> FitResult:
    from stepscope.footprint.calibration import measured_environment
    from stepscope.footprint.prediction import predict_script_fit

    def environment(imports: Iterable[str]) -> Environment:
        with console.status("the empty process is measured, once for these imports"):
            return measured_environment(malloc, imports)

    if device is not None:
        return predict_script_fit(target, arguments, limit, malloc)
    return predict_script_fit(target, arguments, limit, malloc, environment)


def _allocator_trades(
    console: Console, words: list[str], arguments: list[str], found: FitResult, kept: DeviceCalibration
) -> list[AllocatorTrade]:

    sized = [*words, "--batch", str(found.batch)] if found.batch else words
    return measure_allocators(console, sized, arguments, found, kept)


def _print_all(console: Console, found: FitResult, traded: list[AllocatorTrade], as_json: bool) -> None:
    if as_json:
        import json

        from stepscope.footprint.measurements import trade_dicts

        measured = {"allocators": trade_dicts(traded)} if traded else {}
        typer.echo(json.dumps({**found.as_dict(), **measured}, indent=1))
        return

    print_answer(console, found)
    if traded:
        print_trades(console, traded, found)


def _print_cost(job: Job | None, batch: int | None, target: str, arguments: list[str], steps: int) -> None:
    """The child's part of --probe and --allocators."""
    from stepscope.footprint.real_steps import job_steps, script_steps
    from stepscope.record.dry.allocator_costs import report

    if job is None:
        typer.echo(report(script_steps(target, arguments, steps)))
    else:
        typer.echo(report(job_steps(job, batch or job.default_batch, steps)))


def _option_words(**options: Any) -> list[str]:
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]


_MILLION = 1_000_000  # samples: the search for the largest batch ends there
_VERDICT_TEXTS = {
    "fits": "It fits.",
    "likely fits": "It likely fits.",
    "too close": "Too close to say.",
    "does not fit": "It does not fit.",
}
_COLOURS = {"fits": "green", "likely fits": "yellow", "too close": "yellow", "does not fit": "red"}


def print_answer(console: Console, found: FitResult) -> None:
    """Verdict first, then where the bytes are, then what would help."""
    batch = f", batch {found.batch}" if found.batch else ""
    console.print(f"{found.name}{batch}: {found.method}, {found.platform}, allocator {found.allocator}")
    if found.stopped:
        console.print(f"  no dry run: {found.stopped}")
    if found.limit is not None and found.verdict is not None:
        limit = f"{bytes_(found.limit.bytes)} ({found.limit.source})"
        console.print(f"[bold {_COLOURS[found.verdict]}]{_VERDICT_TEXTS[found.verdict]}[/] The limit is {limit}.")
    for reason in found.unsure:
        console.print(f"  a yes is no more than likely: {reason}")
    low, high = found.interval
    console.print(
        f"The process takes [{bytes_(low)}, {bytes_(high)}] at its peak, {bytes_(found.peak_bytes)} of it live."
    )
    if found.largest_batch is not None:
        surely = (
            f"largest batch that surely fits: {found.largest_batch}" if found.largest_batch else "no batch surely fits"
        )
        if found.likely_batch and found.likely_batch > found.largest_batch:
            surely += f" (likely up to {found.likely_batch})"
        console.print(
            f"{surely}" + (f"; a sample takes {bytes_(found.bytes_per_sample)}" if found.bytes_per_sample else "")
        )
    where = f"in layer '{found.peak_module}'" if found.peak_module else "outside the layers"
    console.print(f"The peak is reached by {found.peak_op} {where}, in {found.live.phase}.")
    _print_scenes(console, found)
    _print_breakdown(console, found)
    _print_options(console, found)
    if found.not_modelled:
        console.print(f"Workspace not modelled, counted as 0: {', '.join(sorted(found.not_modelled))}")
    for note in found.notes:
        console.print(f"  {note}")


def _print_scenes(console: Console, found: FitResult) -> None:
    """What a script does, each with its own peak; the largest decides."""
    if not found.scenes:
        return
    decides = max(found.scenes, key=lambda scene: scene.bytes)
    said = [f"{scene.name} {bytes_(scene.bytes)}" for scene in found.scenes]
    console.print(f"Live at most: {', '.join(said)}. What decides: {decides.name}.")


def _print_breakdown(console: Console, found: FitResult) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for heading in ("at the peak", "", "share"):
        table.add_column(heading, justify="left" if heading == "at the peak" else "right")
    total = found.process.middle
    for name, size in found.breakdown.items():
        table.add_row(name, bytes_(size), percent(size / total))
    table.add_row("process, middle of the interval", bytes_(total), "")
    console.print(table)


def _print_options(console: Console, found: FitResult) -> None:
    if not found.options:
        return
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="what would need less, simulated", title_justify="left")
    for heading in ("", "process", "gain", "FLOPs", "verdict", "price"):
        table.add_column(heading, overflow="fold")
    for option in found.options:
        process = f"[{bytes_(option.process.low)}, {bytes_(option.process.high)}]"
        colour = _COLOURS.get(option.verdict or "", "default")
        table.add_row(
            option.name, process, percent(option.gain), f"x {option.compute:.2f}",
            f"[{colour}]{option.verdict or ''}[/]", option.price,
        )  # fmt: skip
    console.print(table)


def child_command(words: Sequence[str], steps: int, script_arguments: Sequence[str] = ()) -> list[str]:
    """The command that runs so many timed steps and prints their cost as its last line."""
    own = [sys.executable, "-m", "stepscope", "fit", *words, "--really", str(steps)]
    return [*own, "--", *script_arguments] if script_arguments else own


def measure_allocators(
    console: Console, words: Sequence[str], script_arguments: Sequence[str], found: FitResult, kept: DeviceCalibration
) -> list[AllocatorTrade]:
    """Run them in turns, with a line that says which; the table is the caller's to show."""
    from stepscope.footprint.measurements import TIMED_STEPS, trade_allocators
    from stepscope.footprint.simulator import Simulator
    from stepscope.record.dry.workspaces import this_platform

    command = child_command(words, TIMED_STEPS, script_arguments)
    simulator = Simulator(this_platform(), kept, found.allocator)
    with console.status("allocators: the step really runs") as status:
        return trade_allocators(command, found, simulator, progress=lambda now: status.update(f"allocators: {now}"))


def print_trades(console: Console, traded: Sequence[AllocatorTrade], found: FitResult) -> None:
    """A line an allocator, the default first: peak and time with their spread, and the difference to the default."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title="allocators, measured on this step", title_justify="left")
    for heading in ("", "process, measured", "to default", "predicted", "CPU time a step", "to default", "the limit"):
        table.add_column(heading, overflow="fold")
    first = traded[0]
    for each in traded:
        table.add_row(*_trade_row(each, first, found.limit is not None))
    console.print(table)
    for each in traded:
        if each.cost.missing:
            console.print(f"{each.cost.allocator}: not measured. {each.cost.missing}")


def _trade_row(each: AllocatorTrade, first: AllocatorTrade, limited: bool) -> tuple[str, ...]:
    cost, base = each.cost, first.cost
    low, high = each.predicted
    if cost.peak_bytes is None or cost.step_s is None or base.peak_bytes is None or base.step_s is None:
        return cost.allocator, "not measured", "", f"[{bytes_(low)}, {bytes_(high)}]", "", "", ""
    held = {True: "[green]kept[/]", False: "[red]exceeded[/]", None: ""}[each.within_limit] if limited else ""
    return (
        cost.allocator,
        estimate(cost.peak_bytes, cost.peak_low, cost.peak_high, "B"),
        "" if each is first else f"{cost.peak_bytes / base.peak_bytes - 1:+.1%}",
        f"[{bytes_(low)}, {bytes_(high)}]",
        estimate(cost.step_s, cost.step_low_s, cost.step_high_s, "s"),
        "" if each is first else f"x {cost.step_s / base.step_s:.2f}",
        held,
    )


_RATIOS_STORED = 20  # ratios


def probe_and_store(console: Console, question: FitRequest, words: Sequence[str], kept: DeviceCalibration) -> None:
    """Train for real, batch after batch; keep how far the predictions were off."""
    from stepscope.footprint import calibration as kept_file
    from stepscope.footprint.measurements import probe_batches
    from stepscope.footprint.prediction import predict_fit

    def command(batch: int) -> list[str]:
        return child_command([*words, "--batch", str(batch)], 1)

    def predicted(batch: int) -> ProcessPeak:
        return predict_fit(replace(question, batch=batch, options=False, largest=False, limit=None)).process

    limit = None if question.limit is None else float(question.limit.bytes)
    ratios = list(kept.ratios)
    for tried in probe_batches(command, predicted, question.batch, limit, question.allocator):
        _print_trial(console, tried)
        if tried.off != 1.0:
            ratios.append(round(tried.off, 4))
    if tuple(ratios) != kept.ratios:
        kept_file.save_calibration(replace(kept, ratios=tuple(ratios[-_RATIOS_STORED:])), kept_file.calibration_path())
        console.print("Some peaks lay outside the prediction: later answers on this device allow for that.")


def _print_trial(console: Console, tried: Trial) -> None:
    said = f"predicted [{bytes_(tried.predicted.low)}, {bytes_(tried.predicted.high)}]"
    if tried.peak_bytes is None:
        console.print(f"batch {tried.batch}: failed ({tried.failure}); {said}")
        return
    held = "within" if tried.off == 1.0 else f"off by {percent(tried.off - 1)}"
    console.print(f"batch {tried.batch}: measured {bytes_(tried.peak_bytes)}; {said}: {held}")
