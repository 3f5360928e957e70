"""Which module was called when autograd made a node, in windows without the forward pass.

Autograd numbers the nodes of a thread as it makes them, so that those made between two calls lie between two numbers.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepscope.arrays import Ints
from stepscope.record.ops.events import NO_MODULE

_MOST = 200_000  # changes of the innermost module that are remembered, 16 B each: the last ones


@dataclass(frozen=True)
class InnermostModules:
    """The innermost module by autograd number: from each of `begins` on it is that one."""

    begins: Ints
    module: Ints

    def modules_of(self, sequence: Ints) -> Ints:
        """Index of the module that made each of these nodes, NO_MODULE where none or an unknown one did."""
        place = np.searchsorted(self.begins, sequence, side="right") - 1
        modules: Ints = np.where(place >= 0, self.module[np.maximum(place, 0)], NO_MODULE)
        return modules


class ModuleCallLog:
    """The module calls of one thread; `sequence` returns the number that its next node gets."""

    def __init__(self, index: Callable[[Any], int], sequence: Callable[[], int]) -> None:
        self._index, self._sequence = index, sequence
        self._thread = threading.get_ident()
        self._calls: list[int] = []
        self._from = array("q", [sequence()])
        self._module = array("q", [NO_MODULE])  # calls that are under way by now are not known

    def enter(self, module: Any, _args: Any = (), _kwargs: Any = None) -> None:
        """A module is called."""
        if threading.get_ident() == self._thread:
            self._calls.append(self._index(module))
            self._note(self._calls[-1])

    def leave(self) -> None:
        """The last one that was called returns."""
        if threading.get_ident() == self._thread and self._calls:
            self._calls.pop()
            self._note(self._calls[-1] if self._calls else NO_MODULE)

    def modules_of(self, sequence: Ints) -> Ints:
        """Index of the module that made each of these nodes, NO_MODULE where none or an unknown one did."""
        begins, module = np.array(self._from, dtype=np.int64), np.array(self._module, dtype=np.int64)
        return InnermostModules(begins, module).modules_of(sequence)

    def _note(self, module: int) -> None:
        sequence = self._sequence()
        if sequence == self._from[-1]:  # nothing was made in between
            self._module[-1] = module
            return
        self._from.append(sequence)
        self._module.append(module)
        if len(self._from) > _MOST:
            del self._from[: _MOST // 2], self._module[: _MOST // 2]
