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
    "Run": "stepscope.analysis.run",
    "check": "stepscope.analysis.regression_check",
    "compare": "stepscope.analysis.compare",
    "doctor": "stepscope.public.doctor",
    "export": "stepscope.public.export",
    "figure": "stepscope.public.figure",
    "figures": "stepscope.public.figure",
    "fit": "stepscope.studies.fit.python_api",
    "fit_script": "stepscope.public.fit",
    "fit_workload": "stepscope.public.fit",
    "forecast": "stepscope.public.forecast",
    "import_file": "stepscope.importers",
    "live": "stepscope.public.live",
    "log": "stepscope.public.log",
    "measure": "stepscope.public.measure",
    "meter": "stepscope.public.meter",
    "page": "stepscope.public.report",
    "profile": "stepscope.record.profile",
    "schedule": "stepscope.record.schedule",
    "study": "stepscope.public.study",
    "text": "stepscope.public.report",
    "view": "stepscope.public.view",
    "workload_facts": "stepscope.public.workload_facts",
}
# Groups of functions, as the groups of commands.
_MODULES = {
    "data": "stepscope.workloads.data.sets",
    "errors": "stepscope.errors",
    "fleet": "stepscope.public.fleet",
    "simulate": "stepscope.simulate",
    "store": "stepscope.store",
    "suite": "stepscope.public.suite",
    "workloads": "stepscope.workloads",
}
# What a notebook shows of a class: it is told here, since analysis knows nothing of reports.
_SHOWN = {"Run": ("Run", "run_html"), "compare": ("Comparison", "comparison_html")}
__all__ = [
    "Run",
    "__version__",
    "check",
    "compare",
    "data",
    "doctor",
    "errors",
    "export",
    "figure",
    "figures",
    "fit",
    "fit_script",
    "fit_workload",
    "fleet",
    "forecast",
    "import_file",
    "live",
    "log",
    "measure",
    "meter",
    "page",
    "profile",
    "schedule",
    "simulate",
    "store",
    "study",
    "suite",
    "text",
    "view",
    "workload_facts",
    "workloads",
]

if TYPE_CHECKING:
    from stepscope import errors as errors
    from stepscope import simulate as simulate
    from stepscope import store as store
    from stepscope import workloads as workloads
    from stepscope.analysis.compare import compare as compare
    from stepscope.analysis.regression_check import check as check
    from stepscope.analysis.run import Run as Run
    from stepscope.importers import import_file as import_file
    from stepscope.public import fleet as fleet
    from stepscope.public import suite as suite
    from stepscope.public.doctor import doctor as doctor
    from stepscope.public.export import export as export
    from stepscope.public.figure import figure as figure
    from stepscope.public.figure import figures as figures
    from stepscope.public.fit import fit_script as fit_script
    from stepscope.public.fit import fit_workload as fit_workload
    from stepscope.public.forecast import forecast as forecast
    from stepscope.public.live import live as live
    from stepscope.public.log import log as log
    from stepscope.public.measure import measure as measure
    from stepscope.public.meter import meter as meter
    from stepscope.public.report import page as page
    from stepscope.public.report import text as text
    from stepscope.public.study import study as study
    from stepscope.public.view import view as view
    from stepscope.public.workload_facts import workload_facts as workload_facts
    from stepscope.record.profile import profile as profile
    from stepscope.record.schedule import schedule as schedule
    from stepscope.studies.fit.python_api import fit as fit
    from stepscope.workloads.data import sets as data


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _PUBLIC:
        raise AttributeError(f"module 'stepscope' has no attribute '{name}'")
    module = importlib.import_module(_PUBLIC[name])
    if name in _SHOWN:
        kind, function = _SHOWN[name]
        getattr(module, kind).shown_as_html = functools.partial(_drawn, function)
    return getattr(module, name)


def _drawn(function: str, shown: Any) -> str | None:
    """HTML of an object for a notebook; the report is imported when the first one is shown."""
    html: str | None = getattr(importlib.import_module("stepscope.report.notebook"), function)(shown)
    return html


def __dir__() -> list[str]:
    return sorted(__all__)
