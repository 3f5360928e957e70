"""The command line: a subcommand for every file of cli/; a refusal becomes a message, a hint and an exit code."""

from __future__ import annotations

import inspect
import os
import platform
import re
import traceback
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.main import get_command

from stepscope import __version__
from stepscope.cli import Command, command_names, in_panels, load_commands, panel_of
from stepscope.cli._options import replace_unprintable_output
from stepscope.errors import MissingDependency, StepscopeError, UnknownName, UsageError, exit_error
from stepscope.units import escape_control_characters

# ClickException of click, wherever this version of typer has it.
_OptionsError: type[Exception] = typer.BadParameter.__mro__[2]
# What other tools call a command of ours.
_CALLED_ELSEWHERE = {
    **dict.fromkeys(("profile", "record", "train", "measure", "trace", "start"), "run"),
    **dict.fromkeys(("list", "ls", "history"), "runs list"),
    **dict.fromkeys(("show", "stats", "summary", "analyze", "analyse"), "report"),
    **dict.fromkeys(("diff",), "compare"),
    **dict.fromkeys(("ui", "serve", "open", "tensorboard"), "view"),
    **dict.fromkeys(("plot", "draw"), "figure"),
    **dict.fromkeys(("predict", "estimate"), "forecast"),
    **dict.fromkeys(("optimize", "optimise", "autotune"), "tune"),
    **dict.fromkeys(("bench", "benchmark"), "suite"),
    **dict.fromkeys(("info", "env", "devices", "sensors", "status"), "doctor"),
    **dict.fromkeys(("models", "zoo"), "workloads"),
    **dict.fromkeys(("top", "watch", "monitor"), "live"),
}
_TAKE_SCRIPTS = (
    *("stepscope run", "stepscope tune", "stepscope fit"),
    *(f"stepscope study {name}" for name in ("threads", "batch", "precision", "power-modes")),
)
_USAGE = UsageError.exit_code  # of a group of commands that was called alone: its help has been shown
INTERRUPTED = 130  # 128 + SIGINT, as shells have it
INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h: not a refusal, a fault of ours
_EXTRAS = {
    **{"torch": "torch", "altair": "report", "vl_convert": "report", "jinja2": "report"},
    **{"pooch": "data", "PIL": "data", "ale_py": "atari", "mcp": "mcp"},
}


def build_app(name: str | None = None) -> typer.Typer:
    """Return the typer application with one subcommand for every file of cli/, or with the named one alone."""
    app = typer.Typer(
        name="stepscope",
        callback=_root,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for command in in_panels(load_commands(name)):
        panel = panel_of(command.name)
        if command.subcommands:
            app.add_typer(_group(command), name=command.name, rich_help_panel=panel)
            continue
        app.command(
            command.name,
            help=_help(command.function),
            context_settings=dict(command.context),
            rich_help_panel=panel,
            cls=command.parser,
        )(command.function)
    return app


def _group(command: Command) -> typer.Typer:
    """A command with commands of its own below it."""
    group = typer.Typer(callback=command.function, no_args_is_help=True, pretty_exceptions_enable=False)
    for name, function in command.subcommands.items():
        group.command(name, help=_help(function), cls=command.parser)(function)
    return group


def _help(function: Callable[..., None]) -> str:
    """The docstring by paragraphs: its line ends are those of the source, not of the terminal that shows it."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def run_command_line(argv: Sequence[str]) -> int:
    """Run one command line; returns the exit code."""
    arguments = list(argv)
    try:
        if arguments[:1] == ["help"]:
            arguments = [*arguments[1:], "--help"]
        name = _require_known_command(arguments)
        if name != "run":  # which may run a script, and sees to it otherwise
            replace_unprintable_output()
        code = get_command(build_app(name)).main(arguments, "stepscope", standalone_mode=False)
    except SystemExit as error:
        from stepscope.record.fault_boundary import is_foreign

        if not is_foreign(traceback.extract_tb(error.__traceback__)[-1].filename):
            raise
        return report_error(exit_error(error), arguments)
    except (Exception, KeyboardInterrupt) as error:
        return report_error(error, arguments)
    return code if isinstance(code, int) else 0


def report_error(error: BaseException, arguments: Sequence[str]) -> int:
    """Return the exit code of a command that ended so, once its message is printed."""
    if isinstance(error, StepscopeError):
        return _print_refusal(error)
    if isinstance(error, _OptionsError):
        asks_nothing = not getattr(error, "message", "") and getattr(error, "param", None) is None
        return _USAGE if asks_nothing else _print_refusal(_option_refusal(error, arguments))
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):  # Ctrl-C, or no to a question
        return INTERRUPTED
    if isinstance(error, ModuleNotFoundError) and error.name in _EXTRAS:
        hint = f"pip install 'stepscope[{_EXTRAS[error.name]}]'"
        return _print_refusal(MissingDependency(f"this needs {error.name}, which is not installed", hint))
    return _print_internal_error(error)


def _show_version(chosen: bool) -> None:
    if chosen:
        typer.echo(f"stepscope {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Measure what one training step costs on this device: time, energy, memory and utilisation of every layer."""


def _require_known_command(arguments: list[str]) -> str | None:
    """Return the command that the first word names: the others need not be imported.

    click knows no nearest name in every version, so that word is looked up here, and the second of a group.
    """
    if not arguments or arguments[0].startswith("-"):
        return None
    name = arguments[0]
    if name not in command_names():
        hint = f"that is: stepscope {_CALLED_ELSEWHERE[name]}" if name in _CALLED_ELSEWHERE else None
        raise UnknownName("command", name, command_names(), hint)
    below = load_commands(name)[0].subcommands
    if below and len(arguments) > 1 and not arguments[1].startswith("-") and arguments[1] not in below:
        raise UnknownName(f"command of '{name}'", arguments[1], below)
    return name


def _option_refusal(error: Any, arguments: Sequence[str]) -> StepscopeError:
    """Return the refusal in place of one of the library that parses options, in the words of all others."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    command = context.command_path if context is not None else "stepscope"
    usage = f"{command} -h lists the options"
    option = getattr(error, "option_name", None)
    if option is not None and hasattr(error, "possibilities") and context is not None:
        return UsageError(f"{command} has no option {option}", _option_hint(option, command, context) or usage)
    if option is not None and context is None:  # it is the last word, and no command is told
        return UsageError(f"{option} needs a value", f"{_typed_command(arguments)} -h lists the options")
    about = str(getattr(parameter, "help", None) or "").rstrip(".")
    if about and not about[1:2].isupper():
        about = about[0].lower() + about[1:]
    if parameter is not None and not error.message and parameter.param_type_name == "argument":
        return UsageError(f"{command} needs {parameter.name.upper()}: {about}", _option_value_hint(arguments) or usage)
    message = error.format_message().rstrip(".")
    if parameter is not None and not error.message:
        message += f": {about}"
    return UsageError(f"{message[:1].lower()}{message[1:]}", usage)


def _typed_command(arguments: Sequence[str]) -> str:
    command, *below = arguments
    named = below[:1] if below and below[0] in load_commands(command)[0].subcommands else []
    return " ".join(["stepscope", command, *named])


def _option_hint(option: str, command: str, context: Any) -> str:
    """Return the option that was meant, and where those of a script go."""
    options = [name.removeprefix("--") for param in context.command.params for name in param.opts if name[:2] == "--"]
    arguments = [param.name for param in context.command.params if param.param_type_name == "argument"]
    if option.lstrip("-").replace("-", "_") in arguments:
        return f"it has no name: {command} {option.lstrip('-').upper()}"
    near = str(UnknownName("option", option.lstrip("-"), options).hint)
    nearest = re.sub(r"(mean|or) (?=\w)", r"\1 --", near) if near.startswith("did you mean") else ""
    of_a_script = f"options of a script go after its name: {command} train.py {option}"
    return " ".join(part for part in (nearest, of_a_script * (command in _TAKE_SCRIPTS)) if part)


def _option_value_hint(arguments: Sequence[str]) -> str:
    """Return where the script went that an option without its value took."""
    for option, value in pairwise(arguments):
        if option.startswith("--") and value.endswith(".py"):
            return f"'{value}' was taken as the value of {option}"
    return ""


def _print_refusal(error: StepscopeError) -> int:
    colour = False if os.environ.get("NO_COLOR") else None  # None: as the terminal can
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True, color=colour)
    typer.echo(escape_control_characters(str(error)), err=True)  # it may quote a file, a store or a device
    if error.hint:
        typer.secho("hint: ", fg="cyan", nl=False, err=True, color=colour)
        typer.echo(escape_control_characters(error.hint), err=True)
    return error.exit_code


def _print_internal_error(error: BaseException) -> int:
    """A fault of ours: the traceback, and what a report needs to hold."""
    traceback.print_exception(error)
    typer.echo(
        f"\nSorry, this is a fault in Stepscope {__version__}, not in what you asked for. Please open an issue with\n"
        f"the lines above, the command that you typed, and: Python {platform.python_version()}, {platform.platform()}.",
        err=True,
    )
    return INTERNAL_ERROR
