"""Statements and expressions of a script by what they may do: what they name, call, keep, draw, allocate.

A `match` becomes branches (`if epoch == 5 or epoch == 7`), so that it is followed as they are.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence


def is_name(node: ast.AST) -> bool:
    return isinstance(node, ast.Name)


def names_in(nodes: Iterable[ast.AST]) -> set[str]:
    return {part.id for node in nodes for part in ast.walk(node) if isinstance(part, ast.Name)}


def named_places(node: ast.AST) -> set[str]:
    """Return names of variables, and of attributes with a dot."""
    return names_in([node]) | {f".{part.attr}" for part in ast.walk(node) if isinstance(part, ast.Attribute)}


def call_names(nodes: Iterable[ast.AST]) -> set[str]:
    functions = (node.func for node in nodes if isinstance(node, ast.Call))
    return {func.attr if isinstance(func, ast.Attribute) else ast.unparse(func) for func in functions}


_GATHERING = frozenset(("append", "appendleft", "extend", "insert", "add", "put", "setdefault", "update"))

_REDUCING = frozenset(("item", "tolist", "sum", "mean", "argmax"))  # what they return shares no memory


def _parts_of(statements: Iterable[ast.stmt]) -> list[ast.AST]:
    return [part for statement in statements for part in ast.walk(statement)]


def fills_container(statements: Iterable[ast.stmt]) -> bool:
    """Return whether statements put something into a container, where it stays: a variable holds the last alone."""
    parts = _parts_of(statements)
    places = (target for part in parts if isinstance(part, ast.Assign) for target in part.targets)
    return bool(call_names(parts) & _GATHERING) or any(isinstance(target, ast.Subscript) for target in places)


def replaced_variables(statements: Iterable[ast.stmt]) -> list[ast.expr]:
    """Return what looks up variables that statements give a value anew, and those that they put into a container.

    These are functions, since a variable may have no value yet. A container that is made anew itself keeps nothing.
    """
    parts = _parts_of(statements)
    added = [part for part in parts if isinstance(part, ast.AugAssign)]
    replaced = {part.id for part in parts if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    replaced -= names_in([part.target for part in added])
    put: list[ast.expr] = [part.value for part in added]
    for part in parts:
        if isinstance(part, ast.Assign):
            places = [target for target in part.targets if isinstance(target, ast.Subscript)]
            put += [part.value for place in places if not replaced.issuperset(_aliased_variables(place))]
        elif (
            isinstance(part, ast.Call)
            and call_names([part]) & _GATHERING
            and not replaced.issuperset(_aliased_variables(part.func))
        ):
            put += [*part.args, *(keyword.value for keyword in part.keywords)]
    stored = {name for value in put for name in _aliased_variables(value)}
    return [_looking_up(replaced - stored), _looking_up(stored)]


def _looking_up(names: set[str]) -> ast.expr:
    return ast.Tuple([lookup_lambda(name) for name in sorted(names)], ast.Load())


def lookup_lambda(name: str, *parameters: str) -> ast.expr:
    """Return what looks up a variable, or what an object holds, when it is called: it may have no value yet."""
    arguments = ast.arguments([], [ast.arg(parameter) for parameter in parameters], None, [], [], None, [])
    return ast.Lambda(arguments, ast.parse(name, mode="eval").body)


def _aliased_variables(value: ast.expr) -> Iterator[str]:
    """Yield the variables whose memory a value may share: `x`, `x.detach()`, `(x, y[0])`, but not `model(x)`."""
    if isinstance(value, ast.Name):
        yield value.id
    elif isinstance(value, ast.Call):
        yield from () if call_names([value]) & _REDUCING else _aliased_variables(value.func)
    elif isinstance(value, (ast.Attribute, ast.Subscript, ast.Starred)):
        yield from _aliased_variables(value.value)
    elif not isinstance(value, (ast.Compare, ast.BinOp, ast.UnaryOp)):  # these make a new tensor
        for inner in ast.iter_child_nodes(value):
            yield from _aliased_variables(inner) if isinstance(inner, ast.expr) else ()


def chooses_number(statements: Iterable[ast.stmt], test: ast.expr) -> bool:
    """Return whether statements draw a number, as a size, or look one up by what a test asks of.

    `size = random.choice((32, 64))`; `if step in SIZES: size = SIZES[step]`.
    """
    for value in (part.value for part in _parts_of(statements) if isinstance(part, ast.Assign)):
        if isinstance(value, ast.Subscript) and names_in([value.slice]) & names_in([test]):
            return True
        calls = (part for part in ast.walk(value) if isinstance(part, ast.Call))
        if any(call_names([call]) & _DRAWING and not ast.unparse(call.func).startswith("torch.") for call in calls):
            return True
    return False


_DRAWING = frozenset(("choice", "choices", "sample", "randint", "randrange", "integers"))


def loop_counters(loop: ast.For | ast.While) -> set[str]:
    """Return names that count the rounds of a loop, and of what is worked out of them: `i`, `late = i > 50`."""
    inside = list(ast.walk(loop))
    added = [part for part in inside if isinstance(part, ast.AugAssign) and is_name(part.target)]
    steady = [part.target for part in added if is_worked_out(part.value)]
    targets = [loop.target] if isinstance(loop, ast.For) else []
    counting = {name for name, value in _worked_out_values(inside) if _adds_to(name, value)}
    first = counting | names_in([*targets, *steady])
    return set(origins_of(inside, {name: {""} for name in first})) | names_in([part.target for part in added])


def origins_of(parts: Iterable[ast.AST], first: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return names with the origins of those that they are worked out of: of `s` in `s = epoch * 1000 + i`, both."""
    origins, values, before = {name: set(of) for name, of in first.items()}, _worked_out_values(parts), -1
    while before != sum(map(len, origins.values())):
        before = sum(map(len, origins.values()))
        for name, value in values:
            reached = set[str]().union(*(origins.get(inner, ()) for inner in names_in([value])))
            if reached:
                origins.setdefault(name, set()).update(reached)
    return origins


def _worked_out_values(parts: Iterable[ast.AST]) -> list[tuple[str, ast.expr]]:
    values: list[tuple[ast.expr, ast.expr]] = []
    for part in parts:
        if isinstance(part, ast.Assign):
            values += [(target, part.value) for target in part.targets]
        elif isinstance(part, (ast.AnnAssign, ast.NamedExpr)) and part.value is not None:
            values.append((part.target, part.value))
    return [(target.id, value) for target, value in values if isinstance(target, ast.Name) and is_worked_out(value)]


def _adds_to(name: str, value: ast.expr) -> bool:
    """Return whether a value is that of a name and a whole number: `count + 1`."""
    sides = [value.left, value.right] if isinstance(value, ast.BinOp) else []
    numbers = [side for side in sides if isinstance(side, ast.Constant) and type(side.value) is int]
    return bool(numbers) and any(isinstance(side, ast.Name) and side.id == name for side in sides)


def is_worked_out(value: ast.expr) -> bool:
    """Return whether a value is worked out of names, numbers and lists of them, lengths, and of what is looked up."""
    parts = list(ast.walk(value))
    calls = [part for part in parts if isinstance(part, ast.Call)]
    plain = (*_PLAIN_PARTS, ast.Compare, ast.BoolOp, ast.IfExp, ast.cmpop, ast.boolop, ast.Call, ast.Subscript)
    lists = (part for part in parts if isinstance(part, (ast.List, ast.Tuple)))
    of_numbers = {id(part) for part in lists if all(isinstance(item, ast.Constant) for item in part.elts)}
    return all(isinstance(part, plain) or id(part) in of_numbers for part in parts) and call_names(calls) <= _OF_NUMBERS


_PURE = "len int bool min max abs round sum floor ceil sqrt log log2 bisect bisect_left bisect_right searchsorted"
_OF_NUMBERS = frozenset(_PURE.split())


def multiplies_number(statements: Iterable[ast.stmt]) -> bool:
    """Return whether statements multiply a number by a whole one, as a batch size: `size *= 2`, `size = size * 2`."""
    for part in _parts_of(statements):
        if isinstance(part, ast.AugAssign):
            factors: list[ast.expr] = [part.value] if isinstance(part.op, (ast.Mult, ast.LShift, ast.Pow)) else []
        elif isinstance(part, ast.Assign) and isinstance(part.value, ast.BinOp):
            own = names_in(part.targets) & names_in([part.value])
            times = isinstance(part.value.op, (ast.Mult, ast.LShift, ast.Pow))
            factors = [part.value.left, part.value.right] if own and times else []
        else:
            continue
        if any(isinstance(factor, ast.Constant) and isinstance(factor.value, int) for factor in factors):
            return True
    return False


LEAVING = (ast.Return, ast.Continue, ast.Break, ast.Raise)


_PLAIN_PARTS = (
    ast.Name, ast.Attribute, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.expr_context,
)  # fmt: skip


def compared(test: ast.expr) -> set[str]:
    """Return what a test compares as it is, or takes a remainder of: `epoch` of `epoch + 1 == 5`, `self.count`."""
    sides: list[ast.expr] = []
    for part in ast.walk(test):
        if isinstance(part, ast.Compare):
            sides += [part.left, *part.comparators]
        elif isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mod):
            sides.append(part.left)
    plain_sides = [side for side in sides if all(isinstance(inner, _PLAIN_PARTS) for inner in ast.walk(side))]
    attributes = [part for side in plain_sides for part in ast.walk(side) if isinstance(part, ast.Attribute)]
    return (names_in(plain_sides) - names_in(attributes)) | {ast.unparse(part) for part in attributes}


# Calls that take no memory worth a word: what is said, counted and written down.
_SMALL_CALLS = """
    print item log info debug warning write writerow add_scalar add_scalars set_postfix set_postfix_str update
    set_description format round len float int str bool abs min max sum mean sqrt exp time perf_counter flush save
    state_dict get_last_lr tolist isnan isinf isfinite range zip sorted join strftime now sleep train eval exit
    synchronize empty_cache isinstance getattr SystemExit RuntimeError ValueError clip_grad_norm_
"""
_SMALL = frozenset(_SMALL_CALLS.split())


def may_allocate(statements: Sequence[ast.stmt]) -> bool:
    """Return whether statements call or multiply anything that may take memory, or choose a size."""
    return any(map(_part_may_allocate, _parts_of(statements)))


def _part_may_allocate(part: ast.AST) -> bool:
    if isinstance(part, ast.Call):
        return not _allocates_little(part)
    if isinstance(part, ast.AugAssign):
        return isinstance(part.op, ast.MatMult) or is_size(part.value)
    if isinstance(part, ast.Assign):
        return is_size(part.value)
    return isinstance(part, ast.BinOp) and isinstance(part.op, ast.MatMult)


def is_size(value: ast.expr) -> bool:
    """Return whether this is a whole number that may be a size, or a tuple with one; 0 and 1 count or switch."""
    parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else [value]
    numbers = (part.value for part in parts if isinstance(part, ast.Constant))
    return any(isinstance(number, int) and number > 1 for number in numbers)


def _allocates_little(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
    if name == "append":  # of a number that is worked out; a name may be that of a tensor
        return not any(isinstance(argument, ast.Name) for argument in call.args)
    if name in ("train", "update"):  # model.train(), bar.update(1); and a function that trains a model
        arguments = [*call.args, *(keyword.value for keyword in call.keywords)]
        return isinstance(call.func, ast.Attribute) and not any(map(is_name, arguments))
    return name in _SMALL or (name == "step" and "sched" in ast.unparse(call.func).lower())


class MatchesToBranches(ast.NodeTransformer):
    """Put branches in the place of each `match` whose patterns are of values, names and tuples; others stay."""

    def __init__(self) -> None:
        self._subjects = 0  # that have a name of ours

    def visit_Match(self, node: ast.Match) -> ast.AST | list[ast.stmt]:
        """Return the branches, behind the subject where it is no plain value."""
        self.generic_visit(node)
        before: list[ast.stmt] = []
        subject = node.subject
        items = subject.elts if isinstance(subject, ast.Tuple) else [subject]
        if not all(map(is_worked_out, items)):
            self._subjects += 1
            subject = ast.Name(f"__subject{self._subjects}__", ast.Load())
            before = [ast.Assign([ast.Name(subject.id, ast.Store())], node.subject)]
        tests = [_pattern_test(case.pattern, subject) for case in node.cases]
        if None in tests:
            return node
        branches: list[ast.stmt] = []
        for case, test in reversed(list(zip(node.cases, tests, strict=True))):
            parts = [part for part in (test, case.guard) if part is not None]
            whole = parts[0] if len(parts) == 1 else ast.BoolOp(ast.And(), parts)
            always = isinstance(whole, ast.Constant)
            branches = case.body if always else [_located_at(ast.If(whole, case.body, branches), case.pattern)]
        return [*(_located_at(part, node) for part in before), *branches]


def _located_at(statement: ast.stmt, place: ast.AST) -> ast.stmt:
    return ast.fix_missing_locations(ast.copy_location(statement, place))


def _pattern_test(pattern: ast.pattern, subject: ast.expr) -> ast.expr | None:
    """Return the expression that is true where a subject matches; None of a pattern that is not one of values."""
    if isinstance(pattern, ast.MatchValue):
        return ast.Compare(copy.deepcopy(subject), [ast.Eq()], [pattern.value])
    if isinstance(pattern, ast.MatchSingleton):
        return ast.Compare(copy.deepcopy(subject), [ast.Is()], [ast.Constant(pattern.value)])
    if isinstance(pattern, ast.MatchOr):
        return _join_tests(ast.Or(), [_pattern_test(inner, subject) for inner in pattern.patterns])
    if isinstance(pattern, ast.MatchAs):
        inner = ast.Constant(True) if pattern.pattern is None else _pattern_test(pattern.pattern, subject)
        if pattern.name is None:
            return inner
        named = ast.NamedExpr(ast.Name(pattern.name, ast.Store()), copy.deepcopy(subject))
        bound = ast.List([named], ast.Load())  # which is always true
        return bound if isinstance(inner, ast.Constant) else _join_tests(ast.And(), [inner, bound])
    items = subject.elts if isinstance(subject, ast.Tuple) else []
    if isinstance(pattern, ast.MatchSequence) and len(pattern.patterns) == len(items) > 0:
        pairs = zip(pattern.patterns, items, strict=True)
        return _join_tests(ast.And(), [_pattern_test(inner, item) for inner, item in pairs])
    return None


def _join_tests(operator: ast.boolop, tests: list[ast.expr | None]) -> ast.expr | None:
    parts = [test for test in tests if test is not None]
    return ast.BoolOp(operator, parts) if len(parts) == len(tests) else None
