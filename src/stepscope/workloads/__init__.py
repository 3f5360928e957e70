"""Workloads: what is trained. Every file of this folder except the contract holds workloads and is found by itself.

Looking for a workload imports torch; importing this package does not.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from stepscope.errors import MissingDependency, UnknownName, UsageError, script_not_found_error
from stepscope.files import digest_of
from stepscope.plugins import discover

if TYPE_CHECKING:
    from stepscope.workloads._loss_bands import Checked
    from stepscope.workloads.contract import Workload


ENTRY_POINTS = "stepscope.workloads"
_NOT_WORKLOADS = frozenset({"contract"})
# Counts as of when these files were written, with the digest of those files: to count all anew takes half a minute.
FILE = Path(__file__).with_name("counted.json")  # by `python -m benchmarks.count_workloads`


def names() -> list[str]:
    """The names of all workloads, sorted."""
    return [workload.name for workload in every()]


def every() -> list[Workload]:
    """All workloads of this folder and of plug-ins, sorted by name."""
    return sorted(_discover_workloads()[0].values(), key=lambda workload: workload.name)


def find(name: str) -> Workload:
    """The workload of this name; `path/to/file.py:name` is one of a file of the user's."""
    path, colon, inner = name.rpartition(":")
    if colon and path.endswith(".py"):
        return _find_in_file(Path(path), inner)
    refuse_unknown(name)
    by_name = _discover_workloads()[0]
    if name not in by_name:
        raise _unknown(name, by_name)
    return by_name[name]


def refuse_unknown(name: str) -> None:
    """Raise UnknownName for what is surely none, without looking into the files and so without importing torch.

    The names are those that the package was shipped with. Where a file has changed since, or another package adds
    workloads, nothing is sure.
    """
    rows = shipped_counts().get("rows")
    if (
        rows
        and name not in rows
        and not name.rpartition(":")[0].endswith(".py")
        and not entry_points(group=ENTRY_POINTS)
    ):
        raise _unknown(name, rows)


def _unknown(name: str, rows: Iterable[str]) -> UsageError:
    """Return the refusal of what is neither a workload nor a script: the file that was meant, or the nearest name."""
    path = Path(name)
    if path.is_dir():
        return script_not_found_error(name)
    if path.is_file():
        takers = "stepscope run, tune, fit, suite run, and study threads, batch, precision and power-modes take scripts"
        return UsageError(f"'{name}' is a script, and this needs a workload", takers)
    if path.suffix.startswith(".py") or len(path.parts) > 1:
        return script_not_found_error(name, "file")
    refusal = UnknownName("workload", name, rows)
    if "did you mean" in (refusal.hint or ""):
        return refusal
    count = len(list(rows))
    return UnknownName("workload", name, rows, f"stepscope workloads lists the {count}; a script of yours: train.py")


def check(name: str) -> Checked | None:
    """Train a workload as its loss band was recorded, and compare; null where it has no band (`no_band` says why)."""
    workload = find(name)
    from stepscope.workloads._loss_bands import check as checked

    return checked(workload)


def _find_in_file(path: Path, name: str) -> Workload:
    """A workload of a file that belongs to no package; whatever is wrong with the file is said with its own words."""
    _refuse_without_torch()
    module_name = f"stepscope_file_{path.stem}"
    spec = importlib.util.spec_from_file_location(module_name, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise UsageError(f"there is no file '{path}'", "give it as path/to/file.py:workload")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their own module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise UsageError(f"'{path}' cannot be imported: {type(error).__name__}: {error}", "mend the file") from error
    listed, wrong = workloads_of(module)
    if wrong is not None:
        raise UsageError(f"'{path}': {wrong}", "WORKLOADS is a tuple of them (docs/add-a-workload.md)")
    offered = {workload.name: workload for workload in listed}
    if name not in offered:
        hint = None if offered else "it has to name its workloads in WORKLOADS (docs/add-a-workload.md)"
        raise UnknownName(f"workload of '{path}'", name, offered, hint)
    return offered[name]


def workloads_of(module: ModuleType) -> tuple[tuple[Workload, ...], str | None]:
    """(what a module lists in WORKLOADS, what is wrong with the list); the first is empty where something is."""
    from stepscope.workloads.contract import Workload

    listed = getattr(module, "WORKLOADS", ())
    if not isinstance(listed, (tuple, list)):
        return (), f"WORKLOADS is a {type(listed).__name__}, and no tuple"
    wrong = next((entry for entry in listed if not isinstance(entry, Workload)), None)
    if wrong is not None:
        return (), f"WORKLOADS holds a {type(wrong).__name__}, which is no Workload"
    return tuple(listed), None


def warnings() -> list[str]:
    """A sentence for each file or plug-in that had to be excluded, and why."""
    return _discover_workloads()[1]


def _refuse_without_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        hint = "pip install 'stepscope[torch]'; on a Jetson, install NVIDIA's own build of torch"
        raise MissingDependency("the workloads need torch, which is not installed", hint)


def _discover_workloads() -> tuple[dict[str, Workload], list[str]]:
    _refuse_without_torch()
    discovery = discover(sys.modules[__name__], ENTRY_POINTS, skip=_NOT_WORKLOADS)
    by_name: dict[str, Workload] = {}
    warnings = list(discovery.warnings)
    for module in discovery.modules:
        listed, wrong = workloads_of(module)
        if not hasattr(module, "WORKLOADS"):
            wrong = "it names no WORKLOADS"
        if wrong is not None:
            warnings.append(f"'{module.__name__}' was excluded: {wrong}")
        twins = [workload for workload in listed if by_name.setdefault(workload.name, workload) is not workload]
        warnings += [f"'{twin.name}' of {module.__name__} was excluded: the name is taken" for twin in twins]
    return by_name, warnings


@cache
def files_digest() -> str:
    """Of every file that says what a workload is."""
    return digest_of(sorted(FILE.parent.rglob("*.py")))


@cache
def shipped_counts() -> dict[str, Any]:
    """`torch` that counted, digests `workloads` and `counting`, and `rows` by name; empty where the files changed."""
    try:
        content = json.loads(FILE.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_current = isinstance(content, dict) and content.get("workloads") == files_digest()
    return dict(content) if is_current else {}
