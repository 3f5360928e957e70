"""Frames of calls that are under way, and those of a traceback that are not ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
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
