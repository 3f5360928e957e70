"""The subcommands: one file each, and this folder is their registry.

A file `name.py` holds a function `name` whose annotations are the options and whose docstring is the help.
A trailing underscore keeps a file clear of a keyword (`import_.py` is `stepscope import`). A dictionary `CONTEXT`
goes to click as the context settings. A dictionary `SUBCOMMANDS` of names and functions makes it a group: the function
`name` is then the help of the group. Whatever is heavy is imported inside the function.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Command:
    """One subcommand: what the user types, the function that does it, click's context settings, what is below it."""

    name: str
    function: Callable[..., Any]
    context: Mapping[str, Any] = field(default_factory=dict)
    subcommands: Mapping[str, Callable[..., Any]] = field(default_factory=dict)


def command_names() -> list[str]:
    """Return what the user may type, without importing any of it."""
    return sorted(_stems())


def load_commands(name: str | None = None) -> list[Command]:
    """Return every subcommand in order of its name, or the named one alone."""
    stems = _stems()
    return [_command(stem) for known, stem in sorted(stems.items()) if name in (None, known)]


def _stems() -> dict[str, str]:
    stems = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    return {_name(stem): stem for stem in stems}


def _name(stem: str) -> str:
    return stem.rstrip("_").replace("_", "-")


def _command(stem: str) -> Command:
    module = importlib.import_module(f"{__name__}.{stem}")
    below = getattr(module, "SUBCOMMANDS", {})
    return Command(_name(stem), getattr(module, stem), getattr(module, "CONTEXT", {}), below)
