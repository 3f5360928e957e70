"""The modules of a run as a tree, in its order, with the modules that only the ops name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import polars as pl

from stepscope.analysis.own_time import OUTSIDE
from stepscope.runfolder import MODULE_CALL, RunReader


@dataclass(frozen=True)
class Module:
    """One module: its qualified name, its type, row of its parent (-1 at the top) and depth in the tree."""

    name: str
    type: str | None
    parent: int
    depth: int
    facts: dict[str, Any]


def module_tree(run: RunReader, table: pl.DataFrame) -> list[Module]:
    """Every module of model.json and of the ops, parents before their children, children together."""
    facts = {row["module"]: row for row in run.model.iter_rows(named=True)}
    types = _types(table)
    for name in [*types, *table["module"].unique().sort()]:
        if name != OUTSIDE and name not in facts:
            facts[name] = {"module": name, "type": types.get(name), "parent": None, "parameters": None}
    parents = {name: _parent(name, row["parent"], facts) for name, row in facts.items()}
    children: dict[str | None, list[str]] = {}
    for name, parent in parents.items():
        children.setdefault(parent, []).append(name)
    return _in_order(children, facts)


def _types(table: pl.DataFrame) -> dict[str, str]:
    """Type of each module as its calls name it."""
    calls = table.filter(pl.col("name").str.starts_with(MODULE_CALL)).select("module", "name").unique().sort("module")
    return {module: name[len(MODULE_CALL) :] for module, name in calls.iter_rows()}


def _parent(name: str, stated: str | None, facts: dict[str, Any]) -> str | None:
    """The stated parent, else the nearest module that the dots of the name lead to."""
    if stated is not None and stated in facts and stated != name:
        return stated
    while name:
        name = name.rpartition(".")[0]
        if name in facts:
            return name
    return None


def _in_order(children: dict[str | None, list[str]], facts: dict[str, Any]) -> list[Module]:
    tree: list[Module] = []
    waiting = [(name, -1, 0) for name in reversed(children.get(None, []))]
    while waiting:
        name, parent, depth = waiting.pop()
        waiting.extend((child, len(tree), depth + 1) for child in reversed(children.get(name, [])))
        tree.append(Module(name, facts[name]["type"], parent, depth, facts[name]))
    return tree
