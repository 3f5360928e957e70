"""Whether a person typed this command, or a program called it through `stepscope.study` and `stepscope.suite`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepscope.analysis.findings import Findings


@dataclass(frozen=True)
class Called:
    """A call from Python: the words that would have been typed, and what was found. Nothing is shown to anybody."""

    words: tuple[str, ...]
    found: list[Findings] = field(default_factory=list)


_CALLED: ContextVar[Called | None] = ContextVar("called", default=None)


def by_program() -> Called | None:
    """The call that this is; None where a person typed the command."""
    return _CALLED.get()


def words_typed() -> list[str]:
    """What stands after `stepscope`, or would."""
    called = by_program()
    return sys.argv[1:] if called is None else list(called.words)


def line() -> str:
    """The line that repeats this command."""
    return shlex.join(["stepscope", *words_typed()])


@contextmanager
def calling(words: Sequence[str]) -> Iterator[Called]:
    """Whatever command runs within is called by a program."""
    called = Called(tuple(words))
    token = _CALLED.set(called)
    try:
        yield called
    finally:
        _CALLED.reset(token)
