"""A command asked by a program: settings in Python's types become the words that a person would have typed.

So a study, and whatever study is added, is asked through the very options of its command: the same names, the same
checks, the same line to repeat it by.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

import typer
from typer.main import get_command

from stepscope.__main__ import build_app
from stepscope.commands._called import Called, calling
from stepscope.errors import UnknownName, UsageError

_REFUSED: Any = typer.BadParameter.__bases__[0]  # click's own UsageError, wherever this typer keeps click


def command(*path: str) -> Any:
    """The command of this name as typer made it, and the one below it; UnknownName where there is none."""
    found = get_command(build_app())
    for name in path:
        below = getattr(found, "commands", {})
        if name not in below:
            raise UnknownName(f"command of '{found.name}'", name, below)
        found = below[name]
    return found


def asked(path: Sequence[str], settings: Mapping[str, Any], quiet: bool) -> Called:
    """Run a command in this process and hand back what it concluded; what it refuses is raised.

    UnknownName for a setting that the command does not have, UsageError for a value that it does not take.
    """
    called = command(*path)
    typed = words(called, settings)
    with calling([*path, *typed]) as call:
        try:
            with called.make_context(path[-1], [*typed, *(["--quiet"] if quiet else [])]) as context:
                called.invoke(context)
        except _REFUSED as error:
            raise UsageError(error.format_message(), f"stepscope {' '.join(path)} --help") from error
    return call


def words(called: Any, settings: Mapping[str, Any]) -> list[str]:
    """The settings as they would be typed after the command, its arguments last."""
    known = {name: parameter for parameter in called.params for name in _names(parameter)}
    options: list[str] = []
    arguments: list[str] = []
    for name, value in settings.items():
        place = name.removesuffix("_")  # from_ and import_ are words that Python keeps for itself
        if place not in known:
            raise UnknownName(f"setting of '{called.name}'", name, known)
        parameter = known[place]
        into = arguments if parameter.param_type_name == "argument" else options
        into += [] if value is None else _words(parameter, value)
    return [*options, *arguments]


def _names(parameter: Any) -> Iterator[str]:
    """What a program calls it: an argument by its name, an option by what is typed, with _ for -."""
    if parameter.param_type_name == "argument":
        yield parameter.name
        return
    for option in parameter.opts:
        if option.startswith("--") and option not in ("--help", "--json", "--quiet"):
            yield option[2:].replace("-", "_")


def _words(parameter: Any, value: Any) -> Iterator[str]:
    if parameter.param_type_name == "argument":
        yield from map(str, _several(value) if parameter.nargs != 1 else [value])
    elif parameter.is_flag:
        yield from parameter.opts[:1] if value else parameter.secondary_opts[:1]
    elif parameter.multiple:
        for one in _several(value):
            yield from (parameter.opts[0], str(one))
    else:
        yield from (parameter.opts[0], ",".join(map(str, _several(value))))


def _several(value: Any) -> list[Any]:
    """One value as a list of one; a mapping as a list of name=value."""
    if isinstance(value, Mapping):
        return [f"{name}={one}" for name, one in value.items()]
    return [value] if isinstance(value, (str, PathLike)) or not hasattr(value, "__iter__") else list(value)
