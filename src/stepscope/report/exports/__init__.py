"""Exports of a run for other tools, one file each; the folder is its own registry.

A file has TITLE (what it is and what opens it), SUFFIX (of the file; empty for a folder of tables),
`estimate(excerpt) -> int` (bytes, roughly, before anything is written) and `write(excerpt, path)`, which may raise
OSError. Its name is what `stepscope export --to` takes.
"""

from __future__ import annotations

import sys
from types import ModuleType

from stepscope.errors import UnknownName
from stepscope.plugins import Discovery, discover


def discover_exports() -> Discovery:
    """Every export of this folder and of plug-ins, and a sentence for each that could not be imported."""
    return discover(sys.modules[__name__], "stepscope.exports")


def find_export(name: str) -> ModuleType:
    """The export of this name; UnknownName with the nearest where there is none."""
    exports = {module.__name__.rpartition(".")[2]: module for module in discover_exports().modules}
    if name not in exports:
        raise UnknownName("export", name, exports)
    return exports[name]
