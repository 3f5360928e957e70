"""Writes cli.md and python.md beside this file from the code itself: python docs/reference/make.py."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from typer.main import get_command

import stepscope
from stepscope.__main__ import build_app
from stepscope.analysis.compare import Comparison
from stepscope.analysis.compare.regression_check import Check, Judged
from stepscope.analysis.forecast import Forecast
from stepscope.analysis.metrics import Measured
from stepscope.analysis.results import Findings, ResultTable
from stepscope.errors import StepscopeError
from stepscope.experiments.suite.results import Results, Score
from stepscope.footprint.result import FitResult
from stepscope.record.profile import Scope
from stepscope.report.live.growing_files import Pace
from stepscope.report.live.run_state import Now

RETURNED = (Check, Comparison, FitResult, Findings, ResultTable, Forecast, Judged, Measured, Now, Pace, Results, Score)
HERE = Path(__file__).parent
NOTICE = "<!-- made from the code: python docs/reference/make.py -->\n"


def cli_page() -> str:
    """cli.md: every command with its help, arguments and options."""
    group: Any = get_command(build_app())
    parts = [NOTICE + "# Command line", f"{group.help}\n\nEvery command answers `--help`; `stepscope --version` too."]
    for name, command in sorted(group.commands.items()):
        parts.append(_command(name, command))
        parts += [_command(f"{name} {inner}", below) for inner, below in getattr(command, "commands", {}).items()]
    parts.append(_exit_codes())
    return "\n\n".join(parts) + "\n"


def python_page() -> str:
    """python.md: the public names of `stepscope`, with signatures as they stand in the source."""
    names = [name for name in stepscope.__all__ if not name.startswith("_")]
    parts = [NOTICE + "# Python", "`import stepscope` costs nothing: each name is imported when it is first used."]
    parts += [_public(f"stepscope.{name}", getattr(stepscope, name)) for name in sorted(names, key=str.lower)]
    parts.append(_public("The scope of `with stepscope.profile(...) as scope`", Scope))
    parts.append("# What they return")
    parts += [_public(returned.__name__, returned) for returned in sorted(RETURNED, key=lambda one: one.__name__)]
    return "\n\n".join(parts) + "\n"


def _command(name: str, command: Any) -> str:
    rows = [_parameter(parameter) for parameter in command.params if parameter.name != "help"]
    if hasattr(command, "commands"):
        return f"## stepscope {name}\n\n`stepscope {name} COMMAND [OPTIONS]`\n\n{_text(command.help)}"
    usage = " ".join(["stepscope", name, *(_usage(p) for p in command.params if p.param_type_name == "argument")])
    table = "\n".join(["| | default | |", "| --- | --- | --- |", *rows])
    return f"## stepscope {name}\n\n`{usage} [OPTIONS]`\n\n{_text(command.help)}\n\n{table}"


def _usage(argument: Any) -> str:
    name = str(argument.name).upper()
    return name if argument.required else f"[{name}]"


def _parameter(parameter: Any) -> str:
    argument = parameter.param_type_name == "argument"
    name = parameter.name.upper() if argument else ", ".join([*parameter.opts, *parameter.secondary_opts])
    default = "required" if parameter.required else _default(parameter.default)
    return f"| `{name}` | {default} | {_text(parameter.help).replace('|', chr(92) + '|')} |"


def _default(value: Any) -> str:
    return "" if value is None or value is False or value == [] else f"`{value}`"


def _text(text: str | None) -> str:
    return inspect.cleandoc(text or "").strip()


def _exit_codes() -> str:
    named = [error for error in StepscopeError.__subclasses__() if error.__module__ == StepscopeError.__module__]
    named.sort(key=lambda error: error.exit_code)
    rows = [f"| {error.exit_code} | {_text(error.__doc__)} |" for error in named]
    first = "| 1 | Something else, as said; a followed run or a checked workload that did not end well. |"
    last = ["| 10 | `stepscope check`: a regression. |", "| 11 | `stepscope check`: cannot tell. |"]
    rows = [first, *rows, *last, "| 70 | A fault in Stepscope itself: please report it. |", "| 130 | Ctrl-C. |"]
    title = "## Exit codes\n\n`stepscope run train.py` gives the exit code of the script.\n\n| code | meaning |"
    return "\n".join([title, "| --- | --- |", *rows])


def _public(name: str, value: Any) -> str:
    if inspect.ismodule(value):
        return "\n\n".join([f"## {name}\n\n```text\n{_text(value.__doc__)}\n```", *_functions(name, value)])
    parts = [f"## {name}"]
    if not inspect.isclass(value):
        return "\n\n".join([*parts, f"```text\n{_signature(value)}\n```", _text(value.__doc__)])
    if is_dataclass(value):
        parts.append(f"```text\n{_fields(value)}\n```")
    elif "__init__" in vars(value) and value is not Scope:  # a scope is given, never made
        parts.append(f"```text\n{_signature(value.__init__)}\n```")
    return "\n\n".join([*parts, _text(value.__doc__), *_members(value)])


def _functions(name: str, module: ModuleType) -> Iterator[str]:
    """The functions that a module offers: those it lists, else its own."""
    own = [each for each, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    for each in sorted(getattr(module, "__all__", own)):
        function = getattr(module, each)
        if inspect.isfunction(function) and not each.startswith("_"):
            yield f"### {name}.{each}\n\n```text\n{_signature(function)}\n```\n\n{_text(function.__doc__)}"


def _fields(owner: type) -> str:
    return "\n".join(f"{field.name}: {field.type}" for field in fields(owner))


def _members(owner: type) -> Iterator[str]:
    """The public methods and properties of a class; those of its own first, then the inherited ones."""
    seen: set[str] = set()
    for part in owner.__mro__[:-1]:
        for name, member in vars(part).items():
            function = _function(member)
            if name.startswith("_") or name in seen or function is None:
                continue
            seen.add(name)
            kind = "" if callable(member) else " (property)"
            about = f"\n\n{_text(function.__doc__)}" if function.__doc__ else ""
            yield f"### {owner.__name__}.{name}{kind}\n\n```text\n{_signature(function)}\n```{about}"


def _function(member: Any) -> Callable[..., Any] | None:
    if isinstance(member, property):
        return member.fget
    if isinstance(member, cached_property):
        return member.func
    if isinstance(member, classmethod):
        return member.__func__
    return member if inspect.isfunction(member) else None


def _signature(function: Callable[..., Any]) -> str:
    """`def name(...) -> ...` as the source has it: the same on every version of Python."""
    source = textwrap.dedent(inspect.getsource(function))
    node = ast.parse(source).body[0]
    assert isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    lines = source.splitlines()[node.lineno - 1 : node.body[0].lineno - 1]
    return "\n".join(lines).rstrip().rstrip(":")


def main() -> int:
    """Write both pages."""
    for name, page in (("cli.md", cli_page), ("python.md", python_page)):
        (HERE / name).write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
