"""What is trained. Every file of this folder except the contract holds workloads and is found by itself.

Looking for a workload imports torch; importing this package does not.
"""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING

from stepscope.errors import MissingDependency, UnknownName
from stepscope.plugins import discover

if TYPE_CHECKING:
    from stepscope.workloads.contract import Workload

ENTRY_POINTS = "stepscope.workloads"
_NOT_WORKLOADS = frozenset({"contract"})


def names() -> list[str]:
    """The names of all workloads, sorted."""
    return [workload.name for workload in every()]


def every() -> list[Workload]:
    """All workloads of this folder and of plug-ins, sorted by name."""
    return sorted(_found()[0].values(), key=lambda workload: workload.name)


def find(name: str) -> Workload:
    """The workload of this name."""
    known = _found()[0]
    if name not in known:
        raise UnknownName("workload", name, known)
    return known[name]


def warnings() -> list[str]:
    """A sentence for each file or plug-in that had to be left out, and why."""
    return _found()[1]


def _found() -> tuple[dict[str, Workload], list[str]]:
    if importlib.util.find_spec("torch") is None:
        hint = "pip install 'stepscope[torch]'; on a Jetson, install NVIDIA's own build of torch"
        raise MissingDependency("the workloads need torch, which is not installed", hint)
    found = discover(sys.modules[__name__], ENTRY_POINTS, skip=_NOT_WORKLOADS)
    known: dict[str, Workload] = {}
    said = list(found.warnings)
    for module in found.modules:
        offered = getattr(module, "WORKLOADS", None)
        if offered is None:
            said.append(f"'{module.__name__}' was left out: it names no WORKLOADS")
            continue
        taken = [workload.name for workload in offered if workload.name in known]
        said += [f"'{name}' of {module.__name__} was left out: the name is taken" for name in taken]
        known.update({workload.name: workload for workload in offered if workload.name not in known})
    return known, said
