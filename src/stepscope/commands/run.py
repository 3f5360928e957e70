"""Train a workload, or a script of yours, and measure it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stepscope.errors import StepscopeError, UsageError

if TYPE_CHECKING:
    from stepscope.record.session import Settings

CONTEXT = {"ignore_unknown_options": False, "allow_interspersed_args": True}
_UNITS_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}


def run(
    target: Annotated[str, typer.Argument(help="A workload (see `stepscope workloads`), or a Python script.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="After `--`: the script's own arguments.")] = None,
    batch: Annotated[int | None, typer.Option(help="Samples per step. Of a script: what one step counts as.")] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps of a workload (100 unless said).")] = None,
    optimizer: Annotated[str | None, typer.Option(help="Optimizer of a workload: sgd, momentum, adam, ...")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate of a workload.")] = None,
    device: Annotated[str | None, typer.Option(help="Device of a workload: cpu (unless said) or cuda.")] = None,
    threads: Annotated[int | None, typer.Option(help="Threads that torch computes with.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of a workload: the same seed repeats the run.")] = None,
    out: Annotated[Path, typer.Option(help="Folder that the run folder is made in.")] = Path("runs"),
    record: Annotated[
        str, typer.Option(help="Steps whose ops are recorded: adaptive, all, none, first:N or every:N.")
    ] = "adaptive",
    period: Annotated[str, typer.Option(help="Period of the sampler, for example 10ms, 5ms or 1ms.")] = "10ms",
    updates_per_step: Annotated[
        int | None, typer.Option(help="Of a script: optimizer steps that make one training step.")
    ] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="TARGET is a module, as with `python -m`.")] = False,
    html: Annotated[bool, typer.Option("--html", help="Also write the page with pictures.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no report.")] = False,
) -> None:
    """Train a workload, or a script of yours, and measure it.

    `stepscope run lenet --steps 300` trains a workload; `stepscope run train.py -- --epochs 1` runs a script unchanged:
    its steps are taken from its optimizer, its batch size from the first tensor of the outermost module call.
    The report follows at the end; the script's own exit code is passed on.
    """
    from stepscope.record.session import Settings

    _check(batch, steps, threads)
    settings = Settings(
        out=out,
        record=record,
        period_ns=period_ns(period),
        samples_per_step=batch,
        optimizer_steps_per_step=updates_per_step,
        root=_root(),
    )
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    if module or target.endswith(".py") or Path(target).is_file():
        _refuse_for_a_script({"steps": steps, "optimizer": optimizer, "lr": lr, "device": device, "seed": seed})
        path, code = _script(target, arguments or [], settings, module)
    else:
        choices = {"batch": batch, "optimizer": optimizer, "lr": lr, "device": device or "cpu", "seed": seed or 0}
        path, code = _workload(target, arguments, steps or 100, settings, choices, quiet)
    _finish(path, quiet)
    if html:
        _page(path)
    raise typer.Exit(code)


def period_ns(text: str) -> int:
    """A period such as 10ms, 500us or 0.01s in ns; UsageError where it is none."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(us|ms|s)", text.strip())
    if found is None:
        raise UsageError(f"--period {text}: not a period", "for example --period 10ms")
    return round(float(found[1]) * _UNITS_NS[found[2]])


def _refuse_for_a_script(options: dict[str, Any]) -> None:
    """A script decides these itself: to take them in silence would be to lie about the run."""
    given = [f"--{name}" for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"{', '.join(given)}: of a workload only", "give a script its own arguments after --")


def _check(batch: int | None, steps: int | None, threads: int | None) -> None:
    for option, value in (("--batch", batch), ("--steps", steps), ("--threads", threads)):
        if value is not None and value < 1:
            raise UsageError(f"{option} {value}: must be 1 or more", f"for example {option} 1")


def _root() -> str | None:
    import os

    return os.environ.get("STEPSCOPE_ROOT")


def _script(target: str, arguments: list[str], settings: Settings, module: bool) -> tuple[Path, int]:
    from stepscope.record.script import run_script

    return run_script(target, arguments, settings, module)


def _workload(
    name: str, arguments: list[str] | None, steps: int, settings: Settings, choices: dict[str, Any], quiet: bool
) -> tuple[Path, int]:
    from stepscope import workloads
    from stepscope.record.train import train_workload

    if arguments:
        raise UsageError(f"a workload takes no arguments of its own: {' '.join(arguments)}")
    workload = workloads.find(name)
    with _progress(workload.name, steps, quiet) as advance:
        return train_workload(workload, steps, settings, progress=advance, **choices)


def _progress(name: str, steps: int, quiet: bool) -> Any:
    """A progress bar on stderr, so that stdout holds the report alone."""
    from contextlib import contextmanager

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

            def advance(step: int, loss: float | None) -> None:
                progress.update(task, completed=step, loss="" if loss is None else f"loss {loss:.3f}")

            yield advance

    return bar()


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


def _page(path: Path) -> None:
    from rich.console import Console

    from stepscope.analysis.run import Run
    from stepscope.report.html import write

    Console().print(f"page: {write(Run(path), path / 'report.html')}", soft_wrap=True)
