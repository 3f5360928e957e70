"""Names of modules where the file has them (`with_stack=True`): the profiler's own, "Linear_0", laid in a tree.

Attribute names ("layer1.0.conv") are not in the file. A module lies below the one in whose call it was first seen.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from stepscope.importers.event_columns import Caught
from stepscope.record.recorders import tree
from stepscope.record.recorders.events import Events
from stepscope.record.recorders.phases import MODULE_SCOPE
from stepscope.record.recorders.tree import NO_PARENT


def module_places(caught: Caught, events: Events) -> list[tuple[str, str]]:
    """Path and type of every module by its number; the only one at the top is the model itself, ""."""
    parents = _parents(caught, events)
    tops = [number for number, parent in parents.items() if parent is None]
    names = list(caught.modules)
    paths: dict[int, str] = {}

    def path(number: int) -> str:
        if number not in paths:
            above = parents.get(number)
            if above is None:
                paths[number] = "" if len(tops) == 1 else names[number]
            else:
                paths[number] = ".".join(part for part in (path(above), names[number]) if part)
        return paths[number]

    return [(path(number), name.rpartition("_")[0] or name) for number, name in enumerate(names)]


def model_rows(places: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Rows of model.json, parents first; parameters are not in the file."""
    paths = {path for path, _ in places}
    return [
        {
            **{"module": path, "type": kind, "parent": _above(path, paths), "parameters": None, "bytes": None},
            **{"flops_forward": None, "flops_backward": None, "trainable": None},
        }
        for path, kind in sorted(places, key=lambda place: (place[0].count("."), place[0] != "", place[0]))
    ]


def _above(path: str, paths: set[str]) -> str | None:
    above = path.rpartition(".")[0]
    return None if path == "" or above not in paths else above


def _parents(caught: Caught, events: Events) -> dict[int, int | None]:
    """The module in whose call each was first seen; None at the top. A module is never below itself."""
    numbers = {caught.names.ids.get(f"{MODULE_SCOPE}{number}", -1): number for number in range(len(caught.modules))}
    rows = np.flatnonzero(np.isin(events.name, list(numbers)))
    calls = events.take(rows[tree.by_thread_and_time(events.thread[rows], events.t0[rows], events.t1[rows])])
    above = tree.parents(calls.thread, tree.depths(calls.thread, calls.t0, calls.t1))
    parents: dict[int, int | None] = {}
    for row in np.argsort(calls.t0, kind="stable").tolist():
        number = numbers[int(calls.name[row])]
        place = int(above[row])
        around = None if place == NO_PARENT else numbers[int(calls.name[place])]
        if number not in parents and around not in (number, *_below(number, parents)):
            parents[number] = around
    return {number: parents.get(number) for number in range(len(caught.modules))}


def _below(number: int, parents: dict[int, int | None]) -> list[int]:
    return [child for child in parents if number in _chain(child, parents)]


def _chain(number: int, parents: dict[int, int | None]) -> list[int]:
    chain: list[int] = []
    above = parents.get(number)
    while above is not None and above not in chain:
        chain.append(above)
        above = parents.get(above)
    return chain
