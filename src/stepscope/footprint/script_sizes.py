"""Lines of a script at which a number becomes a size: `k = int(mask.sum())` where `x[:k]` or `make_batch(k)` follows.

Of a tensor without numbers such a number is made up, and so is all that has its size.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence

_MAKER_NAMES = """
    rand randn zeros ones empty full randint arange linspace eye new_zeros new_ones new_empty new_full expand repeat
    view reshape narrow split chunk pad topk repeat_interleave interpolate one_hot tile randperm multinomial unfold
"""
_MAKERS = frozenset(_MAKER_NAMES.split())
_OF_NUMBERS = frozenset(("int", "min", "max", "abs", "round", "sum"))
_Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of_sizes(tree: ast.AST) -> set[int]:
    """Return the lines of a source at which a value is worked out that becomes a size of a tensor."""
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, _Function)}
    sized: dict[str, set[str]] = {name: set() for name in functions}  # parameters that become sizes
    lines: set[int] = set()
    for scope in (*functions.values(), *functions.values(), tree):  # twice: a function may call one that comes later
        names, own = _size_names(scope, functions, sized)
        lines |= own
        if isinstance(scope, _Function):
            sized[scope.name] = names.intersection(_parameters(scope))
    return lines


def _parameters(function: _Function) -> list[str]:
    return [argument.arg for argument in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _size_names(
    scope: ast.AST, functions: Mapping[str, _Function], sized: Mapping[str, set[str]]
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
        if not isinstance(part, _Function):
            yield part
            yield from _parts_of_scope(part)


def _sizes_in(part: ast.AST, functions: Mapping[str, _Function], sized: Mapping[str, set[str]]) -> list[ast.expr]:
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
    parameters = _parameters(functions[name])
    parameters = parameters[1:] if parameters[:1] == ["self"] else parameters
    named = [*zip(parameters, part.args, strict=False), *((keyword.arg, keyword.value) for keyword in part.keywords)]
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
    elif isinstance(value, ast.Call) and isinstance(value.func, ast.Name) and value.func.id in _OF_NUMBERS:
        within = value.args
    return {name for part in within if isinstance(part, ast.expr) for name in _worked_out_of(part)}
