"""`python -m pytest -p tests.cpu_times` writes slow_tests.txt anew: the test functions that take long, in CPU time.

CPU time of this process and of those that it has waited for: much the same however busy the machine is. A test of
many cases counts with all of them. What the table names has the mark `slow`, and `make test-quick` leaves it out.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.warm_python import WarmPython

TABLE = Path(__file__).with_name("slow_tests.txt")
SLOW_S = 0.8
HEAD = "# Test functions of more than {} s of CPU time. To measure them anew: python -m pytest -p tests.cpu_times\n"

_spent_s: defaultdict[str, float] = defaultdict(float)


def function_of(item: pytest.Item) -> str:
    """The file and name of a test, without its case."""
    return item.nodeid.partition("[")[0]


def slow_functions() -> set[str]:
    """What the table names."""
    return {line for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")}


def _now_s() -> float:
    return sum(os.times()[:4]) + WarmPython.spent_s


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Set-up, call and teardown of one test."""
    before_s = _now_s()
    try:
        return (yield)
    finally:
        _spent_s[function_of(item)] += _now_s() - before_s


def pytest_sessionfinish() -> None:
    """Rows of files that were not run stay as they are."""
    run = {name.partition("::")[0] for name in _spent_s}
    kept = {name for name in slow_functions() if name.partition("::")[0] not in run}
    slow = kept | {name for name, spent_s in _spent_s.items() if spent_s > SLOW_S}
    TABLE.write_text(HEAD.format(SLOW_S) + "".join(f"{name}\n" for name in sorted(slow)), encoding="utf-8")
