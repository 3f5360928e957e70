"""What several tests share: a fresh run to write, and Python and the command line in processes of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from tests.cpu_times import function_of, slow_functions
from tests.patience import HANG_S
from tests.warm_python import WarmPython

from stepscope.runfolder import RunWriter

# Workers share the cores among them: threads of their own would only wait for each other. Set here for the workers
# that this process starts: in a worker NumPy is there before its conftest, and its threads with it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" not in os.environ:
    # What a user's earlier runs have left in the cache must not change a test, nor a test what the user finds there.
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="stepscope-tests-")  # workers inherit it

# A machine that does something else is no fault of a test; where time is limited, each run has the same examples.
SAME = "SLOW_TESTS_UNTIL" in os.environ
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=SAME)
settings.load_profile("busy")

os.environ["STEPSCOPE_FAULTS"] = "raise"  # a fault that is contained would be no failure
os.environ["STEPSCOPE_CEILINGS"] = "off"  # a probe of some seconds, which only its own tests ask for

CommandLine = Callable[..., "subprocess.CompletedProcess[str]"]


# CI has a limit of time, and machines of one kind differ by a factor of two: from then on slow tests are left out, and
# pytest says how many. Each day others come last.
SLOW_UNTIL_S = float(os.environ.get("SLOW_TESTS_UNTIL", "inf"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what the table of slow tests names; where time is limited, their files come last."""
    slow = slow_functions()
    for item in items:
        if function_of(item) in slow:
            item.add_marker(pytest.mark.slow)
    if "SLOW_TESTS_UNTIL" in os.environ:
        files, day = {name.partition("::")[0] for name in slow}, int(SLOW_UNTIL_S // 86_400)

        def place(item: pytest.Item) -> int:
            name = item.nodeid.partition("::")[0]
            return 1 + zlib.crc32(f"{name} {day}".encode()) if name in files else 0

        items.sort(key=place)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave a slow test out where no time is left for it."""
    if time.time() > SLOW_UNTIL_S and item.get_closest_marker("slow") is not None:
        pytest.skip("no time is left for slow tests: make test runs all")


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[RunWriter]:
    """A run that has just begun."""
    writer = RunWriter.create(tmp_path / "runs", "lenet")
    yield writer
    with contextlib.suppress(OSError):  # a test may have broken the folder; its open file has to be closed all the same
        writer.close("ok")


@pytest.fixture(scope="session")
def warm_python() -> Iterator[WarmPython]:
    """Python processes that need not import torch first; `run(["-c", program], folder)`."""
    warm = WarmPython()
    yield warm
    warm.close()


@pytest.fixture
def stepscope_cli(tmp_path: Path, warm_python: WarmPython) -> CommandLine:
    """`stepscope ...` as a user runs it, in an empty folder and a process of its own, with torch imported already."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        return warm_python.run(["-m", "stepscope", *arguments], tmp_path)

    return call


@pytest.fixture
def cold_python(tmp_path: Path) -> CommandLine:
    """`python ...` as it is started from a shell, in an empty folder: for what is about imports."""

    def call(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=HANG_S, check=False)

    return call
