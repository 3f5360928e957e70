"""Profiler of training: what one training step costs, on the device in front of you.

The public API is resolved on first use, so that `import stepscope` costs nothing:
torch, polars and altair are imported by the parts that need them. (PYTEST_DONT_REWRITE: a script that calls pytest
after `stepscope run` has imported this package is not warned about it.)
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as typing has it: each Python process that a training starts imports this
if TYPE_CHECKING:
    from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Run": "stepscope.analysis.run",
    "calibrate": "stepscope.api.calibration",
    "brief": "stepscope.api.run_reports",
    "check": "stepscope.analysis.compare.regression_check",
    "compare": "stepscope.analysis.compare",
    "doctor": "stepscope.api.run_reports",
    "export": "stepscope.api.run_reports",
    "figure": "stepscope.api.run_reports",
    "figures": "stepscope.api.run_reports",
    "fit": "stepscope.footprint.prediction",
    "fit_script": "stepscope.api.workloads",
    "fit_workload": "stepscope.api.workloads",
    "forecast": "stepscope.api.run_reports",
    "import_file": "stepscope.importers",
    "learn_power_model": "stepscope.api.run_reports",
    "live": "stepscope.api.run_reports",
    "log": "stepscope.api.run_reports",
    "measure": "stepscope.api.training",
    "meter": "stepscope.api.run_reports",
    "page": "stepscope.api.run_reports",
    "profile": "stepscope.record.profile",
    "schedule": "stepscope.record.settings",
    "study": "stepscope.api.study",
    "text": "stepscope.api.run_reports",
    "tune": "stepscope.api.tune",
    "view": "stepscope.api.run_reports",
    "workload_facts": "stepscope.api.workloads",
}
# Groups of functions, as the groups of commands.
_MODULES = {
    "data": "stepscope.workloads.data.catalogue",
    "errors": "stepscope.errors",
    "fleet": "stepscope.api.fleet",
    "requests": "stepscope.api.requests",
    "simulate": "stepscope.simulate",
    "store": "stepscope.store",
    "suite": "stepscope.api.suite",
    "workloads": "stepscope.workloads",
}
__all__ = [
    "Run",
    "__version__",
    "brief",
    "calibrate",
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
    "learn_power_model",
    "live",
    "log",
    "measure",
    "meter",
    "page",
    "profile",
    "requests",
    "schedule",
    "simulate",
    "store",
    "study",
    "suite",
    "text",
    "tune",
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
    from stepscope.analysis.compare.regression_check import check as check
    from stepscope.analysis.run import Run as Run
    from stepscope.api import fleet, requests, suite
    from stepscope.api.calibration import calibrate as calibrate
    from stepscope.api.run_reports import doctor as doctor
    from stepscope.api.run_reports import export as export
    from stepscope.api.run_reports import figure as figure
    from stepscope.api.run_reports import figures as figures
    from stepscope.api.run_reports import forecast as forecast
    from stepscope.api.run_reports import learn_power_model as learn_power_model
    from stepscope.api.run_reports import live as live
    from stepscope.api.run_reports import log as log
    from stepscope.api.run_reports import meter as meter
    from stepscope.api.run_reports import page as page
    from stepscope.api.run_reports import text as text
    from stepscope.api.run_reports import view as view
    from stepscope.api.study import study as study
    from stepscope.api.training import measure as measure
    from stepscope.api.tune import tune as tune
    from stepscope.api.workloads import fit_script as fit_script
    from stepscope.api.workloads import fit_workload as fit_workload
    from stepscope.api.workloads import workload_facts as workload_facts
    from stepscope.footprint.prediction import fit as fit
    from stepscope.importers import import_file as import_file
    from stepscope.record.profile import profile as profile
    from stepscope.record.settings import schedule as schedule
    from stepscope.workloads.data import catalogue as data


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(_MODULES[name])
    if name not in _PUBLIC:
        raise AttributeError(f"module 'stepscope' has no attribute '{name}'")
    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
