"""Train a workload, or a script of yours, and measure it."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.commands.meter import read_logs
from stepscope.errors import StepscopeError, UsageError

if TYPE_CHECKING:
    from stepscope.record.session import Settings
    from stepscope.studies.until_resolved import UntilResolved

CONTEXT = {"ignore_unknown_options": False, "allow_interspersed_args": True}
_UNITS_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def run(
    target: Annotated[str, typer.Argument(help="A workload (see `stepscope workloads`), or a Python script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="After `--`: the script's own arguments.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples per step. Of a script: what one step counts as.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps of a workload (100 unless said).")] = None,
    until_resolved: Annotated[
        str | None,
        typer.Option(help="Train a workload until so much of the energy is resolved, such as 90%; --steps bounds it."),
    ] = None,
    optimizer: Annotated[str | None, typer.Option(help="Optimizer of a workload: sgd, momentum, adam, ...")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of a workload.")] = None,
    device: Annotated[str | None, typer.Option(help="Device of a workload: cpu (unless said) or cuda.")] = None,
    precision: Annotated[str | None, typer.Option(help="Precision of a workload: fp32 (unless said) or bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads that torch computes with.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a workload: the same seed repeats the run.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that the run folder is made in.")] = Path("runs"),
    record: Annotated[
        str, typer.Option(help="Steps whose ops are recorded: adaptive, all, none, first:N or every:N.")
    ] = "adaptive",
    record_memory: Annotated[
        str, typer.Option(help="Recorded steps whose allocations are recorded: auto (one or two), all or off.")
    ] = "auto",
    malloc: Annotated[
        str, typer.Option(help="C allocator: default, pinned (glibc's mmap threshold: smaller, slower) or tcmalloc.")
    ] = "default",
    period: Annotated[str, typer.Option(help="Period of the sampler, for example 10ms, 5ms or 1ms.")] = "10ms",
    updates_per_step: Annotated[
        int | None, typer.Option(help="Of a script: optimizer steps that make one training step.")
    ] = None,
    plug: Annotated[
        list[str] | None, typer.Option(help="A meter by address: shelly=192.168.1.20, tasmota=..., adb=SERIAL, termux.")
    ] = None,
    meter_command: Annotated[
        list[str] | None, typer.Option(help="A command of yours that prints watts, a reading a line.")
    ] = None,
    meter_csv: Annotated[
        list[Path] | None, typer.Option(help="Log of a meter with its own clock, aligned when the run has ended.")
    ] = None,
    power_model: Annotated[
        str | None, typer.Option(help="Estimate power from utilisation, labelled so: cpu=2W..15W,gpu=1W..10W.")
    ] = None,
    simulate: Annotated[
        str | None, typer.Option(help="Read the sensors of a simulated board (all output says so): jetson-tx2, ...")
    ] = None,
    characterise: Annotated[
        bool, typer.Option(help="Measure refresh, step and filter of power sensors that are new on this device.")
    ] = True,
    dither: Annotated[bool, typer.Option(help="Spread the sampler's reads, so that no step locks to them.")] = True,
    module: Annotated[bool, typer.Option("--module", "-m", help="TARGET is a module, as with `python -m`.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Also write the page with pictures.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Show the run while it goes on, instead of a bar.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no report.")] = False,
) -> None:
    """Train a workload, or a script of yours, and measure it.

    `stepscope run lenet --steps 300` trains a workload; `stepscope run train.py -- --epochs 1` runs a script unchanged:
    its steps are taken from its optimizer, its batch size from the first tensor of the outermost module call.
    The report follows at the end; the script's own exit code is passed on.
    """
    from stepscope import workloads

    of_a_script = module or target.endswith(".py") or Path(target).is_file()
    if not of_a_script:
        workloads.refuse_unknown(target)  # before anything heavy is imported

    from stepscope.record import allocators
    from stepscope.record.empty_process import told_of_the_empty_process
    from stepscope.record.session import Settings
    from stepscope.simulate.rooted import rooted
    from stepscope.studies.metering import metering

    _check(batch, steps, threads)
    _check_share(until_resolved)
    allocators.use(malloc)
    settings = Settings(
        out=out,
        record=record,
        memory=record_memory,
        period_ns=period_ns(period),
        samples_per_step=batch,
        optimizer_steps_per_step=updates_per_step,
        root=os.environ.get("STEPSCOPE_ROOT"),
        metering=metering(plug or (), meter_command or (), power_model, characterise, dither),
    )
    _refuse_logs_without_a_folder(meter_csv or [])
    _compute_with(threads)
    asked = {"batch": batch, "optimizer": optimizer, "lr": lr, "device": device, "seed": seed, "precision": precision}
    with rooted(simulate, settings.root) as chosen, _beside(live, out, of_a_script):
        settings = replace(settings, root=chosen.root, metering=replace(settings.metering, simulated=simulate))
        if of_a_script:
            _refuse_for_a_script({**asked, "batch": None, "steps": steps, "until-resolved": until_resolved})
            path, code = _script(target, arguments or [], settings, module)
        else:
            path, code = _workload(target, arguments, steps, settings, asked, quiet or live, until_resolved)
        chosen.runs.append(path)
    if code == 0 and record_memory != "off":
        told_of_the_empty_process(path, lambda said: sys.stderr.write(f"{said}\n"))
    _report(path, meter_csv or [], quiet, html)
    raise typer.Exit(code)


def period_ns(text: str) -> int:
    """A period such as 10ms, 500us or 0.01s in ns; UsageError where it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s)", text.strip())
    if found is None:
        raise UsageError(f"--period {text}: not a period", "for example --period 10ms")
    return round(float(found[1]) * _UNITS_NS[found[2]])


def _compute_with(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _refuse_for_a_script(options: dict[str, Any]) -> None:
    """A script decides these itself: to take them in silence would be to lie about the run."""
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{', '.join(given)}: of a workload only", "give a script its own arguments after --")


def _check(batch: int | None, steps: int | None, threads: int | None) -> None:
    for option, value in (("--batch", batch), ("--steps", steps), ("--threads", threads)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value}: must be 1 or more", f"for example {option} 1")


def _check_share(until_resolved: str | None) -> None:
    from stepscope.studies.until_resolved import wanted_share

    if until_resolved is not None:
        wanted_share(until_resolved)


def _refuse_logs_without_a_folder(logs: list[Path]) -> None:
    for log in logs:
        if not log.parent.is_dir():  # the log itself may still be on its way from the meter
            raise UsageError(f"--meter-csv {log}: there is no folder '{log.parent}'", "give the path of the log")


def _beside(live: bool, out: Path, of_a_script: bool) -> AbstractContextManager[None]:
    """The live view in a process of its own; beside a script that prints, a line now and then."""
    if not live:
        return nullcontext()
    from stepscope.report.live.beside import live_beside

    return live_beside(out, lines=of_a_script)


def _script(target: str, arguments: list[str], settings: Settings, module: bool) -> tuple[Path, int]:
    from stepscope.record.script import run_script

    return run_script(target, arguments, settings, module)


def _workload(
    name: str,
    arguments: list[str] | None,
    steps: int | None,
    settings: Settings,
    asked: dict[str, Any],
    quiet: bool,
    until_resolved: str | None,
) -> tuple[Path, int]:
    from stepscope import workloads
    from stepscope.record.train import train_workload
    from stepscope.studies.until_resolved import MOST

    if arguments:
        raise UsageError(f"a workload takes no arguments of its own: {' '.join(arguments)}")
    workload = workloads.find(name)
    otherwise = {"device": "cpu", "seed": 0, "precision": "fp32"}
    choices = {**asked, **{name: value for name, value in otherwise.items() if asked[name] is None}}
    steps = steps or (100 if until_resolved is None else MOST)
    with (
        progress_bar(workload.name, steps, quiet) as advance,
        _resolving(until_resolved, Path(settings.out)) as resolved,
    ):

        def shown(step: int, loss: float | None) -> None:
            advance(step, loss, "" if resolved is None else resolved.progress)

        stop = resolved or (lambda: False)
        return train_workload(workload, steps, settings, progress=shown, stop=stop, **choices)


@contextmanager
def _resolving(wanted: str | None, out: Path) -> Iterator[UntilResolved | None]:
    """What ends the training once so much of its energy is resolved; afterwards it is said how it ended."""
    if wanted is None:
        yield None
        return
    from stepscope.studies.until_resolved import UntilResolved, wanted_share

    resolved = UntilResolved(out, wanted_share(wanted))
    try:
        yield resolved
    finally:
        resolved.close()
    sys.stderr.write(f"{resolved.sentence}\n")


def progress_bar(name: str, steps: int, quiet: bool) -> Any:
    """A progress bar on stderr, so that stdout holds the report alone."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    @contextmanager
    def bar() -> Any:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        note = TextColumn("{task.fields[loss]}")
        console = Console(stderr=True)
        hidden = quiet or not console.is_terminal
        # Redrawing costs CPU time of the very process that is measured: twice a second is enough for a person.
        with Progress(
            *columns, note, console=console, refresh_per_second=2, transient=True, disable=hidden
        ) as progress:
            task = progress.add_task(f"training {name}", total=steps, loss="")

            def advance(step: int, loss: float | None, said: str = "") -> None:
                progress.update(task, completed=step, loss=said if loss is None else f"loss {loss:.3f}  {said}")

            yield advance

    return bar()


def _report(path: Path, logs: list[Path], quiet: bool, html: bool) -> None:
    """What follows a run: the logs of meters beside it, the report on stdout, the page."""
    for complaint in read_logs(path, logs):
        sys.stderr.write(f"{complaint}\n")
    _finish(path, quiet)
    if html:
        _page(path)


def _finish(path: Path, quiet: bool) -> None:
    """summary.json and the report; the training is done, so what fails here is said and changes no exit code."""
    from rich.console import Console

    from stepscope.analysis.run import Run
    from stepscope.analysis.summary import write_summary
    from stepscope.report.text import render

    try:
        run = Run(path)
        if not quiet:
            Console(highlight=False).print(render(run))
        write_summary(run)
    except (StepscopeError, OSError) as error:
        sys.stderr.write(f"the run could not be reported: {error}\n")
    except Exception:  # a fault of ours: it is shown, and does not become the end of a training that went well
        traceback.print_exc()
        again = f"after an update: stepscope report {path}"
        sys.stderr.write(f"the report failed, which is a fault in Stepscope; the run is whole. {again}\n")


def _page(path: Path) -> None:
    from rich.console import Console

    from stepscope.analysis.run import Run
    from stepscope.report.html import write

    Console().print(f"page: {write(Run(path), path / 'report.html')}", soft_wrap=True)
