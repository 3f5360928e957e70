"""Loops of a script: one in which the optimizer steps, or that evaluates, runs its first rounds and its last."""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Iterator
from typing import Any

from stepscope.footprint.script_progress import Growth, Progress

_TRAINED, _EVALUATED = 3, 8  # rounds of a loop, after which comes its last one
_MOST_SKIPPED = 100_000  # items of an iterator that has no last one before it was asked for all
_MOST_SKIPPING_S = 3.0  # of processor time for them
ROUNDS, PATIENCE = "__rounds__", "__patience__"
_NOTHING = object()


class LoopCalls(ast.NodeTransformer):
    """Has each `for` go through the follower, and each `while` ask whether it may go on."""

    def visit_For(self, node: ast.For) -> ast.For:
        """Return the loop over the rounds that are followed."""
        self.generic_visit(node)
        node.iter = ast.copy_location(ast.Call(ast.Name(ROUNDS, ast.Load()), [node.iter], []), node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        """Return the loop with its question."""
        self.generic_visit(node)
        question = ast.Call(ast.Name(PATIENCE, ast.Load()), [], [])
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [question, node.test]), node.test)
        return node


class Loops:
    """The loops of one script while it is followed."""

    def __init__(self, progress: Progress) -> None:
        self._progress, self._log = progress, progress.log

    def rounds(self, iterable: Any) -> Iterator[Any]:
        """Yield the rounds of a loop that can differ: all, or where it trains or evaluates the first and the last."""
        iterator, done, trained, evaluated, many = iter(iterable), 0, 0, 0, False
        growth = Growth(self._log)
        for item in iterator:
            updates, looks = self._progress.updates, self._log.evaluations
            yield item
            done += 1
            growth.note()
            stepped = self._progress.updates - updates
            many |= stepped > 1  # such a round is long: the third is seen where the second kept something
            trained += stepped > 0
            evaluated += self._log.evaluations > looks and not stepped
            alike = many and trained == _TRAINED - 1 and growth.last <= 0
            if alike or trained >= _TRAINED or evaluated >= _EVALUATED:
                break
        else:
            return
        last, skipped = self._last(iterable, iterator, done)
        growth.keep(skipped)
        if last is not _NOTHING:
            yield last

    def _last(self, iterable: Any, iterator: Iterator[Any], done: int) -> tuple[Any, int]:
        """The last item of a loop, and how many before it are skipped."""
        if isinstance(iterable, (range, list, tuple)):
            left = len(iterable) - done
            return (iterable[-1], left - 1) if left > 0 else (_NOTHING, 0)
        last: Any = _NOTHING
        skipped, began = -1, time.process_time()
        for item in itertools.islice(iterator, _MOST_SKIPPED):
            last, skipped = item, skipped + 1
            if time.process_time() - began > _MOST_SKIPPING_S:
                break
        else:
            if skipped + 1 < _MOST_SKIPPED:
                return last, max(0, skipped)
        self._progress.miss("a loop without an end in sight, beyond its first rounds")
        return last, max(0, skipped)
