"""Loops of a script: one in which the optimizer steps, or that evaluates, runs its first rounds and its last.

Between them those of items that differ from all before are followed: another model, a larger size, a longer text.
"""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from stepscope.footprint.script_items import Items, is_short
from stepscope.footprint.script_progress import Growth, Progress
from stepscope.units import bytes_

_TRAINED, _EVALUATED = 3, 8  # rounds of a loop, after which comes its last one
_DIFFERING = 12  # items that are followed besides
_MOST_SKIPPED = 100_000  # items of an iterator that has no last one before it was asked for all
_MOST_SKIPPING_S = 3.0  # of processor time for them
_NOTHING = object()
_ROUNDS, _TAKEN, _LEFT, _ENUMERATE, _PATIENCE = "__rounds__", "__taken__", "__left__", "__enumerate__", "__patience__"
_ALIKE = 0.05  # of what is live: rounds of like items that differ by more are not alike
_KEPT = 1_000_000  # B that a branch keeps that are worth a word


@dataclass(frozen=True)
class _Branch:
    """An `if` on what counts the rounds of these loops (by number), and whether what it does can matter.

    Without loops it is on parameters of a function, which may count rounds of its caller.
    """

    line: int
    test: str
    loops: tuple[int, ...]
    body: bool
    otherwise: bool
    parameters: tuple[str, ...] = ()


class LoopCalls(ast.NodeTransformer):
    """Has each `for` go through the follower, and each `while` ask whether it may go on; notes branches on a round."""

    def __init__(self) -> None:
        self.lines: list[int] = []  # of each loop
        self._called: list[set[str]] = []  # by each
        self._functions: dict[str, set[str]] = {}  # of the script: names of what they call
        self._parameters: list[set[str]] = [set()]  # of the functions around
        self.branches: list[_Branch] = []
        self._open: list[tuple[int, set[str]]] = []  # loops around, and the names that count their rounds

    def visit_For(self, node: ast.For) -> ast.For:
        """Return the loop over the rounds that are followed."""
        number, inside = len(self.lines), list(ast.walk(node))
        self.lines.append(node.lineno)
        self._called.append(_calls(inside))
        counters = [part.target for part in inside if isinstance(part, ast.AugAssign) and _is_name(part.target)]
        self._open.append((number, _names([node.target, *counters])))
        self.generic_visit(node)
        self._open.pop()
        node.iter = ast.copy_location(_call(_ROUNDS, node.iter, ast.Constant(number)), node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.While:
        """Return the loop with its question."""
        self.generic_visit(node)
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [_call(_PATIENCE), node.test]), node.test)
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Return the function; what it calls is known by its name."""
        self._functions.setdefault(node.name, set()).update(_calls(ast.walk(node)))
        self._parameters.append({argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)})
        self.generic_visit(node)
        self._parameters.pop()
        return node

    def trains(self, number: int) -> bool:
        """Return whether a backward pass stands in a loop, or in functions of the script that it calls."""
        reached, waiting = set[str](), set(self._called[number])
        while waiting:
            name = waiting.pop()
            reached.add(name)
            waiting |= self._functions.get(name, set()) - reached
        return "backward" in reached

    def visit_If(self, node: ast.If) -> ast.If:
        """Return the branch with a note of its test, and of its end, where this depends on the round."""
        number = self._noted(node, _matter(node.body), _matter(node.orelse))
        if number is not None and self.branches[number].loops and _gathers(node.body):
            node.body.append(ast.copy_location(ast.Expr(_call(_LEFT, ast.Constant(number))), node.body[-1]))
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        """Return the expression with a note of its test."""
        self._noted(node, _matter([ast.Expr(node.body)]), _matter([ast.Expr(node.orelse)]))
        return node

    def _noted(self, node: ast.If | ast.IfExp, body: bool, otherwise: bool) -> int | None:
        names, test = _names([node.test]), ast.unparse(node.test)
        loops = tuple(number for number, counting in self._open if counting & names)
        parameters = () if loops else tuple(sorted(_compared(node.test) & self._parameters[-1]))
        self.generic_visit(node)
        if not (loops or parameters) or not (body or otherwise):
            return None
        number = len(self.branches)
        self.branches.append(_Branch(node.lineno, test, loops, body, otherwise, parameters))
        values = [ast.Name(name, ast.Load()) for name in parameters]
        node.test = ast.copy_location(_call(_TAKEN, ast.Constant(number), node.test, *values), node.test)
        return number

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Return the call; enumerate() knows the number of a batch after those that were omitted."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "enumerate":
            node.func.id = _ENUMERATE
        return node


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def _calls(nodes: Iterable[ast.AST]) -> set[str]:
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    return {func.attr if isinstance(func, ast.Attribute) else ast.unparse(func) for func in called}


_GATHERING = frozenset(("append", "appendleft", "extend", "insert", "add", "put", "setdefault", "update"))


def _gathers(statements: Iterable[ast.stmt]) -> bool:
    """Return whether statements put something into a container, where it stays: a variable holds the last alone."""
    parts = [part for statement in statements for part in ast.walk(statement)]
    places = (target for part in parts if isinstance(part, ast.Assign) for target in part.targets)
    return bool(_calls(parts) & _GATHERING) or any(isinstance(target, ast.Subscript) for target in places)


def _compared(test: ast.expr) -> set[str]:
    """Return names that a test compares as they are, or of which it takes a remainder: `epoch + 1 == 5`."""
    sides: list[ast.expr] = []
    for part in ast.walk(test):
        if isinstance(part, ast.Compare):
            sides += [part.left, *part.comparators]
        elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
            sides.append(part.left)
    plain = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
    return _names([side for side in sides if all(isinstance(inner, plain) for inner in ast.walk(side))])


# Calls that take no memory worth a word: what is said, counted and written down.
_SMALL_CALLS = """
    print item log info debug warning write writerow add_scalar add_scalars set_postfix set_postfix_str update
    set_description format round len float int str bool abs min max sum mean sqrt exp time perf_counter flush save
    state_dict get_last_lr tolist isnan isinf isfinite range zip sorted join strftime now sleep train eval exit
    synchronize empty_cache isinstance getattr SystemExit RuntimeError ValueError clip_grad_norm_
"""
_SMALL = frozenset(_SMALL_CALLS.split())


def _matter(statements: list[ast.stmt]) -> bool:
    """Return whether statements call anything that may take memory."""
    calls = (part for statement in statements for part in ast.walk(statement) if isinstance(part, ast.Call))
    return any(not _is_small(call) for call in calls)


def _is_small(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if name == "append":  # of a number that is worked out; a name may be that of a tensor
        return not any(isinstance(argument, ast.Name) for argument in call.args)
    if name in ("train", "update"):  # model.train(), bar.update(1); and a function that trains a model
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        return isinstance(call.func, ast.Attribute) and not any(map(_is_name, given))
    return name in _SMALL or (name == "step" and "sched" in ast.unparse(call.func).lower())


class Loops:
    """The loops of one script while it is followed."""

    def __init__(self, progress: Progress) -> None:
        self.calls = LoopCalls()
        self._progress, self._log = progress, progress.log
        self._cut: set[int] = set()  # loops of which rounds were omitted
        self._taken: dict[int, set[bool]] = {}
        self._path: list[tuple[int, bool]] = []  # branches in their order
        self._values: dict[int, set[tuple[Any, int]]] = {}  # of parameters in a test, and how many updates were made
        self._entered: dict[int, tuple[int, int]] = {}  # B that were live as a branch was taken, and updates until then
        self._kept: dict[int, int] = {}  # B that it kept when it was taken last

    def names(self, patience: Any) -> dict[str, Any]:
        """Return what the transformed script calls."""
        return {
            _ROUNDS: self.rounds,
            _TAKEN: self._take,
            _LEFT: self._leave,
            _ENUMERATE: self._enumerated,
            _PATIENCE: patience,
        }

    def miss_branches(self) -> None:
        """Note what runs only in rounds that were omitted, and what is kept by a round now and then."""
        for number, branch in enumerate(self.calls.branches):
            taken = self._taken.get(number, set())
            if not (self._cut.intersection(branch.loops) if branch.loops else self._counts_rounds(number)):
                continue
            if taken == {False} and branch.body:
                self._progress.miss(f"what runs at line {branch.line} only where {branch.test}")
            if taken == {True} and branch.otherwise:
                self._progress.miss(f"what runs at line {branch.line} except where {branch.test}")
            if taken == {True, False} and self._kept.get(number, 0) > _KEPT:
                kept = f"{bytes_(self._kept[number])} each time where {branch.test}"
                self._progress.miss(f"what is kept at line {branch.line} in rounds that were omitted: {kept}")

    def _counts_rounds(self, number: int) -> bool:
        """Return whether parameters of a branch changed as the training went on, and rounds are omitted."""
        values = self._values.get(number, set())
        several = len({value for value, _ in values}) > 1 < len({updates for _, updates in values})
        return several and self._progress.cut

    def _take(self, number: int, test: Any, *values: Any) -> bool:
        taken = bool(test)
        self._taken.setdefault(number, set()).add(taken)
        self._path.append((number, taken))
        if any(type(value) is int for value in values):
            numbers = tuple(value for value in values if type(value) is int)
            self._values.setdefault(number, set()).add((numbers, self._progress.updates))
        if taken and self.calls.branches[number].loops:
            self._entered[number] = self._log.alive_bytes(), self._progress.updates
        return taken

    def _leave(self, number: int) -> None:
        alive, updates = self._entered[number]
        if updates == self._progress.updates or number in self._kept:  # a first update makes an optimizer's state
            self._kept[number] = self._log.alive_bytes() - alive
        else:
            self._kept[number] = 0

    def _enumerated(self, iterable: Iterable[Any], start: int = 0) -> Iterator[tuple[int, Any]]:
        source = _Source(iterable, self._progress)
        for number, item in enumerate(source, start):
            yield number + source.jumped, item

    def rounds(self, iterable: Any, number: int) -> Iterator[Any]:
        """Yield the rounds of a loop that can differ: all, or where it trains or evaluates the first and the last."""
        source, items, growth = _Source(iterable, self._progress), Items(is_short(iterable)), Growth(self._progress)
        trained, evaluated, many = 0, 0, False
        seen: list[tuple[Any, int, int]] = []
        try:
            for item in source:
                updates, looks = self._progress.updates, self._log.evaluations
                alive, events, path = self._log.alive_bytes(), len(self._log.events), len(self._path)
                yield item
                items.see(item)
                most = self._log.most_since(events)
                seen.append(((items.sizes_of_last, self._path[path:]), most, alive + most))
                growth.note()
                stepped = self._progress.updates - updates
                many |= stepped > 1  # such a round is long: the third is seen where the second kept something
                trained += stepped > 0
                self._progress.allowed += stepped if many and trained > 1 else 0
                evaluated += self._log.evaluations > looks and not stepped
                alike = many and trained == _TRAINED - 1 and growth.last <= 0
                only_evaluates = evaluated >= _EVALUATED and (trained > 0 or not self.calls.trains(number))
                if alike or trained >= _TRAINED or only_evaluates:
                    break
            else:
                return
            yield from self._others(iterable, source, items, growth, number)
        finally:
            if source.jumped:
                self._cut.add(number)
            if number in self._cut and _unlike(seen[1:]):
                self._progress.miss(f"rounds of the loop at line {self.calls.lines[number]}, which are not alike")

    def _others(self, iterable: Any, source: _Source, items: Items, growth: Growth, number: int) -> Iterator[Any]:
        """Yield of the rest the items that differ from those before, and the last."""
        waiting, largest = 0, _NOTHING
        left: Iterator[Any] = source
        if isinstance(iterable, (list, tuple)):
            largest = items.largest(iterable[growth.rounds : -1])
        if isinstance(iterable, range):
            rest = iterable[growth.rounds :]
            waiting, left = max(0, len(rest) - 1), iter(rest[-1:])
        last, followed, beyond, began = next(left, _NOTHING), 0, 0, time.process_time()
        for after in itertools.islice(left, _MOST_SKIPPED):
            differs = items.differs(last) or last is largest
            if differs and followed < _DIFFERING:
                growth.keep(waiting)
                waiting, followed = 0, followed + 1
                items.follow(last)
                paused = time.process_time()
                with self._progress.beside():
                    yield last
                began += time.process_time() - paused
            else:
                waiting += 1
                beyond += differs
            last = after
            if time.process_time() - began > _MOST_SKIPPING_S:
                break
        if next(left, _NOTHING) is not _NOTHING:
            self._progress.miss("a loop without an end in sight, beyond its first rounds")
        if beyond:
            self._progress.miss(f"{beyond} rounds of the loop at line {self.calls.lines[number]}, whose items differ")
        if waiting:
            self._cut.add(number)
            self._progress.cut = True
            growth.keep(waiting)
        if last is not _NOTHING:
            yield last


def _unlike(rounds: Sequence[tuple[Any, int, int]]) -> bool:
    """Return whether rounds of like items that took the same branches differ in what they take."""
    pairs = itertools.pairwise(rounds)
    return any(a[0] == b[0] and abs(a[1] - b[1]) > _ALIKE * max(a[2], b[2]) for a, b in pairs)


class _Source:
    """An iterator that knows how many batches loaders omitted (`jumped`) while it was asked for items."""

    def __init__(self, iterable: Iterable[Any], progress: Progress) -> None:
        self.jumped = 0
        self._items, self._progress = iter(iterable), progress

    def __iter__(self) -> _Source:
        return self

    def __next__(self) -> Any:
        before = self._progress.jumped
        item = next(self._items)
        self.jumped += self._progress.jumped - before
        return item
