"""`stepscope study`: questions that need more than one run. Each study is one file `_study_<name>.py` beside this."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PREFIX = "_study_"
_NOT_STUDIES = {"_study_shown", "_study_child"}


def study() -> None:
    """Answer a question with many runs: what the papers asked, on your own device. An interrupted study goes on."""


def _studies() -> dict[str, Callable[..., Any]]:
    """Every study by the name that the user types: file `_study_power_modes.py` holds `power_modes`."""
    stems = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    names = [stem for stem in sorted(stems) if stem.startswith(_PREFIX) and stem not in _NOT_STUDIES]
    found = {name: importlib.import_module(f"stepscope.commands.{name}") for name in names}
    return {
        name.removeprefix(_PREFIX).replace("_", "-"): getattr(module, name.removeprefix(_PREFIX))
        for name, module in found.items()
    }


SUBCOMMANDS = _studies()
