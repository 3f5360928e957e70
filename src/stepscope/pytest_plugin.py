"""`pytest --stepscope`: each test that is marked `stepscope` is profiled and leaves a run folder; inert without it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from stepscope.record.profile import Scope

_MARKER = (
    "stepscope(**options): with --stepscope, profile this test; options as of stepscope.profile. A step is a step of "
    "the optimizer, or with the fixture stepscope_scope a call of its step()."
)
_PROPERTY = "stepscope_run"


class InertScope:
    """Stand-in for `stepscope_scope` where nothing is profiled: the same calls, which do nothing."""

    path = None

    def step(self, loss: Any = None, samples: int | None = None) -> None:
        """Do nothing: recording is off."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("stepscope", "training cost (stepscope)")
    group.addoption("--stepscope", action="store_true", help="Profile the tests that are marked stepscope.")
    group.addoption(
        "--stepscope-out", default="runs", metavar="DIR", help="Folder that the run folders are made in: runs."
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", _MARKER)


@pytest.fixture
def stepscope_scope(request: pytest.FixtureRequest) -> Iterator[Scope | InertScope]:
    """The scope of a profiled test: call `step(loss, samples)` after each update. Inert without --stepscope."""
    if not request.config.getoption("--stepscope"):
        yield InertScope()
        return
    profiled = _profiled(request.node, "calls")
    scope = profiled.__enter__()
    request.node.user_properties.append((_PROPERTY, str(scope.path)))
    yield scope
    _closed(profiled)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Around a marked test; one that takes the fixture is profiled by that."""
    marked = item.get_closest_marker("stepscope") is not None
    if not marked or not item.config.getoption("--stepscope") or "stepscope_scope" in _fixtures(item):
        return (yield)
    profiled = _profiled(item, "optimizer")
    scope = profiled.__enter__()
    item.user_properties.append((_PROPERTY, str(scope.path)))
    try:
        result = yield
    except BaseException as error:
        _closed(profiled, error)
        raise
    _closed(profiled)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The run folders, and how to look at them; tests of other processes (xdist) included."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    found = {
        value: report.nodeid
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == _PROPERTY
    }
    if found:
        terminalreporter.section("stepscope")
        for path, test in found.items():
            terminalreporter.line(f"{test}: stepscope report {_from_here(path)}")


def _from_here(path: str) -> str:
    """A path below the working directory as it would be typed."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except (ValueError, OSError):  # elsewhere, or the working directory is gone
        return path


def _fixtures(item: pytest.Item) -> list[str]:
    return list(getattr(item, "fixturenames", []))


def _profiled(item: Any, steps: str) -> Any:
    """A profile of this test; what its marker says goes first."""
    from stepscope.record.profile import profile

    marker = item.get_closest_marker("stepscope")
    given = {} if marker is None else dict(marker.kwargs)
    name = re.sub(r"[^\w.-]+", "-", item.name).strip("-") or "test"
    return profile(**{"out": item.config.getoption("--stepscope-out"), "name": name, "steps": steps, **given})


def _closed(profiled: Any, error: BaseException | None = None) -> None:
    """Close it; that no step was recorded is said by its report and must not fail the test."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="stepscope recorded no training step", category=RuntimeWarning)
        profiled.__exit__(type(error) if error is not None else None, error, None)
