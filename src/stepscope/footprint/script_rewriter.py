"""A script as it is followed: its loops ask the follower for rounds; branches on what counts them are noted."""

from __future__ import annotations

import ast
import types
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROUNDS, BEGIN, MORE = "__rounds__", "__begin__", "__more__"
TAKEN, LEFT, ANSWERED = "__taken__", "__left__", "__answered__"
ENUMERATE, NEXT = "__enumerate__", "__following__"
ASSERTED = "__asserted__"


@dataclass(frozen=True)
class _Branch:
    """An `if` on what counts the rounds of these loops (by number), and whether what it does can matter.

    Without loops it is on names in a function, or on what an object holds: these may count rounds of a caller. It may
    also be what a function answers (`return self.rounds % 50 == 0`), for then its caller has the branch.
    changes: whether its body multiplies a number or looks one up, each time that it is taken.
    """

    place: str
    test: str
    loops: tuple[int, ...]
    body: bool
    otherwise: bool
    parameters: tuple[str, ...] = ()
    changes: bool = False


class LoopRewriter(ast.NodeTransformer):
    """Has each `for` go through the follower, and each `while` ask whether it goes on; notes branches on a round."""

    def __init__(self) -> None:
        self.places: list[str] = []  # of each loop: its line, and its file where that is not the script's
        self._called: list[set[str]] = []  # by each
        self._functions: dict[str, set[str]] = {}  # of the script: names of what they call
        self._parameters: list[set[str]] = [set()]  # of the functions around
        self.branches: list[_Branch] = []
        self._open: list[tuple[int, set[str]]] = []  # loops around, and the names that count their rounds
        self._rests: dict[int, list[ast.stmt]] = {}  # by the id of an `if` that leaves: what comes after it
        self.sources: list[bytes] = []  # of the script and of its own modules
        self._file = ""
        self._expecting = 0  # bodies around whose `except` knows what to do at the end of an iterator

    def transform(self, source: bytes, path: str, of_module: bool = True) -> types.CodeType:
        """Return the code of a script, or of a module of its own."""
        self.sources.append(source)
        self._file = f" of {Path(path).name}" * of_module
        return compile(ast.fix_missing_locations(self.visit(ast.parse(source, path))), path, "exec", dont_inherit=True)

    def visit_Module(self, node: ast.Module) -> ast.Module:
        """Return the script; what comes after an `if` that leaves is its other branch."""
        for part in ast.walk(node):
            for _, statements in ast.iter_fields(part):
                for index, statement in enumerate(statements if isinstance(statements, list) else ()):
                    if isinstance(statement, ast.If) and isinstance(statement.body[-1], _LEAVES):
                        self._rests[id(statement)] = statements[index + 1 :]
        self.generic_visit(node)
        return node

    def visit_For(self, node: ast.For) -> ast.For:
        """Return the loop over the rounds that are followed."""
        number = self._visit_loop(node, [node.target])
        node.iter = ast.copy_location(_call(ROUNDS, node.iter, ast.Constant(number)), node.iter)
        return node

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        """Return the loop with its question, behind a note that it begins."""
        number = ast.Constant(self._visit_loop(node, []))
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [_call(MORE, number), node.test]), node.test)
        return [ast.copy_location(ast.Expr(_call(BEGIN, number)), node), node]

    def _visit_loop(self, node: ast.For | ast.While, targets: Sequence[ast.expr]) -> int:
        number, inside = len(self.places), list(ast.walk(node))
        self.places.append(self._at_line(node.lineno))
        self._called.append(_calls(inside))
        counters = [part.target for part in inside if isinstance(part, ast.AugAssign) and _is_name(part.target)]
        self._open.append((number, _names([*targets, *counters])))
        self.generic_visit(node)
        self._open.pop()
        return number

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
        gathers = _fills_container(node.body)
        replaced = _replaced_variables(node.body) if gathers else []
        rest = self._rests.get(id(node), [])
        number = self._note_condition(node, _may_allocate(node.body), _may_allocate([*node.orelse, *rest]), replaced)
        if number is not None and self.branches[number].loops and gathers:
            left = ast.Expr(_call(LEFT, ast.Constant(number), *replaced))
            node.body.append(ast.copy_location(left, node.body[-1]))
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.Assert:
        """Return the statement, which asks before it fails."""
        self.generic_visit(node)
        asks = _call(ASSERTED, ast.Constant(self._at_line(node.lineno)))
        node.test = ast.copy_location(ast.BoolOp(ast.Or(), [node.test, asks]), node.test)
        return node

    def visit_Return(self, node: ast.Return) -> ast.Return:
        """Return the statement with a note of what it answers, where that is a comparison."""
        answer = node.value if isinstance(node.value, (ast.Compare, ast.BoolOp, ast.UnaryOp)) else None
        number = None if answer is None else self._register_branch(answer, node.lineno, (True, True))
        self.generic_visit(node)
        if number is not None and node.value is not None:
            node.value = self._note(number, ANSWERED, node.value)
        return node

    def generic_visit(self, node: ast.AST) -> ast.AST:
        """Return a node with its parts; a comprehension with a note of each of its conditions."""
        if isinstance(node, (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            made = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
            matters = _may_allocate([ast.Expr(part) for part in made])
            for part in node.generators:
                numbers = [self._register_branch(test, node.lineno, (matters, False)) for test in part.ifs]
                noted = zip(numbers, part.ifs, strict=True)
                part.ifs = [test if number is None else self._note(number, TAKEN, test) for number, test in noted]
        return super().generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> ast.IfExp:
        """Return the expression with a note of its test."""
        body, otherwise = (_may_allocate([ast.Expr(side)]) or _is_size(side) for side in (node.body, node.orelse))
        self._note_condition(node, body, otherwise)
        return node

    def _note_condition(
        self, node: ast.If | ast.IfExp, body: bool, otherwise: bool, replaced: Sequence[ast.expr] = ()
    ) -> int | None:
        changes = isinstance(node, ast.If) and (_multiplies_number(node.body) or _looks_up(node.body, node.test))
        condition = node.test
        self.generic_visit(node)
        number = self._register_branch(condition, node.lineno, (body or changes, otherwise), changes)
        if number is not None:
            node.test = self._note(number, TAKEN, node.test, replaced)
        return number

    def _register_branch(
        self, test: ast.expr, line: int, sides: tuple[bool, bool], changes: bool = False
    ) -> int | None:
        names = _names([test])
        loops = tuple(number for number, counting in self._open if counting & names)
        compared = () if loops else sorted(_compared(test))
        parameters = tuple(name for name in compared if "." in name or len(self._parameters) > 1)
        if not (loops or parameters) or not any(sides):
            return None
        self.branches.append(_Branch(self._at_line(line), ast.unparse(test), loops, *sides, parameters, changes))
        return len(self.branches) - 1

    def _at_line(self, line: int) -> str:
        return f"line {line}{self._file}"

    def _note(self, number: int, name: str, test: ast.expr, replaced: Sequence[ast.expr] = ()) -> ast.expr:
        parameters = self.branches[number].parameters
        values = [_lookup_lambda(parameter) for parameter in parameters] if parameters else replaced
        return ast.copy_location(_call(name, ast.Constant(number), test, *values), test)

    def visit_Try(self, node: ast.Try) -> ast.Try:
        """Return the statement; whether it expects an iterator to end is known within its body."""
        expects = any(handler.type is None or _names([handler.type]) & _ENDS for handler in node.handlers)
        self._expecting += expects
        node.body = [inner for part in node.body for inner in _as_list(self.visit(part))]
        self._expecting -= expects
        body, node.body = node.body, []
        self.generic_visit(node)
        node.body = body
        return node

    def visit_Call(self, node: ast.Call) -> ast.Call:
        """Return the call: of enumerate(), which knows how many batches were omitted, or of next(iterator)."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "enumerate":
            name = ENUMERATE
        elif isinstance(node.func, ast.Name) and node.func.id == "next" and len(node.args) == 1 > self._expecting:
            name = NEXT
        else:
            return node
        node.args.insert(0, node.func)  # it may be a function of the user's own
        node.func = ast.copy_location(ast.Name(name, ast.Load()), node.func)
        return node


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


_ENDS = frozenset(("StopIteration", "Exception", "BaseException"))


def _as_list(visited: Any) -> list[ast.stmt]:
    return visited if isinstance(visited, list) else [visited]


def _is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def _names(nodes: Iterable[ast.AST]) -> set[str]:
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def _calls(nodes: Iterable[ast.AST]) -> set[str]:
    called = (node.func for node in nodes if isinstance(node, ast.Call))
    return {func.attr if isinstance(func, ast.Attribute) else ast.unparse(func) for func in called}


_GATHERING = frozenset(("append", "appendleft", "extend", "insert", "add", "put", "setdefault", "update"))

_REDUCING = frozenset(("item", "tolist", "sum", "mean", "argmax"))  # what they return shares no memory


def _fills_container(statements: Iterable[ast.stmt]) -> bool:
    """Return whether statements put something into a container, where it stays: a variable holds the last alone."""
    parts = [part for statement in statements for part in ast.walk(statement)]
    places = (target for part in parts if isinstance(part, ast.Assign) for target in part.targets)
    return bool(_calls(parts) & _GATHERING) or any(isinstance(target, ast.Subscript) for target in places)


def _replaced_variables(statements: Iterable[ast.stmt]) -> list[ast.expr]:
    """Return what looks up variables that statements give a value anew, and those that they put into a container.

    These are functions, since a variable may have no value yet. A container that is made anew itself keeps nothing.
    """
    parts = [part for statement in statements for part in ast.walk(statement)]
    added = [part for part in parts if isinstance(part, ast.AugAssign)]
    given = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    given -= _names([part.target for part in added])
    put: list[ast.expr] = [part.value for part in added]
    for part in parts:
        if isinstance(part, ast.Assign):
            places = [target for target in part.targets if isinstance(target, ast.Subscript)]
            put += [part.value for place in places if not given.issuperset(_aliased_variables(place))]
        elif (
            isinstance(part, ast.Call)
            and _calls([part]) & _GATHERING
            and not given.issuperset(_aliased_variables(part.func))
        ):
            put += [*part.args, *(keyword.value for keyword in part.keywords)]
    kept = {name for value in put for name in _aliased_variables(value)}
    return [_looking_up(given - kept), _looking_up(kept)]


def _looking_up(names: set[str]) -> ast.expr:
    return ast.Tuple([_lookup_lambda(name) for name in sorted(names)], ast.Load())


def _lookup_lambda(name: str) -> ast.expr:
    """Return what looks up a variable, or what an object holds, when it is called: it may have no value yet."""
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), ast.parse(name, mode="eval").body)


def _aliased_variables(value: ast.expr) -> Iterator[str]:
    """Yield the variables whose memory a value may share: `x`, `x.detach()`, `(x, y[0])`, but not `model(x)`."""
    if isinstance(value, ast.Name):
        yield value.id
    elif isinstance(value, ast.Call):
        yield from () if _calls([value]) & _REDUCING else _aliased_variables(value.func)
    elif isinstance(value, (ast.Attribute, ast.Subscript, ast.Starred)):
        yield from _aliased_variables(value.value)
    elif not isinstance(value, (ast.Compare, ast.BinOp, ast.UnaryOp)):  # these make a new tensor
        for inner in ast.iter_child_nodes(value):
            yield from _aliased_variables(inner) if isinstance(inner, ast.expr) else ()


def _looks_up(statements: Iterable[ast.stmt], test: ast.expr) -> bool:
    """Return whether statements look up what a test asks of: `if step in SIZES: size = SIZES[step]`."""
    values = (part.value for statement in statements for part in ast.walk(statement) if isinstance(part, ast.Assign))
    return any(isinstance(value, ast.Subscript) and _names([value.slice]) & _names([test]) for value in values)


def _multiplies_number(statements: Iterable[ast.stmt]) -> bool:
    """Return whether statements multiply a number by a whole one, as a batch size: `size *= 2`, `size = size * 2`."""
    for part in (part for statement in statements for part in ast.walk(statement)):
        if isinstance(part, ast.AugAssign):
            factors: list[ast.expr] = [part.value] if isinstance(part.op, (ast.Mult, ast.LShift, ast.Pow)) else []
        elif isinstance(part, ast.Assign) and isinstance(part.value, ast.BinOp):
            own = _names(part.targets) & _names([part.value])
            times = isinstance(part.value.op, (ast.Mult, ast.LShift, ast.Pow))
            factors = [part.value.left, part.value.right] if own and times else []
        else:
            continue
        if any(isinstance(factor, ast.Constant) and isinstance(factor.value, int) for factor in factors):
            return True
    return False


_LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)


def _compared(test: ast.expr) -> set[str]:
    """Return what a test compares as it is, or takes a remainder of: `epoch` of `epoch + 1 == 5`, `self.count`."""
    sides: list[ast.expr] = []
    for part in ast.walk(test):
        if isinstance(part, ast.Compare):
            sides += [part.left, *part.comparators]
        elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
            sides.append(part.left)
    plain = (ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
    taken = [side for side in sides if all(isinstance(inner, plain) for inner in ast.walk(side))]
    held = [part for side in taken for part in ast.walk(side) if isinstance(part, ast.Attribute)]
    return (_names(taken) - _names(held)) | {ast.unparse(part) for part in held}


# Calls that take no memory worth a word: what is said, counted and written down.
_SMALL_CALLS = """
    print item log info debug warning write writerow add_scalar add_scalars set_postfix set_postfix_str update
    set_description format round len float int str bool abs min max sum mean sqrt exp time perf_counter flush save
    state_dict get_last_lr tolist isnan isinf isfinite range zip sorted join strftime now sleep train eval exit
    synchronize empty_cache isinstance getattr SystemExit RuntimeError ValueError clip_grad_norm_
"""
_SMALL = frozenset(_SMALL_CALLS.split())


def _may_allocate(statements: Sequence[ast.stmt]) -> bool:
    """Return whether statements call or multiply anything that may take memory, or choose a size."""
    return any(_part_may_allocate(part) for statement in statements for part in ast.walk(statement))


def _part_may_allocate(part: ast.AST) -> bool:
    if isinstance(part, ast.Call):
        return not _allocates_little(part)
    if isinstance(part, ast.AugAssign):
        return isinstance(part.op, ast.MatMult) or _is_size(part.value)
    if isinstance(part, ast.Assign):
        return _is_size(part.value)
    return isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult)


def _is_size(value: ast.expr) -> bool:
    """Return whether this is a whole number that may be a size, or a tuple with one; 0 and 1 count or switch."""
    parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    numbers = (part.value for part in parts if isinstance(part, ast.Constant))
    return any(isinstance(number, int) and number > 1 for number in numbers)


def _allocates_little(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if name == "append":  # of a number that is worked out; a name may be that of a tensor
        return not any(isinstance(argument, ast.Name) for argument in call.args)
    if name in ("train", "update"):  # model.train(), bar.update(1); and a function that trains a model
        given = [*call.args, *(keyword.value for keyword in call.keywords)]
        return isinstance(call.func, ast.Attribute) and not any(map(_is_name, given))
    return name in _SMALL or (name == "step" and "sched" in ast.unparse(call.func).lower())
