"""A guard below all that answers for a script's files: what would still write to one of the user's is not done.

Python tells its audit hooks of each file before it opens, moves or removes it, whoever asks: a class of io, a function
that a library has kept, another thread. A hook stays in a process; outside of `guarded` it does nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from typing import Any

from stepscope.footprint.patience import OutOfPatience
from stepscope.footprint.script_overlay import WRITES, Overlay

_PATHS = {  # which arguments of an event are files, and the descriptor of the folder that each lies in
    "os.remove": ((0, 1),), "os.rmdir": ((0, 1),), "os.mkdir": ((0, 2),), "os.truncate": ((0, None),),
    "os.rename": ((0, 2), (1, 3)), "os.link": ((1, 3),), "os.symlink": ((1, 2),),
}  # fmt: skip
_watched: list[Overlay] = []


@contextlib.contextmanager
def guarded(files: Overlay) -> Iterator[None]:
    """Raise OutOfPatience where a file of the user's would be written to, moved or removed."""
    _listen()
    _watched.append(files)
    try:
        yield
    finally:
        _watched.remove(files)


@functools.cache
def _listen() -> None:
    sys.addaudithook(_heard)


def _heard(event: str, given: tuple[Any, ...]) -> None:
    if not _watched:
        return
    if event == "open":
        if given[2] & WRITES:
            _check(event, given[0], None)
    elif event in _PATHS:
        for at, folder in _PATHS[event]:
            _check(event, given[at], None if folder is None else given[folder])


def _check(event: str, path: Any, folder: int | None) -> None:
    if not _watched[-1].is_of(path, folder):
        named = os.fsdecode(path)
        raise OutOfPatience(f"it would write to '{named}' by a way that is not answered for ({event})", None)
