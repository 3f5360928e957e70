"""Frames of calls that are under way, and those of a traceback that are not ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

_HERE = str(Path(__file__).parent)


def updates_below(newest: FrameType) -> set[int]:
    """Return the addresses of optimizers whose `step` is under way below this frame, torch's wrapper of another one."""
    found, frame = set(), newest.f_back
    while frame is not None:
        if frame.f_code is newest.f_code:
            found.add(id(frame.f_locals.get("self")))
        frame = frame.f_back
    return found


def without_our_frames(walk: Callable[[Any], Iterator[tuple[Any, Any]]]) -> Callable[[Any], Iterator[tuple[Any, Any]]]:
    def frames(trace: Any) -> Iterator[tuple[Any, Any]]:
        return (item for item in walk(trace) if not item[0].f_code.co_filename.startswith(_HERE))

    return frames


_PLACE = 0x57E95C09E  # a constant that stands for the function


def _template(t1: Any, t2: Any) -> Any:
    routed: Any = 0x57E95C09E  # _PLACE, as a constant of the code
    return routed(t1, t2)


def code_that_calls(function: Callable[[Any, Any], Any], plain: CodeType) -> CodeType:
    """Return code that calls this function with two arguments, and is shown as the code in whose place it stands."""
    template = _template.__code__
    constants = tuple(function if value == _PLACE else value for value in template.co_consts)
    names = plain.co_varnames[:2] + template.co_varnames[2:]
    return template.replace(
        co_consts=constants,
        co_varnames=names,
        co_filename=plain.co_filename,
        co_firstlineno=plain.co_firstlineno,
        co_name=plain.co_name,
    )
