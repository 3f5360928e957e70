"""`stepscope run` of a script, started with as little as can be: what is imported here is paid by each run.

The library of options, the analysis and the tables are left alone until something of them is needed.
"""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stepscope.api.run_request import RunRequest
from stepscope.errors import StepscopeError, UsageError
from stepscope.part_names import has_steps
from stepscope.request import is_function, parameters

if TYPE_CHECKING:
    from rich.console import RenderableType

    from stepscope.record.settings import Settings
    from stepscope.runfolder import RunReader

_LONGEST_PERIOD_S = 1.0
_QUIET = ("-q", "--quiet")
_ANALYSIS = "reading the run (energy by operator can take minutes, once)"
_LONG = 5.0  # s


def run_with_common_options(words: Sequence[str]) -> int | None:
    """Run the script that these words of `stepscope run` name; its exit code, or None where they need a closer look.

    What is typed wrong, workloads, and options that need more than the recording are left to the library of options.
    """
    typed = parse_common_options(words)
    if typed is None:
        return None
    request, quiet = typed
    if request.with_ is not None or request.simulate is not None:
        return None
    settings = settings_of(request)
    path, code = script_run(request, settings)
    try:
        return finish_script(path, code, request, quiet)
    except Exception:  # in what tells of faults: the exit code is the script's all the same
        with contextlib.suppress(OSError, ValueError, AttributeError):
            traceback.print_exc()
        return code if code >= 0 else 128 - code


def parse_common_options(words: Sequence[str]) -> tuple[RunRequest, bool] | None:
    """Return the request and whether it is a quiet one; None where a word is none of the usual ones."""
    fields = parameters(RunRequest)
    options = {name: p for p in fields.values() if not p.option.argument for name in (p.flag, p.option.short) if name}
    settings: dict[str, object] = {}
    remaining, quiet = list(words), False
    while remaining and remaining[0].startswith("-") and remaining[0] != "-":
        word, equals, value = remaining.pop(0).partition("=")
        turned_off = word.startswith("--no-") and f"--{word[5:]}" in options
        option = options.get(f"--{word[5:]}" if turned_off else word)
        if word in _QUIET and not equals:
            quiet = True
        elif option is None or option.mapping or (turned_off and not option.option.default):
            return None
        elif option.type is bool:
            if equals:
                return None
            settings[option.name] = not turned_off
        elif equals or remaining:
            text = value if equals else remaining.pop(0)
            if option.many:
                before = settings.get(option.name, ())
                settings[option.name] = (*before, text) if isinstance(before, tuple) else text
            else:
                settings[option.name] = text
        else:
            return None
    if not remaining or not (settings.get("module") or is_script(remaining[0])):
        return None
    if any(word == "--" or word.partition("=")[0] in (*options, *_QUIET) for word in remaining[1:]):
        return None
    try:
        return RunRequest.from_settings(
            {**settings, "target": remaining[0], "arguments": tuple(remaining[1:])}, "run"
        ), quiet
    except StepscopeError:
        return None


def is_script(target: str) -> bool:
    """Return whether a target is a script, an archive or a folder that Python runs, and not the name of a workload.

    `-` is a script that is read from stdin, as Python has it.
    """
    return target == "-" or target.endswith(".py") or Path(target).is_file() or (Path(target) / "__main__.py").is_file()


def settings_of(request: RunRequest) -> Settings:
    """Return the settings of the recording, but for the sensors of a simulated board."""
    from stepscope.record.settings import Metering, Settings, parse_max_disk

    if request.period > _LONGEST_PERIOD_S:
        period = f"{request.period:g}"
        raise UsageError(
            f"--period {period}: {period} s is longer than most steps", f"did you mean --period {period}ms?"
        )
    metering = Metering(characterise=request.characterise, dither=request.dither)
    if request.plug or request.meter_command or request.power_model is not None:
        from stepscope.experiments.energy_resolution import parse_metering

        metering = parse_metering(
            request.plug, request.meter_command, request.power_model, request.characterise, request.dither
        )
    return Settings(
        out=request.out,
        record=request.record,
        memory=request.record_memory,
        period_ns=request.period_ns,
        samples_per_step=request.batch,
        optimizer_steps_per_step=request.updates_per_step,
        root=os.environ.get("STEPSCOPE_ROOT"),
        metering=replace(metering, max_disk=parse_max_disk(request.max_disk)),
    )


def script_run(request: RunRequest, settings: Settings) -> tuple[Path, int]:
    from stepscope.record.script import run_script

    if request.malloc != "default":
        from stepscope.record import c_allocators

        c_allocators.check_allocator_name(request.malloc)
    refuse_logs_without_a_folder(request.meter_csv)
    if is_function(request.target) and not request.module:
        from stepscope.experiments.sweeps.user_training import run_function

        _refuse_for_a_script(replace(request, steps=None), "a function decides that itself")
        if request.arguments:
            words = " ".join(request.arguments)
            raise UsageError(f"a function takes no arguments: {words}", "give a script, or leave them out")
        return run_function(
            request.target, request.batch, settings, request.steps or 100, request.threads, request.malloc
        )
    _refuse_for_a_script(request)
    arguments = list(request.arguments)
    return run_script(request.target, arguments, settings, request.module, request.threads, request.malloc)


def pack_run(path: Path) -> None:
    """Make Parquet of what was written while the training went on; what cannot be stays as it is, and can be read."""
    with print_failures("the run could not be packed into Parquet, and is whole without"):
        from stepscope.runfolder.pack import pack

        pack(path)


@contextlib.contextmanager
def print_failures(failed: str) -> Iterator[None]:
    """Say what fails after a training, also a fault of ours: none of it changes how the training ended."""
    try:
        yield
    except (StepscopeError, OSError) as error:
        print_to_stderr(f"{failed}: {error}")
    except Exception:
        print_to_stderr(f"{traceback.format_exc()}{failed}, which is a fault in Stepscope")


def finish_script(
    path: Path, code: int, request: RunRequest, quiet: bool, html: bool = False, as_json: bool = False
) -> int:
    """Finish after a script and return its exit code; where a signal ended the script, end this process likewise."""
    from stepscope.record.script import exit_like_script

    if code == 0 and request.record_memory != "off":
        with print_failures("the memory of a process without training is not known"):
            from stepscope.record.empty_process import write_empty_process_bytes

            write_empty_process_bytes(path, print_to_stderr)
    with print_failures("the ceilings of this device are not known"):
        from stepscope.record.ceilings import write_ceilings

        write_ceilings(path, print_to_stderr, request.ceilings and code == 0)
    pack_run(path)
    with print_failures("the run could not be reported"):
        report_run(path, request.meter_csv, quiet, html, True)
    if as_json:
        with print_failures("the metrics could not be printed"):
            print_run_metrics(path)
    return exit_like_script(code)


def print_run_metrics(path: Path) -> None:
    from stepscope.analysis.run import Run
    from stepscope.cli.report import print_metrics

    print_metrics(Run(path))


def _refuse_for_a_script(request: RunRequest, hint: str = "give a script its own arguments after its name") -> None:
    """A script decides these itself: to take them in silence would be to lie about the run."""
    fields = parameters(RunRequest)
    names = ("optimizer", "lr", "device", "seed", "precision", "steps", "until_resolved")
    flags = [fields[name].flag for name in names if getattr(request, name) is not None]
    if flags:
        raise UsageError(f"{', '.join(flags)}: of a workload only", hint)


def refuse_logs_without_a_folder(logs: Sequence[Path]) -> None:
    for log in logs:
        if not log.parent.is_dir():  # the log itself may still be on its way from the meter
            raise UsageError(f"--meter-csv {log}: there is no folder '{log.parent}'", "give the path of the log")


def report_run(
    path: Path, logs: Sequence[Path], quiet: bool, html: bool, of_a_script: bool, as_json: bool = False
) -> None:
    """Finish after a run: add meter logs, print the report, write the page; stdout is left to a script, or to JSON."""
    from stepscope.record.script import losses_of_run

    if missing := losses_of_run(path):
        print_to_stderr(missing)
    if logs:
        from stepscope.cli.meter import add_meter_logs

        for complaint in add_meter_logs(path, logs):
            print_to_stderr(complaint)
    _report_safely(path, quiet, of_a_script)
    if html:
        from rich.console import Console

        from stepscope.analysis.run import Run
        from stepscope.report.html import write

        console = Console(stderr=of_a_script or as_json)
        console.print(f"page: {write(Run(path), path / 'report.html')}", soft_wrap=True)


def _report_safely(path: Path, quiet: bool, of_a_script: bool) -> None:
    """summary.json and the report; the training is done, so what fails here is said and changes no exit code.

    Of a script that is to be left in quiet neither: the first report that is asked for writes the summary.
    """
    if quiet and of_a_script and has_steps(path):
        return
    from stepscope.runfolder import RunReader

    try:
        run = RunReader(path)
        if of_a_script and run.status != "running" and run.steps.is_empty():
            print_to_stderr(_without_steps(run))
        elif not (quiet and of_a_script):
            _print_and_write_summary(path, quiet, of_a_script)
    except (StepscopeError, OSError) as error:
        print_to_stderr(f"the run could not be reported: {error}")
    except KeyboardInterrupt:
        print_to_stderr(f"the report was interrupted; the run is whole: stepscope report {path}")
    except Exception:  # a fault of ours: it is shown, and does not become the end of a training that went well
        again = f"after an update: stepscope report {path}"
        print_to_stderr(
            f"{traceback.format_exc()}the report failed, which is a fault in Stepscope; the run is whole. {again}"
        )


def print_to_stderr(text: str) -> None:
    """Write a line to stderr; where it takes none (closed, on a full disk) the line is lost, and not the exit code."""
    try:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
    except (OSError, ValueError, AttributeError):
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - what is buffered would fail again at the end


def _print_and_write_summary(path: Path, quiet: bool, of_a_script: bool) -> None:
    """Show the report, unless quiet, and write the summary: with what takes 0.4 s of CPU time to import."""
    from stepscope.analysis.run import Run
    from stepscope.analysis.summary import write_summary
    from stepscope.report.first_screen import render

    run = Run(path)
    if not quiet:
        print_after_status(render(run), of_a_script)
    write_summary(run, of_operators=False)  # the fits of the sensors can take longer than the training did


def print_after_status(report: RenderableType, to_stderr: bool = False) -> None:
    """Print a report once all of it is drawn."""
    from rich.console import Console

    console = Console(highlight=False, stderr=to_stderr)
    with status_of_analysis(), console.capture() as drawn:
        console.print(report)
    console.file.write(drawn.get())


@contextlib.contextmanager
def status_of_analysis() -> Iterator[None]:
    """Say on stderr what is being done: a terminal shows it meanwhile, a file gets a line if it takes seconds."""
    from threading import Timer

    from rich.console import Console

    console = Console(stderr=True)
    if console.is_terminal:
        with console.status(_ANALYSIS):
            yield
        return
    line = Timer(_LONG, print_to_stderr, [f"{_ANALYSIS} ..."])
    line.daemon = True
    line.start()
    try:
        yield
    finally:
        line.cancel()


def _without_steps(run: RunReader) -> str:
    """Return the one sentence about a script that made no training step: there is nothing else to say of it."""
    why = next((str(event["message"]) for event in run.events if event.get("kind") == "no-steps"), "")
    why = why.partition(": ")[2] or why
    if run.status != "ok":
        text = f"stepscope: the script ended before its first training step ({run.meta.get('reason') or run.status})"
        return f"{text}: {why}" if "--out" in why else text
    return (
        f"stepscope: no training step was seen (a step is a call of optimizer.step()), so nothing was measured: {why}"
    )
