"""Train a workload, or a script of yours, and measure it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from stepscope.api.requests import RunRequest
from stepscope.cli._options import command_of, private
from stepscope.cli.meter import read_logs
from stepscope.errors import StepscopeError, UsageError
from stepscope.request import parameters

if TYPE_CHECKING:
    from stepscope.experiments.single_run import UntilResolved
    from stepscope.experiments.tune.config import Config
    from stepscope.record.settings import Settings
    from stepscope.runfolder import RunReader

_LONGEST_PERIOD_S = 1.0
CONTEXT = {"ignore_unknown_options": False, "allow_interspersed_args": True}


class PARSER(TyperCommand):
    """Options go before a script, and all that follows its name is the script's, as with python and torchrun."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse with a `--` behind the script's name, unless somebody has typed one."""
        return super().parse_args(ctx, self._separated(args))

    def _separated(self, args: list[str]) -> list[str]:
        takes_value = {
            name: not getattr(option, "is_flag", False)
            for option in self.params
            for name in (*option.opts, *option.secondary_opts)
            if name.startswith("-")
        }
        place, of_a_module = 0, False
        while place < len(args) and args[place].startswith("-") and args[place] != "--":
            of_a_module |= args[place] in ("-m", "--module")
            place += 2 if takes_value.get(args[place], False) else 1
        rest = args[place + 1 :]
        if place >= len(args) or args[place] == "--" or not rest or not (of_a_module or is_script(args[place])):
            return args
        if "--" in rest and _are_options(rest[: rest.index("--")], takes_value):
            return args
        ours = [word for word in rest if word.partition("=")[0] in takes_value]
        if ours and not {"-q", "--quiet"}.intersection(args[:place]):
            _say(f"{', '.join(ours)} of {args[place]}: options of stepscope go before the script")
        return [*args[: place + 1], "--", *rest]


def _are_options(words: Sequence[str], takes_value: Mapping[str, bool]) -> bool:
    """Return whether all words are options of ours and their values, as they may stand before a typed `--`."""
    place = 0
    while place < len(words) and words[place].partition("=")[0] in takes_value:
        place += 2 if takes_value[words[place].partition("=")[0]] and "=" not in words[place] else 1
    return place == len(words)


def is_script(target: str) -> bool:
    """Return whether a target is a script, an archive or a folder that Python runs, and not the name of a workload."""
    return target.endswith(".py") or Path(target).is_file() or (Path(target) / "__main__.py").is_file()


def _run(
    request: RunRequest,
    html: Annotated[bool, typer.Option("--html", help="Also write the page with pictures.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Show the run while it goes on, instead of a bar.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no report.")] = False,
) -> None:
    """Measure, report, and end with the exit code of the training."""
    from stepscope import workloads

    of_a_script = request.module or is_script(request.target)
    if not of_a_script:
        workloads.refuse_unknown(request.target)  # before anything heavy is imported

    from stepscope.experiments.tune.run_with_config import TO_SCRIPTS, note_of
    from stepscope.record import allocators
    from stepscope.record.ceilings import write_ceilings
    from stepscope.record.empty_process import write_empty_process_bytes
    from stepscope.runfolder import RunWriter
    from stepscope.simulate.simulation import sensor_root

    config = _config(request)
    (allocators.check if of_a_script else allocators.use)(request.malloc)
    settings = _settings(request)
    _refuse_logs_without_a_folder(request.meter_csv)
    board = request.simulate
    with (
        sensor_root(None if of_a_script else board, settings.root) as place,
        _live_view(live, request.out, of_a_script),
    ):
        settings = replace(settings, root=place.root, metering=replace(settings.metering, simulated=board))
        if of_a_script:
            settings = replace(settings, prepare=None if config is None else (TO_SCRIPTS, str(request.with_)))
            _refuse_for_a_script(request)
            path, code = _script(request, settings)
        else:
            _set_threads(request.threads)
            path, code = _workload(request, settings, quiet or live, config)
        place.runs.append(path)
    if config is not None:
        RunWriter.attach(path).update(configuration=note_of(config, str(request.with_)))
    if code == 0 and request.record_memory != "off":
        write_empty_process_bytes(path, _say)
        if not of_a_script and config is None:
            _compute_memory(path, request)
    write_ceilings(path, _say, request.ceilings and code == 0)
    _pack(path)
    _report(path, request.meter_csv, quiet, html, of_a_script)
    raise typer.Exit(_exit_code(code, of_a_script))


run = private(command_of(RunRequest, _run, "run"))


def _settings(request: RunRequest) -> Settings:
    """Return the settings of the recording, but for the sensors of a simulated board."""
    from stepscope.experiments.single_run import parse_metering
    from stepscope.record.settings import Settings

    if request.period > _LONGEST_PERIOD_S:
        given = f"{request.period:g}"
        raise UsageError(f"--period {given}: {given} s are longer than most steps", f"did you mean --period {given}ms?")
    return Settings(
        out=request.out,
        record=request.record,
        memory=request.record_memory,
        period_ns=request.period_ns,
        samples_per_step=request.batch,
        optimizer_steps_per_step=request.updates_per_step,
        root=os.environ.get("STEPSCOPE_ROOT"),
        metering=parse_metering(
            request.plug, request.meter_command, request.power_model, request.characterise, request.dither
        ),
    )


def _exit_code(code: int, of_a_script: bool) -> int:
    """Return the exit code of the run; of a script that a signal ended, this process ends by the same."""
    from stepscope.record.script import end_as

    return end_as(code) if of_a_script else code


def _set_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _refuse_for_a_script(request: RunRequest) -> None:
    """A script decides these itself: to take them in silence would be to lie about the run."""
    known = parameters(RunRequest)
    names = ("optimizer", "lr", "device", "seed", "precision", "steps", "until_resolved")
    given = [known[name].flag for name in names if getattr(request, name) is not None]
    if given:
        raise UsageError(f"{', '.join(given)}: of a workload only", "give a script its own arguments after its name")


def _refuse_logs_without_a_folder(logs: Sequence[Path]) -> None:
    for log in logs:
        if not log.parent.is_dir():  # the log itself may still be on its way from the meter
            raise UsageError(f"--meter-csv {log}: there is no folder '{log.parent}'", "give the path of the log")


def _live_view(live: bool, out: Path, of_a_script: bool) -> AbstractContextManager[None]:
    """The live view in a process of its own; beside a script that prints, a line now and then."""
    if not live:
        return nullcontext()
    from stepscope.report.live import live_view

    return live_view(out, lines=of_a_script)


def _script(request: RunRequest, settings: Settings) -> tuple[Path, int]:
    from stepscope.record.script import run_script

    arguments = list(request.arguments)
    return run_script(request.target, arguments, settings, request.module, request.threads, request.malloc)


def _pack(path: Path) -> None:
    """Make Parquet of what was written while the training went on; what cannot be stays as it is, and can be read."""
    from stepscope.runfolder.pack import pack

    try:
        pack(path)
    except (StepscopeError, OSError) as error:
        _say(f"the run could not be packed into Parquet, and is whole without: {error}")


def _compute_memory(path: Path, request: RunRequest) -> None:
    from stepscope import workloads
    from stepscope.footprint.computed_memory import write_computed_memory

    write_computed_memory(path, workloads.find(request.target), request.optimizer, request.precision or "fp32")


def _config(request: RunRequest) -> Config | None:
    """Return the configuration to train with; this process starts anew where its environment is another."""
    if request.with_ is None:
        return None
    from stepscope.experiments.tune.config import read_config
    from stepscope.experiments.tune.run_with_config import changes_of, restart_with

    config = read_config(request.with_)
    changes_of(config)  # an unknown one is refused before anything is trained
    restart_with(config)
    return config


def _workload(request: RunRequest, settings: Settings, quiet: bool, config: Config | None) -> tuple[Path, int]:
    from stepscope import workloads
    from stepscope.experiments.single_run import MOST
    from stepscope.record.train import train_workload

    if request.arguments:
        raise UsageError(
            f"a workload takes no arguments of its own: {' '.join(request.arguments)}", "see stepscope run -h"
        )
    workload = workloads.find(request.target)
    if config is not None:
        from stepscope.experiments.tune.run_with_config import configured

        workload = configured(workload, config)
    steps = request.steps or (100 if request.until_resolved is None else MOST)
    with (
        progress_bar(workload.name, steps, quiet) as advance,
        _resolution_stop(request.until_resolved, Path(settings.out)) as resolved,
    ):

        def shown(step: int, loss: float | None) -> None:
            advance(step, loss, "" if resolved is None else resolved.progress)

        return train_workload(
            workload, steps, settings, batch=request.batch, optimizer=request.optimizer, lr=request.lr,
            device=request.device or "cpu", seed=request.seed or 0, precision=request.precision or "fp32",
            progress=shown, stop=resolved or (lambda: False),
        )  # fmt: skip


@contextmanager
def _resolution_stop(wanted: float | None, out: Path) -> Iterator[UntilResolved | None]:
    """What ends the training once so much of its energy is within 10 %; afterwards it is said how it ended."""
    if wanted is None:
        yield None
        return
    from stepscope.experiments.single_run import UntilResolved

    resolved = UntilResolved(out, wanted)
    try:
        yield resolved
    finally:
        resolved.close()
    _say(resolved.sentence)


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


def _report(path: Path, logs: Sequence[Path], quiet: bool, html: bool, of_a_script: bool) -> None:
    """Do what follows a run: the logs of meters beside it, the report, the page; stdout of a script is left to it."""
    for complaint in read_logs(path, logs):
        _say(complaint)
    _finish(path, quiet, of_a_script)
    if html:
        _page(path, of_a_script)


def _finish(path: Path, quiet: bool, of_a_script: bool) -> None:
    """summary.json and the report; the training is done, so what fails here is said and changes no exit code.

    Of a script that is to be left in quiet neither: the first report that is asked for writes the summary.
    """
    from stepscope.runfolder import RunReader

    try:
        run = RunReader(path)
        if of_a_script and run.status != "running" and run.steps.is_empty():
            _say(_without_steps(run))
        elif not (quiet and of_a_script):
            _summarise(path, quiet, of_a_script)
    except (StepscopeError, OSError) as error:
        _say(f"the run could not be reported: {error}")
    except Exception:  # a fault of ours: it is shown, and does not become the end of a training that went well
        again = f"after an update: stepscope report {path}"
        _say(f"{traceback.format_exc()}the report failed, which is a fault in Stepscope; the run is whole. {again}")


def _say(text: str) -> None:
    """Write a line to stderr; where it takes none (closed, on a full disk) the line is lost, and not the exit code."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - what is buffered would fail again at the end


def _summarise(path: Path, quiet: bool, of_a_script: bool) -> None:
    """Show the report, unless quiet, and write the summary: with what takes 0.4 s of CPU time to import."""
    from rich.console import Console

    from stepscope.analysis.run import Run
    from stepscope.analysis.summary import write_summary
    from stepscope.report.screen import render

    run = Run(path)
    if not quiet:
        Console(highlight=False, stderr=of_a_script).print(render(run))
    write_summary(run)


def _without_steps(run: RunReader) -> str:
    """Return the one sentence about a script that made no training step: there is nothing else to say of it."""
    if run.status != "ok":
        return f"stepscope: the script ended before its first training step ({run.meta.get('reason') or run.status})"
    why = next((str(event["message"]) for event in run.events if event.get("kind") == "no-steps"), "")
    seen = "no training step was seen (a step is a call of optimizer.step()), so nothing was measured"
    return f"stepscope: {seen}: {why.partition(': ')[2] or why}"


def _page(path: Path, of_a_script: bool) -> None:
    from rich.console import Console

    from stepscope.analysis.run import Run
    from stepscope.report.html import write

    Console(stderr=of_a_script).print(f"page: {write(Run(path), path / 'report.html')}", soft_wrap=True)
