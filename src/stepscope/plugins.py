"""Code that is found by name: the files of a growing folder, what other packages add to it, and what draws a result.

A third-party package adds to a folder through an entry point that names one of its modules:

    [project.entry-points."stepscope.workloads"]
    mine = "my_package.my_workloads"
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType


@dataclass(frozen=True)
class Discovery:
    """The modules that could be imported, and a sentence for each that could not."""

    modules: tuple[ModuleType, ...]
    warnings: tuple[str, ...]


def discover(
    package: ModuleType, group: str, skip: Collection[str] = (), points: Iterable[EntryPoint] | None = None
) -> Discovery:
    """Import the modules of a package folder, by name, then the entry points of a group; none can raise.

    Sub-packages, files that start with "_" and the names in `skip` are excluded. `points` replaces the
    entry points of the installed packages.
    """
    modules: list[ModuleType] = []
    warnings: list[str] = []
    for name in _file_names(package, skip):
        _try_import(f"{package.__name__}.{name}", f"file '{name}.py'", modules, warnings)
    for point in entry_points(group=group) if points is None else points:
        _try_import(point, f"plug-in '{point.name}' of {_owner(point)} ({group})", modules, warnings)
    return Discovery(tuple(modules), tuple(warnings))


# Functions that give the HTML of a result, or None where the extra `report` is not installed. The one place in which a
# room names one above it: analysis does not import what draws it, and a notebook asks the result itself.
_NOTEBOOK_VIEWS = {
    "Run": ("stepscope.report.html", "run_html"),
    "Comparison": ("stepscope.report.html", "comparison_html"),
}


def notebook_html(kind: str, result: object) -> str | None:
    """Return the HTML of a result for a notebook, by the class that it is documented as."""
    module, function = _NOTEBOOK_VIEWS[kind]
    html: str | None = getattr(importlib.import_module(module), function)(result)
    return html


def _file_names(package: ModuleType, skip: Collection[str]) -> list[str]:
    modules = pkgutil.iter_modules(package.__path__)
    return sorted(m.name for m in modules if not m.ispkg and not m.name.startswith("_") and m.name not in skip)


def _owner(point: EntryPoint) -> str:
    try:
        return point.dist.name if point.dist is not None else "unknown package"
    except Exception:  # its metadata are damaged
        return "unknown package"


def _try_import(module: str | EntryPoint, description: str, modules: list[ModuleType], warnings: list[str]) -> None:
    """Import one module; someone else's broken file may raise anything, or exit, and must not stop the rest."""
    try:
        modules.append(importlib.import_module(module if isinstance(module, str) else module.module))
    except (Exception, SystemExit) as error:
        warnings.append(f"{description} was excluded: {type(error).__name__}: {error}")
