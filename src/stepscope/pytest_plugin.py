"""`pytest --stepscope`: each test that is marked `stepscope` is profiled and leaves a run folder; inert without it."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager
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
_PROFILED = pytest.StashKey[Any]()


class InertScope:
    """Stand-in for `stepscope_scope` where nothing is profiled: the same calls, which do nothing."""

    path = run = None

    def inside(self, module: Any) -> AbstractContextManager[Any]:
        """Do nothing around a call."""
        return contextlib.nullcontext()

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Do nothing: recording is off."""

    step = pause = resume = tune = note = update = close = _nothing


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
    scope = _begin_test_scope(request.node, "calls")
    yield scope or InertScope()
    if scope is not None:
        scope.close("interrupted", "the test was not called")  # one that was is closed by now


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Around a test that is profiled: by its marker here, with the fixture since that was set up."""
    marked = item.get_closest_marker("stepscope") is not None
    if marked and item.config.getoption("--stepscope") and "stepscope_scope" not in _fixtures(item):
        _begin_test_scope(item, "optimizer")
    try:
        result = yield
    except BaseException as error:
        _closed(item, error)
        raise
    _closed(item)
    return result


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """The run folders, and how to look at them; tests of other processes (xdist) included."""
    reports = [report for reports in terminalreporter.stats.values() for report in reports]
    runs = {
        value: report.nodeid
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, value in report.user_properties
        if name == _PROPERTY
    }
    if runs:
        terminalreporter.section("stepscope")
        for path, test in runs.items():
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
    options = {} if marker is None else dict(marker.kwargs)
    name = re.sub(r"[^\w.-]+", "-", item.name).strip("-") or "test"
    return profile(**{"out": item.config.getoption("--stepscope-out"), "name": name, "steps": steps, **options})


def _begin_test_scope(item: pytest.Item, steps: str) -> Scope | None:
    """The scope of this test, profiled from now on; None with a warning where no run can be written."""
    from stepscope.errors import StepscopeError, UsageError

    profiled = _profiled(item, steps)
    try:
        scope: Scope = profiled.__enter__()
    except UsageError:
        raise
    except (StepscopeError, OSError) as error:
        with contextlib.suppress(RuntimeWarning):  # of those who turn warnings into errors
            warnings.warn(f"stepscope: this test is not profiled: {error}", RuntimeWarning, stacklevel=2)
        return None
    item.stash[_PROFILED] = profiled, scope
    item.user_properties.append((_PROPERTY, str(scope.path)))
    return scope


def _closed(item: pytest.Item, error: BaseException | None = None) -> None:
    """Close it; that no step was recorded is said by its report and must not fail the test."""
    if _PROFILED not in item.stash:
        return
    profiled, scope = item.stash[_PROFILED]
    del item.stash[_PROFILED]
    if isinstance(error, pytest.skip.Exception):
        scope.close("interrupted", f"the test was skipped: {error}")
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="stepscope recorded no training step", category=RuntimeWarning)
        profiled.__exit__(type(error) if error is not None else None, error, None)
