"""Faults while a run is analysed: what fails is named in its place, and the rest goes on.

A run folder can hold what its checks let through and no analysis expects, and an analysis can have a fault. Neither
takes a whole report with it, nor the server of `view`. $STEPSCOPE_FAULTS=raise lets each exception through, with its
traceback; the tests run so.
"""

from __future__ import annotations

import functools
import os
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ParamSpec, TypeVar

from stepscope.errors import AnalysisFailed, RunError, StepscopeError

P = ParamSpec("P")
T = TypeVar("T")

_SEE = "STEPSCOPE_FAULTS=raise shows the fault whole; please open an issue with it"
_PACKAGE = Path(__file__).parent


@dataclass(frozen=True)
class FailedPart:
    """A part of a report that is not there, and why: what is damaged, or the fault."""

    why: str

    def sentence(self, *parts: str) -> str:
        """Return "The modules and energy cannot be shown: why"."""
        names = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
        return f"{names[:1].upper()}{names[1:]} cannot be shown: {self.why}"


def result_or_failed_part(make: Callable[[], T]) -> T | FailedPart:
    """Return what `make` gives, or why a fault of ours or the damage of the run prevents it."""
    try:
        return make()
    except RunError as error:
        return FailedPart(str(error))
    except BaseException as error:
        if not _is_fault(error):
            raise
        return FailedPart(f"{_describe_error(error)}; {_SEE}")


def wrap_analysis_faults(analyse: Callable[P, T]) -> Callable[P, T]:
    """Raise AnalysisFailed in place of a fault of this function; errors of ours pass as they are."""

    @functools.wraps(analyse)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return analyse(*args, **kwargs)
        except BaseException as error:
            if not _is_fault(error):
                raise
            raise AnalysisFailed(f"what this run holds cannot be analysed: {_describe_error(error)}", _SEE) from error

    return call


def _is_fault(error: BaseException) -> bool:
    """Return whether an exception is a fault that is to be contained; a panic of Polars is no Exception."""
    if os.environ.get("STEPSCOPE_FAULTS") == "raise" or isinstance(error, (StepscopeError, ImportError)):
        return False  # a library that is not installed has a message of its own
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _describe_error(error: BaseException) -> str:
    """Return what went wrong and in which line of ours: "ValueError in analysis/metrics.py:12"."""
    places = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    ours = [f"{file.relative_to(_PACKAGE).as_posix()}:{line}" for file, line in places if file.is_relative_to(_PACKAGE)]
    return f"{type(error).__name__}{f' in {ours[-1]}' if ours else ''}"
