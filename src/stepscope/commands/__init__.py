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


def load_commands() -> list[Command]:
    """Every subcommand in order of its name."""
    stems = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    return sorted((_command(stem) for stem in stems), key=lambda command: command.name)


def _command(stem: str) -> Command:
    module = importlib.import_module(f"{__name__}.{stem}")
    name, below = stem.rstrip("_").replace("_", "-"), getattr(module, "SUBCOMMANDS", {})
    return Command(name, getattr(module, stem), getattr(module, "CONTEXT", {}), below)
