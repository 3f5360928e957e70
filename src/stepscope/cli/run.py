"""Train a workload, or a script of yours, and measure it."""

from __future__ import annotations

import shlex
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from stepscope.api.run_request import RunRequest
from stepscope.cli._options import (
    make_command,
    refuse_unknown_target,
    replace_unprintable_output,
    takes_value_by_option,
    with_privacy_options,
)
from stepscope.cli._script import (
    finish_script,
    is_script,
    pack_run,
    print_failures,
    print_run_metrics,
    print_to_stderr,
    refuse_logs_without_a_folder,
    report_run,
    script_run,
    settings_of,
)
from stepscope.errors import StepscopeError, UsageError
from stepscope.request import is_function

if TYPE_CHECKING:
    from stepscope.experiments.tune.config import Config
    from stepscope.record.settings import Settings

_PACKAGE = str(Path(__file__).parents[1])
CONTEXT = {"ignore_unknown_options": False, "allow_interspersed_args": True}
_LAUNCHERS = {  # what people type before a script, and what takes its place here
    "python": "", "python3": "", "torchrun": "-m torch.distributed.run ",
    "accelerate launch": "-m accelerate.commands.launch ",
}  # fmt: skip


class PARSER(TyperCommand):
    """Options go before a script, and all that follows its name is the script's, as with python and torchrun."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse with a `--` behind the script's name, unless somebody has typed one."""
        return super().parse_args(ctx, self._separated(args))

    def _separated(self, args: list[str]) -> list[str]:
        takes_value = takes_value_by_option(self.params)
        place, of_a_module = 0, False
        while place < len(args) and args[place].startswith("-") and args[place] not in ("--", "-"):
            of_a_module |= args[place] in ("-m", "--module")
            place += 2 if takes_value.get(args[place], False) else 1
        arguments = args[place + 1 :]
        _refuse_launcher(args[place:])
        if place >= len(args) or args[place] == "--" or not arguments or not (of_a_module or is_script(args[place])):
            return args
        if "--" in arguments and _are_options(arguments[: arguments.index("--")], takes_value):
            return args
        ours = [word for word in arguments if word.partition("=")[0] in takes_value]
        if ours and not {"-q", "--quiet"}.intersection(args[:place]):
            go = "goes" if len(ours) == 1 else "go"
            print_to_stderr(f"{', '.join(ours)} {go} to {args[place]}; an option of stepscope goes before the script")
        return [*args[: place + 1], "--", *arguments]


def _refuse_launcher(words: Sequence[str]) -> None:
    """Refuse a command that starts a script, as in `python train.py`: `stepscope run` starts it."""
    for launcher, place_of_it in _LAUNCHERS.items():
        count = len(launcher.split())
        if launcher.split() == list(words[:count]) and not Path(words[0]).exists():
            hint = f"stepscope run {place_of_it}{shlex.join(words[count:]) or 'train.py'}"
            raise UsageError(f"stepscope run starts the script itself, without '{launcher}'", hint)


def _are_options(words: Sequence[str], takes_value: Mapping[str, bool]) -> bool:
    """Return whether all words are options of ours and their values, as they may stand before a typed `--`."""
    place = 0
    while place < len(words) and words[place].partition("=")[0] in takes_value:
        place += 2 if takes_value[words[place].partition("=")[0]] and "=" not in words[place] else 1
    return place == len(words)


def _run(
    request: RunRequest,
    html: Annotated[bool, typer.Option("--html", help="Also write the page with pictures.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Show the live view instead of a progress bar.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no report.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the metrics as JSON at the end, as report --json does.")
    ] = False,
) -> None:
    of_a_function = is_function(request.target) and not request.module
    of_a_script, quiet = of_a_function or request.module or is_script(request.target), quiet or as_json
    if not of_a_script:
        replace_unprintable_output()
        refuse_unknown_target(request.target, "run")  # before anything heavy is imported

    from stepscope.experiments.tune.config import TO_SCRIPTS, note_of, refuse_no_parts
    from stepscope.record import c_allocators
    from stepscope.runfolder import RunWriter
    from stepscope.simulate import sensor_root
    from stepscope.simulate.boards import parse_board

    config = _load_config_or_restart(request)
    with_ = request.with_ and request.with_.absolute()  # a script, and what it starts, may be in another folder
    if config is not None and of_a_script:
        refuse_no_parts(config)
    if not of_a_script:
        c_allocators.use_allocator(request.malloc)
        refuse_logs_without_a_folder(request.meter_csv)
    settings = settings_of(request)
    board = request.simulate
    if board is not None:
        parse_board(board)  # what is no board is refused before anything trains
    with (
        sensor_root(None if of_a_script else board, settings.root) as place,
        _live_view(live, request.out, of_a_script),
    ):
        settings = replace(settings, root=place.root, metering=replace(settings.metering, simulated=board))
        if of_a_script:
            settings = replace(settings, prepare=None if with_ is None else (TO_SCRIPTS, str(with_)))
            path, code = script_run(request, settings)
        else:
            path, code = _train_workload(request, settings, quiet or live, config)
        with suppress(OSError, StepscopeError):  # a script may have removed its run
            place.runs.append(RunWriter.attach(path))
    if config is not None:
        with print_failures("the run does not state its configuration"):
            RunWriter.attach(path).update(configuration=note_of(config, str(request.with_)))
    if of_a_script:
        raise typer.Exit(finish_script(path, code, request, quiet, html, as_json))
    _finish_workload_run(path, code, request, config)
    report_run(path, request.meter_csv, quiet, html, False, as_json)
    if as_json:
        print_run_metrics(path)
    raise typer.Exit(code)


run = with_privacy_options(make_command(RunRequest, _run, "run"))


def _live_view(live: bool, out: Path, of_a_script: bool) -> AbstractContextManager[None]:
    """The live view in a process of its own; beside a script that prints, a line now and then."""
    if not live:
        return nullcontext()
    from stepscope.report.live import live_view

    return live_view(out, lines=of_a_script)


def _finish_workload_run(path: Path, code: int, request: RunRequest, config: Config | None) -> None:
    from stepscope import workloads
    from stepscope.api.training import measure_after_run

    measure_after_run(path, code == 0, request, None if config else workloads.find(request.target), print_to_stderr)
    pack_run(path)


def _load_config_or_restart(request: RunRequest) -> Config | None:
    """Return the configuration to train with; this process starts anew where its environment is another."""
    if request.with_ is None:
        return None
    from stepscope.experiments.tune.config import changes_of, read_config, restart_with

    config = read_config(request.with_)
    changes_of(config)  # an unknown one is refused before anything is trained
    restart_with(config)
    return config


def _train_workload(request: RunRequest, settings: Settings, quiet: bool, config: Config | None) -> tuple[Path, int]:
    from stepscope import workloads
    from stepscope.experiments.energy_resolution import MOST, stop_when_resolved
    from stepscope.record.train import TrainingChoices, train_workload

    if request.threads is not None:
        import torch

        torch.set_num_threads(request.threads)
    if request.arguments:
        raise UsageError(
            f"a workload takes no arguments of its own: {' '.join(request.arguments)}", "see stepscope run -h"
        )
    workload = workloads.find(request.target)
    if config is not None:
        from stepscope.experiments.tune.config import apply_to_workload, refuse_no_parts

        refuse_no_parts(config, workload, request.batch, request.precision)
        workload = apply_to_workload(workload, config)
    steps = request.steps or (100 if request.until_resolved is None else MOST)
    with (
        progress_bar(workload.name, steps, quiet) as advance,
        stop_when_resolved(request.until_resolved, Path(settings.out)) as resolved,
    ):

        def shown(step: int, loss: float | None) -> None:
            advance(step, loss, "" if resolved is None else resolved.progress)

        choices = TrainingChoices(
            request.batch, request.optimizer, request.device or "cpu", request.seed or 0, request.lr,
            request.precision or "fp32",
        )  # fmt: skip
        with faults_of_training(request.target):
            path, code = train_workload(
                workload, steps, settings, choices, progress=shown, stop=resolved or (lambda: False),
                evaluates=lambda samples: advance(None, None, f"looking at {samples} test samples"),
            )  # fmt: skip
    if resolved is not None:
        print_to_stderr(resolved.sentence)
    return path, code


@contextmanager
def faults_of_training(name: str) -> Iterator[None]:
    """Turn what the code of a workload raises, or torch below it, into a refusal behind its own traceback."""
    try:
        yield
    except StepscopeError:
        raise
    except Exception as error:
        from stepscope.record.fault_boundary import is_foreign

        frames = traceback.extract_tb(error.__traceback__)
        foreign = [number for number, frame in enumerate(frames) if is_foreign(frame.filename)]
        packaged = [
            number for number, frame in enumerate(frames) if frame.filename.startswith(f"{_PACKAGE}/workloads/")
        ]
        innermost, last = max([*foreign, *packaged], default=None), len(frames) - 1
        # Our hooks lie between a layer and torch; they raise nothing of their own into a training.
        if innermost is None or (innermost < last and frames[last].filename.startswith(_PACKAGE)):
            raise
        print_to_stderr("Traceback (most recent call last):")
        print_to_stderr("".join(traceback.format_list(frames[min(foreign, default=innermost) :])).rstrip())
        text = "".join(traceback.format_exception_only(type(error), error)).strip()
        hint = "mend its file" if foreign or ":" in name else "another --batch, --optimizer or --device may do"
        raise StepscopeError(f"the training of '{name}' failed: {text}", hint) from error


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

            def advance(step: int | None, loss: float | None, note: str = "") -> None:
                progress.update(task, completed=step, loss=note if loss is None else f"loss {loss:.3f}  {note}")

            yield advance

    return bar()
