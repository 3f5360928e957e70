"""Numbers of a script: flags that are worked out of the rounds of a loop and handed on, and those that become sizes.

`train(batch, epoch > 50)`, `trainer.late = epoch > 50`: a branch on such a name depends on the round, wherever it is.
`size = 32 * (1 + epoch % 8)`: which of the rounds that are omitted have the largest is worked out.
`k = int(mask.sum())` where `x[:k]` or `make_batch(k)` follows: of a tensor without numbers it is made up, and so is all
that has its size.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from stepscope.footprint.script_syntax import (
    call_names,
    is_worked_out,
    lookup_lambda,
    loop_counters,
    names_in,
    origins_of,
)

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
        own = _parameters(node)
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


_MAKER_NAMES = """
    rand randn zeros ones empty full randint arange linspace eye new_zeros new_ones new_empty new_full expand repeat
    view reshape narrow split chunk pad topk repeat_interleave interpolate one_hot tile randperm multinomial unfold
"""
_MAKERS = frozenset(_MAKER_NAMES.split())
_OF_ONE_NUMBER = frozenset(("int", "min", "max", "abs", "round", "sum"))


def lines_of_sizes(tree: ast.AST) -> set[int]:
    """Return the lines of a source at which a value is worked out that becomes a size of a tensor."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, Function)}
    sized: dict[str, set[str]] = {name: set() for name in functions}  # parameters that become sizes
    lines: set[int] = set()
    for scope in (*functions.values(), *functions.values(), tree):  # twice: a function may call one that comes later
        names, own = _size_names(scope, functions, sized)
        lines |= own
        if isinstance(scope, Function):
            sized[scope.name] = names.intersection(_parameters(scope))
    return lines


def _parameters(function: Function) -> list[str]:
    """Return the names of what a function is called with, without its object."""
    own = [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return own[1:] if own[:1] in (["self"], ["cls"]) else own


def _size_names(
    scope: ast.AST, functions: Mapping[str, Function], sized: Mapping[str, set[str]]
) -> tuple[set[str], set[int]]:
    """Return names of a scope that become sizes, and the lines at which they, and sizes themselves, are worked out."""
    parts = list(_parts_of_scope(scope))
    sizes = [size for part in parts for size in _sizes_in(part, functions, sized) if not isinstance(size, ast.Constant)]
    names = {name for size in sizes for name in _worked_out_of(size)}
    lines = {line for size in sizes for line in range(size.lineno, (size.end_lineno or size.lineno) + 1)}
    values = [pair for part in parts for pair in _assigned_values(part)]
    before = -1
    while before != len(names):
        before = len(names)
        for name, value in values:
            if name in names:
                names.update(_worked_out_of(value))
                lines.update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return names, lines


def _parts_of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield what a module or a function consists of, without the functions within."""
    for part in ast.iter_child_nodes(scope):
        if not isinstance(part, Function):
            yield part
            yield from _parts_of_scope(part)


def _sizes_in(part: ast.AST, functions: Mapping[str, Function], sized: Mapping[str, set[str]]) -> list[ast.expr]:
    if isinstance(part, ast.Slice):
        bounds = [bound for bound in (part.lower, part.upper) if bound is not None]
        of_one_place = len(bounds) == 2 and _worked_out_of(bounds[0]) == _worked_out_of(bounds[1])  # x[i : i + 1]
        return [] if of_one_place else bounds
    if not isinstance(part, ast.Call):
        return []
    name = part.func.attr if isinstance(part.func, ast.Attribute) else getattr(part.func, "id", "")
    arguments = [*part.args, *(keyword.value for keyword in part.keywords)]
    if name in _MAKERS:
        return arguments
    if name not in functions:
        return []
    named = [
        *zip(_parameters(functions[name]), part.args, strict=False),
        *((keyword.arg, keyword.value) for keyword in part.keywords),
    ]
    return [value for parameter, value in named if parameter in sized[name]]


def _assigned_values(part: ast.AST) -> list[tuple[str, ast.expr]]:
    if isinstance(part, ast.Assign):
        targets, value = part.targets, part.value
    elif isinstance(part, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)) and part.value is not None:
        targets, value = [part.target], part.value
    elif isinstance(part, ast.For):
        targets, value = [part.target], part.iter
    else:
        return []
    return [(inner.id, value) for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)]


def _worked_out_of(value: ast.expr) -> set[str]:
    """Return the names that a value is worked out of as a number: `k` of `int(k) * 40`, none of `model(k)`."""
    within: Sequence[ast.AST] = ()
    if isinstance(value, ast.Name):
        return {value.id}
    if isinstance(value, (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Tuple, ast.List, ast.Starred)):
        within = list(ast.iter_child_nodes(value))
    elif isinstance(value, ast.Subscript):
        within = [value.value]
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _OF_ONE_NUMBER:
        within = value.args
    return {name for part in within if isinstance(part, ast.expr) for name in _worked_out_of(part)}


_COUNTER = "__round__"
_ARITHMETIC = (ast.Name, ast.Attribute, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context)
_PURE = frozenset(("int", "min", "max", "abs", "round", "floor", "ceil", "sqrt", "log2"))
_OF_CONTAINER = frozenset(("len", "bisect", "bisect_left", "bisect_right"))
_CALLS_WITHIN = 3  # functions that call functions with such a number


def numbers_of_rounds(loop: ast.For, functions: Mapping[str, Function]) -> list[ast.expr]:
    """Return numbers that a loop, or a function that it calls, works out of its round, as it may choose a size by.

    Each is a pair of functions: the number by the round, and the variables that it depends on besides.
    """
    if not isinstance(loop.target, ast.Name):
        return []
    first = {loop.target.id: ast.Name(_COUNTER, ast.Load())}
    numbers = {ast.unparse(number): number for number in _numbers_of(loop.body, first, functions, _CALLS_WITHIN)}
    variables = (lookup_lambda(f"[{', '.join(_free_variables(number))}]") for number in numbers.values())
    by_round = (lookup_lambda(number, _COUNTER) for number in numbers)
    return [ast.Tuple([*pair], ast.Load()) for pair in zip(by_round, variables, strict=True)]


def _numbers_of(
    body: Sequence[ast.stmt], known: Mapping[str, ast.expr], functions: Mapping[str, Function], deep: int
) -> Iterator[ast.expr]:
    """Yield expressions in the round; known: what names of the body are, in the round."""
    parts = [part for statement in body for part in ast.walk(statement)]
    names, times = dict(known), Counter(_stored_places(parts))
    assigned = (part for part in parts if not isinstance(part, (ast.AugAssign, ast.For)))
    for name, value in (pair for part in assigned for pair in _assigned_values(part)):
        number = _by_round(value, names) if times[name] == 1 else None
        names |= {} if number is None else {name: number}
    for candidate in (part for statement in body for part in _arithmetic_in(statement)):
        number = _by_round(candidate, names)
        if number is not None and _COUNTER in names_in([number]):
            yield number
    for call in (part for part in parts if isinstance(part, ast.Call) and deep):
        function = functions.get(next(iter(call_names([call]))))
        if function is None:
            continue
        arguments = [
            *zip(_parameters(function), call.args, strict=False),
            *((keyword.arg or "", keyword.value) for keyword in call.keywords),
        ]
        numbers = {name: number for name, value in arguments if (number := _by_round(value, names)) is not None}
        if _COUNTER in names_in(numbers.values()):
            yield from _numbers_of(function.body, numbers, functions, deep - 1)


def _arithmetic_in(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the largest expressions that may be sizes: no conditions, texts or keys of items."""
    if isinstance(node, (ast.BinOp, ast.Call, ast.Subscript)) and _is_arithmetic(node):
        yield node
    elif not isinstance(node, (ast.Compare, ast.JoinedStr)):
        key = node.slice if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Slice) else None
        for part in ast.iter_child_nodes(node):
            yield from () if part is key else _arithmetic_in(part)


def _is_arithmetic(value: ast.expr) -> bool:
    if isinstance(value, ast.Call):
        function = ast.unparse(value.func).removeprefix("math.").removeprefix("bisect.")
        of_container = function in _OF_CONTAINER and bool(value.args) and _is_container(value.args[0])
        numbers = value.args[of_container:]
        return (of_container or function in _PURE) and not value.keywords and all(map(_is_arithmetic, numbers))
    if isinstance(value, ast.Subscript):
        return _is_container(value.value) and not isinstance(value.slice, ast.Slice) and _is_arithmetic(value.slice)
    if isinstance(value, ast.Constant):
        return type(value.value) in (int, float)
    inner = [part for part in ast.iter_child_nodes(value) if isinstance(part, ast.expr)]
    return isinstance(value, _ARITHMETIC) and all(map(_is_arithmetic, inner))


def _is_container(value: ast.expr) -> bool:
    """Return whether this is a variable, or a list of numbers."""
    parts = (value, *value.elts) if isinstance(value, (ast.List, ast.Tuple)) else (value,)
    return all(isinstance(part, (ast.Name, ast.Attribute, ast.Constant, ast.List, ast.Tuple)) for part in parts)


def _by_round(value: ast.expr, names: Mapping[str, ast.expr]) -> ast.expr | None:
    """Return arithmetic with what its names are in the round; None where it is none."""
    number = _Substitution(names).visit(copy.deepcopy(value)) if _is_arithmetic(value) else None
    return number if isinstance(number, ast.expr) else None


class _Substitution(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, ast.expr]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return copy.deepcopy(self._names.get(node.id, node))


def _free_variables(number: ast.expr) -> list[str]:
    """Return where a number is looked up beside the round, as `batch` or `args.batch`; not what only has a length."""
    if isinstance(number, ast.Call):
        of_length = ast.unparse(number.func) == "len"
        return [] if of_length else [place for inner in number.args for place in _free_variables(inner)]
    if isinstance(number, (ast.Name, ast.Attribute)):
        place = ast.unparse(number)
        return [] if place == _COUNTER else [place]
    inner = (part for part in ast.iter_child_nodes(number) if isinstance(part, ast.expr))
    return [place for part in inner for place in _free_variables(part)]
