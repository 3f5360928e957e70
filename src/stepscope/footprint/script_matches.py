"""`match` of a script as branches: `if epoch == 5 or epoch == 7`, so that they are followed as those of an `if` are.

Patterns of values, of names and of tuples of both are; what takes classes or dictionaries apart stays as it is.
"""

from __future__ import annotations

import ast
import copy

from stepscope.footprint.script_syntax import is_worked_out


class MatchesToBranches(ast.NodeTransformer):
    """Put branches in the place of each `match` whose patterns are all of values, names and tuples."""

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
            branches = case.body if always else [_at(ast.If(whole, case.body, branches), case.pattern)]
        return [*(_at(part, node) for part in before), *branches]


def _at(statement: ast.stmt, place: ast.AST) -> ast.stmt:
    return ast.fix_missing_locations(ast.copy_location(statement, place))


def _pattern_test(pattern: ast.pattern, subject: ast.expr) -> ast.expr | None:
    """Return the expression that is true where a subject matches; None of a pattern that is not one of values."""
    if isinstance(pattern, ast.MatchValue):
        return ast.Compare(copy.deepcopy(subject), [ast.Eq()], [pattern.value])
    if isinstance(pattern, ast.MatchSingleton):
        return ast.Compare(copy.deepcopy(subject), [ast.Is()], [ast.Constant(pattern.value)])
    if isinstance(pattern, ast.MatchOr):
        return _joined(ast.Or(), [_pattern_test(inner, subject) for inner in pattern.patterns])
    if isinstance(pattern, ast.MatchAs):
        inner = ast.Constant(True) if pattern.pattern is None else _pattern_test(pattern.pattern, subject)
        if pattern.name is None:
            return inner
        named = ast.NamedExpr(ast.Name(pattern.name, ast.Store()), copy.deepcopy(subject))
        bound = ast.List([named], ast.Load())  # which is always true
        return bound if isinstance(inner, ast.Constant) else _joined(ast.And(), [inner, bound])
    items = subject.elts if isinstance(subject, ast.Tuple) else []
    if isinstance(pattern, ast.MatchSequence) and len(pattern.patterns) == len(items) > 0:
        pairs = zip(pattern.patterns, items, strict=True)
        return _joined(ast.And(), [_pattern_test(inner, item) for inner, item in pairs])
    return None


def _joined(operator: ast.boolop, tests: list[ast.expr | None]) -> ast.expr | None:
    parts = [test for test in tests if test is not None]
    return ast.BoolOp(operator, parts) if len(parts) == len(tests) else None
