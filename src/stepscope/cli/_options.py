"""Makes a command of typer from a request: its fields are the options, its docstring is the help."""

from __future__ import annotations

import codecs
import difflib
import functools
import inspect
import io
import json as json_format
import math
import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from stepscope import privacy
from stepscope.cli._script import is_script, print_to_stderr
from stepscope.errors import UsageError
from stepscope.request import REQUIRED, Parameter, Request, parameters

_METAVARS = {int: "INTEGER", float: "FLOAT"}


NoArgv = Annotated[
    bool, typer.Option("--no-argv", help="Omit the command line from the output.", rich_help_panel="Advanced")
]
NoNames = Annotated[
    bool,
    typer.Option(
        "--no-names",
        help="Omit names of host and user from the output; home folders become ~.",
        rich_help_panel="Advanced",
    ),
]


AsJson = Annotated[bool, typer.Option("--json", help="Print the answer as JSON, alone on stdout.")]


def replace_unprintable_output() -> None:
    """Let stdout write plain signs for those that its encoding lacks; not where a script of the user's writes there."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        codecs.register_error("stepscope", _plain_signs)
        sys.stdout.reconfigure(errors="stepscope")


_PLAIN_SIGNS = str.maketrans("█▇▆▅▄▃▂▁■▲▼·…×µ°–—“”‘’", "##+=-:._*^v|~xu'--\"\"''")  # as wide: bars stay bars


def _plain_signs(error: UnicodeError) -> tuple[str, int]:
    """Return what an encoding can write in place of characters that it lacks: "?" where nothing is like them."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end].translate(_PLAIN_SIGNS)
    return "".join(sign if sign.isascii() else "?" for sign in lacking), error.end


def print_json(answer: Any) -> None:
    """Print an answer as JSON; paths and dates become text, and numbers that are none, or infinite, null."""
    typer.echo(json_format.dumps(_require_finite(answer), indent=1, default=str))


def _require_finite(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {name: _require_finite(value) for name, value in answer.items()}
    if isinstance(answer, (list, tuple)):
        return [_require_finite(value) for value in answer]
    return None if isinstance(answer, float) and not math.isfinite(answer) else answer


def print_written(path: Any, as_json: bool) -> None:
    """Print where something was written: its path, or an object with it."""
    print_json({"written": [path]}) if as_json else typer.echo(path)


def _apply_privacy_options(no_argv: NoArgv = False, no_names: NoNames = False) -> None:
    """Omit what was chosen, here and in the processes that follow."""
    privacy.withhold(*(kind for kind, chosen in (("argv", no_argv), ("names", no_names)) if chosen))


def with_privacy_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with `--no-argv` and `--no-names`: it writes what is made to be shared."""
    options = inspect.signature(_apply_privacy_options, eval_str=True).parameters

    @functools.wraps(command)
    def withholding(**values: Any) -> None:
        _apply_privacy_options(**{name: values.pop(name) for name in options if name in values})
        command(**values)

    own = inspect.signature(command, eval_str=True).parameters.values()
    signature_parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in (*own, *options.values())
    ]
    withholding.__signature__ = inspect.Signature(signature_parameters)  # type: ignore[attr-defined]
    withholding.__annotations__ = {parameter.name: parameter.annotation for parameter in signature_parameters}
    return withholding


def make_command(request: type[Request], act: Callable[..., None], name: str) -> Callable[..., None]:
    """Return a function for typer with the options of the request and then those of `act`, which is given the request.

    Typer hands over text, so that everything is parsed and refused in one place: by the request.
    """
    fields = parameters(request)
    own = list(inspect.signature(act, eval_str=True).parameters.values())[1:]

    def command(**values: Any) -> None:
        extra = {parameter.name: values.pop(parameter.name, parameter.default) for parameter in own}
        act(
            request.from_settings({field: value for field, value in values.items() if value not in (None, [])}, name),
            **extra,
        )

    typed_parameters = [_typer_parameter(parameter) for parameter in fields.values() if parameter.option.typed]
    options = [*typed_parameters, *(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own)]
    command.__name__, command.__doc__ = name.replace("-", "_"), request.__doc__
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in options}
    return command


def check_page_options(html: bool, json: bool, out: Path | None = None, open_page: bool = False) -> None:
    """Raise UsageError where options of the page contradict `--json`, or are given without `--html`."""
    if html and json:
        raise UsageError("--html and --json exclude each other", "run the command twice")
    if not html and (out is not None or open_page):
        raise UsageError("--out and --open belong to --html", "add --html")


def show_page(written: Path, open_page: bool) -> None:
    """Print where the page lies, and open it in the browser where that is wanted."""
    typer.echo(written)
    if open_page:
        typer.launch(written.resolve().as_uri())


def print_wide(*parts: Any, width: int = 120) -> None:
    """Print tables in the terminal's width, or $COLUMNS; in `width` where nobody has a terminal."""
    from rich.console import Console

    has_width = sys.stdout.isatty() or "COLUMNS" in os.environ
    Console(highlight=False, width=None if has_width else width).print(*parts, sep="\n")


def _typer_parameter(parameter: Parameter) -> inspect.Parameter:
    about = parameter.option
    listed = parameter.mapping or (parameter.many and (about.argument or about.separate))  # each of many is a word
    default: Any = None if about.stated or about.quick is not None or about.default is None else about.default
    kind: Any = Path if parameter.type is Path else str
    more: dict[str, Any] = {"metavar": _METAVARS[parameter.type]} if _numeric(parameter) else {}
    if parameter.type is bool:
        kind, default = bool, bool(about.default)
    elif listed:
        kind = list[kind]
    if default is REQUIRED:
        default = inspect.Parameter.empty
    elif default is None:
        kind = kind | None
    elif kind is str:
        default = str(default)
    names = [f"--{parameter.word}/--no-{parameter.word}" if default is True else f"--{parameter.word}"]
    info = (
        typer.Argument(help=about.help, **more)
        if about.argument
        else typer.Option(
            *names,
            *([about.short] if about.short else []),
            help=about.help,
            rich_help_panel="Advanced" if about.advanced else None,
            **more,
        )
    )
    return inspect.Parameter(
        parameter.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _numeric(parameter: Parameter) -> bool:
    single = not (parameter.many or parameter.mapping or parameter.option.unit)
    return single and parameter.type in _METAVARS


_MODULE = "module"  # the name of the option that has a module run, as in python -m


class ScriptCommand(TyperCommand):
    """Options and values: behind a script those that are not ours are its own, and behind `--` all are.

    So is `-m` behind it, which is Stepscope's before it alone: there it says that a module is named.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse, and let options pass that are not known where a script takes them."""
        takes_value = takes_value_by_option(self.params)
        place = target_index(args, takes_value)
        takes_words = ctx.allow_extra_args or any(option.name == "arguments" for option in self.params)
        of_a_module = next((option.opts for option in self.params if option.name == _MODULE), [])
        leading = [index for index in option_places(args[:place], takes_value) if args[index] in of_a_module]
        if not (takes_words and place < len(args) and (leading or is_script(args[place]))):
            return super().parse_args(ctx, args)
        ctx.ignore_unknown_options = True
        known = [name for name in takes_value if name not in of_a_module]
        _warn_of_mistyped_options(args[place], args[place + 1 :], known)
        ctx.meta[_MODULE] = bool(leading)
        words = [*args[: place + 1], *_mark_joined_letters(args[place + 1 :], takes_value)]
        parsed = super().parse_args(ctx, [word for index, word in enumerate(words) if index not in leading])
        ctx.args = [word.removeprefix(_MARK) for word in ctx.args]
        for name, value in ctx.params.items():
            if isinstance(value, tuple):
                ctx.params[name] = tuple(word.removeprefix(_MARK) if isinstance(word, str) else word for word in value)
        if of_a_module:
            ctx.params[_MODULE] = bool(leading)
        return parsed

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options, without the one that was seen before a script: behind it that is the script's."""
        return [option for option in super().get_params(ctx) if not (option.name == _MODULE and _MODULE in ctx.meta)]


_MARK = "\0"  # no word of a command line holds it


def _mark_joined_letters(words: Sequence[str], takes_value: Mapping[str, bool]) -> list[str]:
    """Mark words such as -env, which are a script's: the parser would take single letters of ours out of them."""
    marked, is_value = list(words), False
    for index, word in enumerate(words[: words.index("--") if "--" in words else len(words)]):
        is_joined = len(word) > 2 and word.startswith("-") and not word.startswith("--")
        if is_joined and not is_value and word not in takes_value:
            marked[index] = _MARK + word
        is_value = not is_value and takes_value.get(word, False)
    return marked


def takes_value_by_option(params: Sequence[Any]) -> dict[str, bool]:
    """Return the options of a command, and whether each takes a value."""
    return {
        name: not getattr(option, "is_flag", False)
        for option in params
        for name in (*option.opts, *option.secondary_opts)
        if name.startswith("-")
    }


def target_index(args: Sequence[str], takes_value: Mapping[str, bool]) -> int:
    """Return where the first word stands that is neither an option nor the value of one."""
    places = option_places(args, takes_value)
    return places[-1] + (2 if takes_value.get(args[places[-1]], False) else 1) if places else 0


def option_places(args: Sequence[str], takes_value: Mapping[str, bool]) -> list[int]:
    """Return where the options stand, without their values, up to the first word that is neither."""
    place, places = 0, list[int]()
    while place < len(args) and args[place].startswith("-") and args[place] not in ("--", "-"):
        places.append(place)
        place += 2 if takes_value.get(args[place], False) else 1
    return places


def refuse_unknown_target(target: str, command: str) -> None:
    """Raise UsageError for what is surely no workload, with -m where a module of the user's has this name."""
    from stepscope import workloads

    try:
        workloads.refuse_unknown(target)
    except UsageError as refusal:
        file = _file_of_own_module(target)
        if file is None:
            raise
        text = f"'{target}' is a module, and neither a workload nor a script"
        hint = f"stepscope {command} -m {target}, or its file: stepscope {command} {shlex.quote(str(file))}"
        raise UsageError(text, hint) from refusal


def _file_of_own_module(name: str) -> Path | None:
    """Return the file of a module of the user's that Python can run; None where there is none of this name."""
    from stepscope.record.fault_boundary import is_foreign
    from stepscope.record.processes.modules import module_to_run

    if not all(part.isidentifier() for part in name.split(".")):
        return None
    try:
        file = module_to_run(name).origin
    except (UsageError, OSError):  # the current folder may be gone
        return None
    if file is None or not is_foreign(file) or not Path(file).is_file():
        return None
    return Path(file).relative_to(Path.cwd()) if Path.cwd() in Path(file).parents else Path(file)


def _warn_of_mistyped_options(script: str, arguments: Sequence[str], known: Sequence[str]) -> None:
    """Say which of the script's options looks like one of ours: a slip of the finger goes to the script in silence."""
    ours = [name for name in known if name.startswith("--")]
    for word in arguments[: arguments.index("--") if "--" in arguments else len(arguments)]:
        name = word.partition("=")[0]
        near = difflib.get_close_matches(name, ours, n=1, cutoff=0.85) if name.startswith("--") else []
        if near and name not in known:
            print_to_stderr(f"{name} is an option of {script}; one of stepscope is {near[0]}")
