"""Other people's trainers and other people's tools: one file each, named after the library, imported when asked for.

Every file has TITLE (what it joins Stepscope to) and EXTRA (of `pip install 'stepscope[...]'`), and imports its library
only when it is used. A file of a trainer has a `StepscopeCallback` (or what that library calls it); a file of a logger
has `log_run(run, out=None, ...)`, which returns where the run went.
"""

from __future__ import annotations

import sys
from types import ModuleType

from stepscope.errors import UnknownName
from stepscope.plugins import Discovery, discover


def discovered() -> Discovery:
    """Every file of this folder and of plug-ins, and a sentence for each that could not be imported."""
    return discover(sys.modules[__name__], "stepscope.integrations")


def loggers() -> dict[str, ModuleType]:
    """Return the loggers that a run can go to, by the name that `stepscope log --to` takes."""
    modules = discovered().modules
    return {module.__name__.rpartition(".")[2]: module for module in modules if hasattr(module, "log_run")}


def logger(name: str) -> ModuleType:
    """The logger of this name; UnknownName with the nearest where there is none."""
    by_name = loggers()
    if name not in by_name:
        raise UnknownName("logger", name, by_name)
    return by_name[name]
