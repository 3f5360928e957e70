"""How far a script was followed, and what its rounds keep."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from stepscope.record.dry.storage_log import StorageLog


class Progress:
    """Updates that a script made, and what was not followed, in words."""

    def __init__(self, log: StorageLog) -> None:
        self.log = log
        self.updates = 0
        self.missed: list[str] = []

    def miss(self, what: str) -> None:
        """Note what was not followed, once."""
        if what not in self.missed:
            self.missed.append(what)

    def keep_growing(self, ends: Sequence[int], skipped: int) -> None:
        """Count what each round keeps (outputs in a list, losses with their graphs) for those that are skipped too."""
        growth = min((after - before for before, after in itertools.pairwise(ends[-3:])), default=0)
        if growth > 0 and skipped > 0:
            self.log.hold(growth * skipped, f"kept by {skipped} rounds of a loop")


@contextlib.contextmanager
def instead(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute another value for a while."""
    plain = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, plain)
