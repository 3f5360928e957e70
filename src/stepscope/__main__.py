"""The command line: a subcommand for every file of cli/; a refusal becomes a message, a hint and an exit code."""

from __future__ import annotations

import inspect
import platform
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from typer.main import get_command

from stepscope import __version__
from stepscope.cli import Command, command_names, in_panels, load_commands, panel_of
from stepscope.errors import MissingDependency, StepscopeError, UnknownName

INTERRUPTED = 130  # 128 + SIGINT, as shells have it
INTERNAL_ERROR = 70  # EX_SOFTWARE of sysexits.h: not a refusal, a fault of ours
_EXTRAS = {
    **{"torch": "torch", "altair": "report", "vl_convert": "report", "jinja2": "report"},
    **{"pooch": "data", "PIL": "data", "ale_py": "atari"},
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
        group.command(name, help=_help(function))(function)
    return group


def _help(function: Callable[..., None]) -> str:
    """The docstring by paragraphs: its line ends are those of the source, not of the terminal that shows it."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code (a usage error of the options leaves through SystemExit)."""
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        name = _refuse_unknown_command(arguments)
        get_command(build_app(name))(args=arguments, prog_name="stepscope")
    except StepscopeError as error:
        return _refused(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except ModuleNotFoundError as error:
        return _refused(_missing(error.name)) if error.name in _EXTRAS else _apologise()
    except Exception:
        return _apologise()
    return 0


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"stepscope {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """Measure what one training step costs on the device in front of you: time, memory and utilisation of every
    layer.
    """


def _refuse_unknown_command(arguments: list[str]) -> str | None:
    """Return the command that the first word names: the others need not be imported.

    click knows no nearest name in every version, so that word is looked up here, and the second of a group.
    """
    if not arguments or arguments[0].startswith("-"):
        return None
    name = arguments[0]
    if name not in command_names():
        raise UnknownName("command", name, command_names())
    below = load_commands(name)[0].subcommands
    if below and len(arguments) > 1 and not arguments[1].startswith("-") and arguments[1] not in below:
        raise UnknownName(f"command of '{name}'", arguments[1], below)
    return name


def _missing(module: str) -> MissingDependency:
    """The refusal in the place of an ImportError, for the libraries that an extra brings."""
    return MissingDependency(
        f"this needs {module}, which is not installed", f"pip install 'stepscope[{_EXTRAS[module]}]'"
    )


def _refused(error: StepscopeError) -> int:
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(error, err=True)
    if error.hint:
        typer.secho("hint: ", fg="cyan", nl=False, err=True)
        typer.echo(error.hint, err=True)
    return error.exit_code


def _apologise() -> int:
    """A fault of ours: the traceback, and what a report needs to hold."""
    traceback.print_exc()
    typer.echo(
        f"\nSorry, this is a fault in Stepscope {__version__}, not in what you asked for. Please open an issue with\n"
        f"the lines above, the command that you typed, and: Python {platform.python_version()}, {platform.platform()}.",
        err=True,
    )
    return INTERNAL_ERROR


if __name__ == "__main__":
    sys.exit(main())
