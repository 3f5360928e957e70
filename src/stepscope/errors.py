"""Everything that Stepscope can refuse, as one tree; the command line turns each into its exit code.

StepscopeError                  1
├── UsageError                  2   what was asked for cannot be done as asked
│   └── UnknownName             2   no such workload, quantity or command; carries "did you mean"
├── MissingDependency           3   an optional library is needed and not installed
├── RunError                    4   a run folder cannot be read
│   ├── RunNotFound             4
│   ├── RunDamaged              4
│   ├── SchemaTooNew            4
│   └── AnalysisFailed          4   the analysis of what a run holds ended in a fault
├── OutputNotWritable           5   nowhere to write the run
├── DataUnavailable             6   a data set is neither packaged, cached nor reachable
├── SamplerFailed               7   the sampling process did not start
├── StoreError                  8   a store of runs does not answer, or holds what cannot be trusted
└── FleetError                  9   a device or the scheduler of a fleet cannot be reached or used
"""

from __future__ import annotations

import difflib
import traceback
from collections.abc import Iterable
from pathlib import Path


class StepscopeError(Exception):
    """An error of Stepscope; `hint` says what to do next."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(StepscopeError):
    """A request that cannot be fulfilled as it was made."""

    exit_code = 2


class UnknownName(UsageError):
    """A name that does not exist, with the nearest names that do."""

    def __init__(self, kind: str, name: str, known: Iterable[str], hint: str | None = None) -> None:
        super().__init__(f"unknown {kind} '{name}'", hint or _nearest_names_hint(name, sorted(known)))


def script_not_found_error(target: str, noun: str = "script") -> UsageError:
    """Return the refusal of a script that is not there, with the one beside it whose name is alike."""
    path = Path(target)
    if path.is_dir():
        return UsageError(f"'{target}' is a folder, not a {noun}", "name the script in it, or a workload")
    near = difflib.get_close_matches(path.name, [other.name for other in path.parent.glob("*.py")], n=1)
    hint = f"did you mean {path.with_name(near[0])}?" if near else None
    return UsageError(f"there is no {noun} '{target}'", hint or "give the path of a script, or a workload's name")


def exit_error(error: SystemExit) -> StepscopeError:
    """Return the refusal in place of an exit of the user's code, which would end the command without a word."""
    *_, last = traceback.extract_tb(error.__traceback__)
    called = f"sys.exit({'' if error.code is None else repr(error.code)}) in {last.filename}, line {last.lineno}"
    return StepscopeError(f"{called} ended this command", "let the code raise an error instead, or go on")


_MOST_NAMES = 24  # of a list in a hint: more is read by nobody


def _nearest_names_hint(name: str, names: list[str]) -> str:
    """Return what to type: names that are spelt alike or hold this one, else those that there are."""
    folded, typed = {known.lower(): known for known in names}, name.lower()
    alike = difflib.get_close_matches(typed, folded, n=3, cutoff=0.6)
    near = [folded[word] for word in alike if word[:1] == typed[:1] or _ratio(typed, word) > _ALIKE]
    if not near and len(typed) > 2:
        near = [folded[word] for word in folded if typed in word][:3]
    if near:
        return f"did you mean {' or '.join(near)}?"
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"known: {', '.join(names[:_MOST_NAMES])}{more}"


_ALIKE = 0.75  # of names that begin otherwise: "fecth" is fetch, "small" is not all


def _ratio(name: str, other: str) -> float:
    return difflib.SequenceMatcher(None, name, other).ratio()


class MissingDependency(StepscopeError):
    """An optional library is needed for this and is not installed."""

    exit_code = 3


class RunError(StepscopeError):
    """A run folder cannot be read."""

    exit_code = 4


class RunNotFound(RunError):
    """Error: there is no run folder at this path."""


class RunDamaged(RunError):
    """The folder holds no readable run.json, or a file of it cannot be read at all."""


class SchemaTooNew(RunError):
    """The run was written by a newer Stepscope than this one."""


class AnalysisFailed(RunError):
    """The analysis of a run ended in a fault: it holds what contradicts itself, or the analysis is wrong."""


class OutputNotWritable(StepscopeError):
    """The folder for the run cannot be made or written."""

    exit_code = 5


class DataUnavailable(StepscopeError):
    """A data set is neither packaged, cached nor reachable."""

    exit_code = 6


class SamplerFailed(StepscopeError):
    """The sampling process did not start or did not say that it is ready."""

    exit_code = 7


class StoreError(StepscopeError):
    """A store of runs does not answer, or holds what cannot be trusted."""

    exit_code = 8


class FleetError(StepscopeError):
    """A device or the scheduler of a fleet cannot be reached or used."""

    exit_code = 9
