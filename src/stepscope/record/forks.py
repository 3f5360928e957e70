"""Sessions of this process, and what a fork does to them: a child is a copy that is no part of a run."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

SESSIONS: set[Any] = set()  # each hears of it by `forked` and `forks`


def _in_child() -> None:
    torch_private: Any = sys.modules.get("stepscope.record.torch_private")
    if torch_private is not None:  # a training with torch
        torch_private.end_forked_children_early()
    for session in list(SESSIONS):
        with contextlib.suppress(Exception):  # nothing of ours may reach a child of the training's
            session.forked()
    SESSIONS.clear()


def _in_parent() -> None:
    for session in list(SESSIONS):
        session.forks()


os.register_at_fork(after_in_child=_in_child, after_in_parent=_in_parent)
