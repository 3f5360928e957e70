"""One thread for every test of `fit`: workspaces depend on it, and small steps only wait for a second one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.fit import jobs

from stepscope.footprint import calibration, time_limit


@pytest.fixture(autouse=True)
def _measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The empty process is as it was measured on x86: no test waits for another interpreter."""
    monkeypatch.setattr(calibration, "empty_process", lambda allocator, threads, imports: jobs.EMPTY)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Follow a script however long the machine takes for it, and however seldom this process gets to run."""
    monkeypatch.setattr(time_limit, "_MOST_WALL_S", 1e9)
    monkeypatch.setattr(time_limit, "_IDLE_S", 1e9)
