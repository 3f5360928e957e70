"""Flags of a script: what is worked out of the rounds of a loop and handed to a function, an object or a module.

`train(batch, epoch > 50)`, `trainer.late = epoch > 50`: a branch on such a name depends on the round, wherever it is.
"""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from collections.abc import Iterable

from stepscope.footprint.script_syntax import call_names, is_worked_out, loop_counters, names_in, origins_of

_ROUND = "round"
Function = ast.FunctionDef | ast.AsyncFunctionDef


class Flags:
    """Flags that callers hand on, of all sources of a script: "train 1" or "train late", ".late", "name late"."""

    def __init__(self) -> None:
        self._sources = defaultdict[str, set[str]](set)  # by flag: what it is worked out of
        self._by_node: dict[int, frozenset[str]] = {}
        self._of_rounds: frozenset[str] = frozenset()

    def read(self, tree: ast.AST) -> None:
        """Read the calls and assignments of a source, before it is transformed."""
        reader = _FlagReader(self._sources)
        reader.visit(tree)
        self._by_node = reader.by_node
        reached, before = {_ROUND}, 0
        while before != len(reached):
            before = len(reached)
            reached |= {flag for flag, sources in self._sources.items() if sources & reached}
        self._of_rounds = frozenset(reached - {_ROUND})

    def of(self, expression: ast.expr) -> frozenset[str]:
        """Return the flags that a test, or an index, of the source that was read last names."""
        return self._by_node.get(id(expression), frozenset())

    def depend_on_rounds(self, flags: Iterable[str]) -> bool:
        """Return whether a caller works one of them out of what counts the rounds of a loop."""
        return not self._of_rounds.isdisjoint(flags)


class _FlagReader(ast.NodeVisitor):
    def __init__(self, sources: dict[str, set[str]]) -> None:
        self.by_node: dict[int, frozenset[str]] = {}
        self._sources = sources
        self._counters: set[str] = set()  # of the loops around
        self._class = ""
        self._locals: list[dict[str, set[str]]] = []  # of functions around, by name: flags that it is worked out of

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        outer, self._class = self._class, node.name
        self.generic_visit(node)
        self._class = outer

    def visit_FunctionDef(self, node: Function) -> None:
        name = self._class if node.name == "__init__" else node.name
        own = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
        own = own[1:] if own[:1] in (["self"], ["cls"]) else own
        flags = {argument: {f"{name} {place}", f"{name} {argument}"} for place, argument in enumerate(own)}
        inside = list(ast.walk(node))
        stored: dict[str, set[str]] = {name: set() for name in _stored_places(inside)}
        self._locals.append(stored | origins_of(inside, flags))
        self.generic_visit(node)
        self._locals.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_For(self, node: ast.For | ast.While) -> None:
        outer = self._counters
        counters = loop_counters(node)
        self._counters = outer | counters
        if not self._locals:
            for name in counters:
                self._sources[f"name {name}"].add(_ROUND)
        self.generic_visit(node)
        self._counters = outer

    visit_While = visit_For  # noqa: N815

    def visit_Call(self, node: ast.Call) -> None:
        (name,) = call_names([node])
        for place, value in enumerate(node.args):
            if isinstance(value, ast.Starred):
                break
            self._hand_on(f"{name} {place}", value)
        for keyword in node.keywords:
            self._hand_on(f"{name} {keyword.arg}", keyword.value)
        self.generic_visit(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        for target in node.targets:
            if isinstance(target, ast.Attribute):
                self._hand_on(f".{target.attr}", node.value)
            elif isinstance(target, ast.Name) and not self._locals:
                self._hand_on(f"name {target.id}", node.value)
        self.generic_visit(node)

    def generic_visit(self, node: ast.AST) -> None:
        tests: list[ast.expr | None] = []
        if isinstance(node, (ast.If, ast.IfExp)):
            tests = [node.test]
        elif isinstance(node, ast.comprehension):
            tests = [*node.ifs]
        elif isinstance(node, ast.Return):
            tests = [node.value]
        elif isinstance(node, ast.Subscript):
            tests = [node.slice]
        self.by_node.update({id(test): frozenset(self._flags_in(test)) for test in tests if test is not None})
        super().generic_visit(node)

    def _hand_on(self, flag: str, value: ast.expr) -> None:
        if is_worked_out(value):
            self._sources[flag] |= self._flags_in(value)
            self._sources[flag] |= {_ROUND} if names_in([value]) & self._counters else set()

    def _flags_in(self, value: ast.expr) -> set[str]:
        own = self._locals[-1] if self._locals else {}
        flags = {f".{part.attr}" for part in ast.walk(value) if isinstance(part, ast.Attribute)}
        return flags.union(*(own.get(name, {f"name {name}"}) for name in names_in([value])))


def _stored_places(parts: Iterable[ast.AST]) -> list[str]:
    """Return variables, and attributes with a dot, that get a value."""
    stored = [part for part in parts if isinstance(getattr(part, "ctx", None), ast.Store)]
    names = [part.id for part in stored if isinstance(part, ast.Name)]
    return [*names, *(f".{part.attr}" for part in stored if isinstance(part, ast.Attribute))]


def changing_names(tree: ast.AST) -> set[str]:
    """Return names of variables, and of attributes with a dot, that get a value twice, or within a loop."""
    parts, looped = list(ast.walk(tree)), set[str]()
    for loop in (part for part in parts if isinstance(part, (ast.For, ast.AsyncFor, ast.While))):
        looped.update(_stored_places(ast.walk(loop)))
    return looped | {name for name, times in Counter(_stored_places(parts)).items() if times > 1}
