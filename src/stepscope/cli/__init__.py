"""The subcommands: one file each, and this folder is their registry.

A file `name.py` holds a function `name` whose annotations are the options and whose docstring is the help.
A trailing underscore keeps a file clear of a keyword (`import_.py` is `stepscope import`). A dictionary `CONTEXT`
goes to click as the context settings, and a class `PARSER` parses what was typed. A dictionary `SUBCOMMANDS` of names
and functions makes it a group: the function `name` is then the help of the group. Whatever is heavy is imported inside
the function.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typer.core import TyperCommand


@dataclass(frozen=True)
class Command:
    """One subcommand: what the user types, the function that does it, click's context settings, what is below it."""

    name: str
    function: Callable[..., Any]
    context: Mapping[str, Any] = field(default_factory=dict)
    subcommands: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    parser: type[TyperCommand] | None = None


# The headings of the help, in their order.
PANELS = {
    "Measure": ("run", "live", "doctor"),
    "Read": ("report", "brief", "view", "compare", "figure", "export", "mcp"),
    "Decide": ("tune", "fit", "forecast"),
    "Check devices": ("suite", "study", "fleet", "calibrate"),
    "Data": ("runs", "import", "log", "meter", "data", "workloads", "check"),
}


def panel_of(name: str) -> str:
    """Return the heading below which the help lists a command; one that no heading names is of the last."""
    return next((panel for panel, names in PANELS.items() if name in names), list(PANELS)[-1])


def in_panels(commands: Iterable[Command]) -> list[Command]:
    """Return commands in the order in which the help lists them."""
    order = [name for names in PANELS.values() for name in names]
    return sorted(commands, key=lambda command: order.index(command.name) if command.name in order else len(order))


def command_names() -> list[str]:
    """Return what the user may type, without importing any of it."""
    return sorted(_file_by_command())


def load_commands(name: str | None = None) -> list[Command]:
    """Return every subcommand in order of its name, or the named one alone."""
    stems = _file_by_command()
    return [_load_command(stem) for stem_name, stem in sorted(stems.items()) if name in (None, stem_name)]


def _file_by_command() -> dict[str, str]:
    stems = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    return {_command_name(stem): stem for stem in stems}


def _command_name(stem: str) -> str:
    return stem.rstrip("_").replace("_", "-")


def _load_command(stem: str) -> Command:
    module = importlib.import_module(f"{__name__}.{stem}")
    below = getattr(module, "SUBCOMMANDS", {})
    parser = getattr(module, "PARSER", None)
    return Command(_command_name(stem), getattr(module, stem), getattr(module, "CONTEXT", {}), below, parser)
