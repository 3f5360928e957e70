"""A script as it is followed: its loops ask the follower for rounds; branches on what counts them are noted."""

from __future__ import annotations

import ast
import builtins
import contextlib
import copy
import functools
import threading
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stepscope.footprint.script_numbers import Flags, changing_names, lines_of_sizes, numbers_of_rounds
from stepscope.footprint.script_syntax import (
    LEAVING,
    MatchesToBranches,
    call_names,
    chooses_number,
    compared,
    fills_container,
    is_size,
    is_worked_out,
    lookup_lambda,
    loop_counters,
    may_allocate,
    multiplies_number,
    named_places,
    names_in,
    replaced_variables,
)


@dataclass(frozen=True)
class _Branch:
    """An `if` on what counts the rounds of these loops (by number), and whether what it does can matter.

    Without loops it is on names in a function, or on what an object holds: these may count rounds of a caller. It may
    also be what a function answers (`return self.rounds % 50 == 0`), for then its caller has the branch.
    changes: whether its body multiplies a number or looks one up, each time that it is taken. flags: what callers may
    have worked out of their rounds.
    """

    place: str
    test: str
    loops: tuple[int, ...]
    body: bool
    otherwise: bool
    parameters: tuple[str, ...] = ()
    changes: bool = False
    flags: frozenset[str] = frozenset()


class _Pick(NamedTuple):
    """A place where an item is picked by what counts the rounds of these loops, or by flags that may."""

    place: str
    loops: tuple[int, ...]
    flags: frozenset[str]


class LoopRewriter(ast.NodeTransformer):
    """Has each `for` go through the follower, and each `while` ask whether it goes on; notes branches on a round."""

    def __init__(self) -> None:
        self.places: list[str] = []  # of each loop: its line, and its file where that is not the script's
        self._called: list[set[str]] = []  # by each
        self._functions: dict[str, set[str]] = {}  # of the script: names of what they call
        self._definitions: dict[str, ast.FunctionDef] = {}  # of this source, as they were written
        self.branches: list[_Branch] = []
        self.picks: list[_Pick] = []
        self.flags = Flags()
        self._changing: set[str] = set()  # names and attributes of this source
        self._open: list[tuple[int, set[str]]] = []  # loops around, and the names that count their rounds
        self._for_loops: set[int] = set()
        self._rests: dict[int, list[ast.stmt]] = {}  # by the id of an `if` that leaves: what comes after it
        self.sources: list[bytes] = []  # of the script and of its own modules
        self.size_lines = set[tuple[str, int]]()  # files and lines at which a number becomes a size
        self._file = ""
        self._expecting = 0  # bodies around whose `except` knows what to do at the end of an iterator

    def transform(self, source: bytes, path: str, of_module: bool = True) -> types.CodeType:
        """Return the code of a script, or of a module of its own."""
        self.sources.append(source)
        self._file = f" of {Path(path).name}" * of_module
        tree = MatchesToBranches().visit(ast.parse(source, path))
        self.flags.read(tree)
        functions = (part for part in ast.walk(tree) if isinstance(part, ast.FunctionDef))
        self._definitions = {function.name: copy.deepcopy(function) for function in functions}
        self._changing = changing_names(tree)
        self.size_lines.update((path, line) for line in lines_of_sizes(tree))
        return compile(ast.fix_missing_locations(self.visit(tree)), path, "exec", dont_inherit=True)

    def visit_Module(self, node: ast.Module) -> ast.Module:
        """Return the script; what comes after an `if` that leaves is its other branch."""
        for part in ast.walk(node):
            for _, statements in ast.iter_fields(part):
                for index, statement in enumerate(statements if isinstance(statements, list) else ()):
                    if isinstance(statement, ast.If) and isinstance(statement.body[-1], LEAVING):
                        self._rests[id(statement)] = statements[index + 1 :]
        self.generic_visit(node)
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        """Return the loop over the rounds that are followed."""
        numbers = numbers_of_rounds(node, self._definitions)  # as it was written
        number = self._visit_loop(node)
        node.iter = ast.copy_location(_call("rounds", node.iter, ast.Constant(number), *numbers), node.iter)
        return node

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        """Return the loop with its question, behind a note that it begins."""
        number = ast.Constant(self._visit_loop(node))
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [_call("goes_on", number), node.test]), node.test)
        return [ast.copy_location(ast.Expr(_call("begin", number)), node), node]

    def _visit_loop(self, node: ast.For | ast.While) -> int:
        number = len(self.places)
        self.places.append(self._at_line(node.lineno))
        self._called.append(call_names(ast.walk(node)))
        self._open.append((number, loop_counters(node)))
        self._for_loops |= {number} if isinstance(node, ast.For) else set()
        self.generic_visit(node)
        self._open.pop()
        return number

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Return the function; what it calls is known by its name."""
        self._functions.setdefault(node.name, set()).update(call_names(ast.walk(node)))
        self.generic_visit(node)
        return node

    def trains(self, number: int) -> bool:
        """Return whether a backward pass stands in a loop, or in functions of the script that it calls."""
        return "backward" in self._reached_from(self._called[number])

    def function_trains(self, name: str) -> bool:
        """Return whether a function of the script trains by a backward pass, or has a library do so, also within."""
        reached = self._reached_from({name})
        steps = "step" in reached and not reached.isdisjoint(
            ("zero_grad", "grad")
        )  # that of an environment trains none
        return steps or not reached.isdisjoint(("backward", "train", "fit"))

    def _reached_from(self, names: set[str]) -> set[str]:
        reached, waiting = set[str](), set(names)
        while waiting:
            name = waiting.pop()
            reached.add(name)
            waiting |= self._functions.get(name, set()) - reached
        return reached

    def visit_If(self, node: ast.If) -> ast.If:
        """Return the branch with a note of its test, and of its end, where this depends on the round."""
        gathers = fills_container(node.body)
        replaced = replaced_variables(node.body) if gathers else []
        later, last, names = self._rests.get(id(node), []), node.body[-1], compared(node.test)
        number = self._note_condition(node, may_allocate(node.body), may_allocate([*node.orelse, *later]), replaced)
        if isinstance(last, (ast.Break, ast.Return)) and self._open and names:
            self._ask_before_leaving(node, names)
        if number is not None and self.branches[number].loops and gathers:
            leaving = ast.Expr(_call("leave_branch", ast.Constant(number), *replaced))
            node.body.append(ast.copy_location(leaving, node.body[-1]))
        return node

    def _ask_before_leaving(self, node: ast.If, names: set[str]) -> None:
        """Have an `if` that leaves a `for`, by what no round counts, ask whether it does."""
        loop = self._open[-1][0]
        if loop in self._for_loops and not any(names & counters for _, counters in self._open):
            asks = _call("leaves", ast.Constant(loop), *map(lookup_lambda, sorted(names)))
            node.test = ast.copy_location(ast.BoolOp(ast.And(), [node.test, asks]), node.test)

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        """Return the statement, which asks before it fails."""
        self.generic_visit(node)
        asks = _call("presume_assertion", ast.Constant(self._at_line(node.lineno)))
        node.test = ast.copy_location(ast.BoolOp(ast.Or(), [node.test, asks]), node.test)
        return node

    def visit_Return(self, node: ast.Return) -> ast.Return:
        """Return the statement with a note of what it answers, where that is a comparison."""
        answer = node.value if isinstance(node.value, (ast.Compare, ast.BoolOp, ast.UnaryOp)) else None
        number = None if answer is None else self._register_branch(answer, node.lineno, (True, True))
        self.generic_visit(node)
        if number is not None and node.value is not None:
            node.value = self._note(number, "note_returned_test", node.value)
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Return a node with its parts; a comprehension with a note of each of its conditions."""
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            matters = may_allocate([ast.Expr(part) for part in results])
            for part in node.generators:
                numbers = [self._register_branch(test, node.lineno, (matters, False)) for test in part.ifs]
                noted = zip(numbers, part.ifs, strict=True)
                part.ifs = [test if number is None else self._note(number, "note_test", test) for number, test in noted]
        return super().generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        """Return the expression with a note of its test."""
        body, otherwise = (may_allocate([ast.Expr(side)]) or is_size(side) for side in (node.body, node.orelse))
        self._note_condition(node, body, otherwise)
        return node

    def _note_condition(
        self, node: ast.If | ast.IfExp, body: bool, otherwise: bool, replaced: Sequence[ast.expr] = ()
    ) -> int | None:
        changes = isinstance(node, ast.If) and (multiplies_number(node.body) or chooses_number(node.body, node.test))
        condition, steady = node.test, self._steady_part(node.test)
        number = self._register_branch(condition, node.lineno, (body or changes, otherwise), changes)
        self.generic_visit(node)
        if number is not None:
            node.test = self._note(number, "note_test", node.test, replaced, steady)
        return number

    def _register_branch(
        self, test: ast.expr, line: int, sides: tuple[bool, bool], changes: bool = False
    ) -> int | None:
        loops, counters = self._loops_of(test), set[str]().union(*(counting for _, counting in self._open))
        flags = self.flags.of(test) - {f"name {name}" for name in counters}
        parameters = () if loops else tuple(sorted(compared(test)))
        if not (loops or parameters or flags) or not any(sides):
            return None
        self.branches.append(_Branch(self._at_line(line), ast.unparse(test), loops, *sides, parameters, changes, flags))
        return len(self.branches) - 1

    def _loops_of(self, expression: ast.expr) -> tuple[int, ...]:
        names = names_in([expression])
        return tuple(number for number, counting in self._open if counting & names)

    def _steady_part(self, test: ast.expr) -> ast.expr | None:
        """Return what looks up the part of a test that no round changes: `use_ema` of `use_ema and epoch > 5`."""
        parts = [
            ast.unparse(part)
            for part in (test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else ())
            if is_worked_out(part) and not self._loops_of(part) and not self._changing & named_places(part)
        ]
        return lookup_lambda(" and ".join(f"({part})" for part in parts)) if parts else None

    def visit_Subscript(self, node: ast.Subscript) -> ast.Subscript:
        """Return the item, with a note of its key where that follows from the number of a round."""
        key = node.slice
        bounds = [key.lower, key.upper] if isinstance(key, ast.Slice) and key.step is None else [key]
        parts = [ast.Constant(None) if part is None else part for part in bounds]
        noted = isinstance(node.ctx, ast.Load) and all(map(is_worked_out, parts))
        place = self._register_pick(key) if noted else None
        looked_up = [lookup_lambda(ast.unparse(part)) for part in parts] if place is not None else []
        self.generic_visit(node)
        if place is not None:
            node.value = ast.copy_location(_call("note_pick", ast.Constant(place), node.value, *looked_up), node.value)
        return node

    def _register_pick(self, key: ast.expr) -> int | None:
        loops, flags = self._loops_of(key), self.flags.of(key)
        if not (loops or any(" " in flag and not flag.startswith("name ") for flag in flags)):
            return None
        self.picks.append(_Pick(self._at_line(key.lineno), loops, flags))
        return len(self.picks) - 1

    def _at_line(self, line: int) -> str:
        return f"line {line}{self._file}"

    def _note(
        self, number: int, name: str, test: ast.expr, replaced: Sequence[ast.expr] = (), steady: ast.expr | None = None
    ) -> ast.expr:
        parameters = self.branches[number].parameters
        values = [lookup_lambda(parameter) for parameter in parameters] if parameters else replaced
        call = _call(name, ast.Constant(number), test, *values)
        call.keywords = [] if steady is None else [ast.keyword("steady", steady)]
        return ast.copy_location(call, test)

    def visit_Try(self, node: ast.Try) -> ast.Try:
        """Return the statement; whether it expects an iterator to end is known within its body."""
        expects = any(handler.type is None or names_in([handler.type]) & _ENDS for handler in node.handlers)
        self._expecting += expects
        node.body = [inner for part in node.body for inner in _as_list(self.visit(part))]
        self._expecting -= expects
        body, node.body = node.body, []
        self.generic_visit(node)
        node.body = body
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Return the call: of enumerate(), which knows what was omitted, of next(iterator), or of get(key)."""
        gets = isinstance(node.func, ast.Attribute) and node.func.attr == "get" and all(map(is_worked_out, node.args))
        place = self._register_pick(node.args[0]) if gets and node.args else None
        looked_up = [lookup_lambda(ast.unparse(argument)) for argument in node.args] if place is not None else []
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and looked_up:
            items = _call("note_pick", ast.Constant(place), node.func.value, looked_up[0])
            items.keywords = [ast.keyword("otherwise", default) for default in looked_up[1:2]]
            node.func.value = ast.copy_location(items, node.func)
            return node
        if isinstance(node.func, ast.Name) and node.func.id == "enumerate":
            name = "enumerate_items"
        elif isinstance(node.func, ast.Name) and node.func.id == "next" and len(node.args) == 1 > self._expecting:
            name = "next_or_omitted"
        else:
            return node
        node.args.insert(0, node.func)  # it may be a function of the user's own
        node.func = ast.copy_location(ast.Name(f"__{name}__", ast.Load()), node.func)
        return node


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(f"__{name}__", ast.Load()), list(arguments), [])


_ENDS = frozenset(("StopIteration", "Exception", "BaseException"))


def _as_list(visited: Any) -> list[ast.stmt]:
    return visited if isinstance(visited, list) else [visited]


# What transformed code calls, of `Loops`, and what it does in other threads.
_PLAIN: dict[str, Callable[..., Any]] = {
    "rounds": lambda iterable, _number, *_numbers: iterable,
    "begin": lambda _number: None,
    "goes_on": lambda _number: True,
    "note_test": lambda _number, test, *_values, **_steady: test,
    "presume_assertion": lambda _place: False,
    "leaves": lambda _number, *_values: True,
    "note_pick": lambda _number, items, *_key, **_otherwise: items,
    "note_returned_test": lambda _number, answer, *_values: answer,
    "leave_branch": lambda *_given: None,
    "enumerate_items": lambda plain, *arguments, **options: plain(*arguments, **options),
    "next_or_omitted": lambda plain, iterator: plain(iterator),
}


@contextlib.contextmanager
def install_for_scripts(functions: object) -> Iterator[None]:
    """Have transformed code find functions in any module, and in none of its own: they are names of Python's.

    Threads beside the one that follows, and those that the script leaves behind, run the code as it was written.
    """
    thread = threading.get_ident()

    def call(name: str, *arguments: Any, **options: Any) -> Any:
        function = getattr(functions, name) if threading.get_ident() == thread else _PLAIN[name]
        return function(*arguments, **options)

    for name in _PLAIN:
        setattr(builtins, f"__{name}__", functools.partial(call, name))
    try:
        yield
    finally:
        for name, plain in _PLAIN.items():
            setattr(builtins, f"__{name}__", plain)
