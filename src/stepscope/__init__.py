"""What one training step costs, on the device in front of you.

The public API is resolved on first use, so that `import stepscope` costs nothing:
torch, polars and altair are imported by the parts that need them.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "profile": "stepscope.record.profile",
    "schedule": "stepscope.record.schedule",
    "Run": "stepscope.analysis.run",
    "compare": "stepscope.analysis.compare",
    "fit": "stepscope.studies.fit.python_api",
    "import_file": "stepscope.importers",
    "store": "stepscope.store",
    "errors": "stepscope.errors",
}
# What a notebook shows of a class: it is told here, since analysis knows nothing of reports.
_SHOWN = {"Run": ("Run", "run_html"), "compare": ("Comparison", "comparison_html")}
__all__ = ["Run", "__version__", "compare", "errors", "fit", "import_file", "profile", "schedule", "store"]

if TYPE_CHECKING:
    from stepscope import errors as errors
    from stepscope import store as store
    from stepscope.analysis.compare import compare as compare
    from stepscope.analysis.run import Run as Run
    from stepscope.importers import import_file as import_file
    from stepscope.record.profile import profile as profile
    from stepscope.record.schedule import schedule as schedule
    from stepscope.studies.fit.python_api import fit as fit


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'stepscope' has no attribute '{name}'")
    module = importlib.import_module(_PUBLIC[name])
    if name in _SHOWN:
        kind, function = _SHOWN[name]
        getattr(module, kind).shown_as_html = functools.partial(_drawn, function)
    return module if _PUBLIC[name] == f"stepscope.{name}" else getattr(module, name)


def _drawn(function: str, shown: Any) -> str | None:
    """HTML of an object for a notebook; the report is imported when the first one is shown."""
    html: str | None = getattr(importlib.import_module("stepscope.report.notebook"), function)(shown)
    return html


def __dir__() -> list[str]:
    return sorted(__all__)
