"""Every test of a workload starts without downloaded data, so that it sees what a fresh machine has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from stepscope.workloads.data import pictures


@pytest.fixture(autouse=True)
def data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that downloads would go to, empty; and no data of Debian."""
    folder = tmp_path / "data"
    monkeypatch.setenv("STEPSCOPE_DATA", str(folder))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(pictures, "DEBIAN", tmp_path / "debian")
    return folder


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> None:
    """Small nets are no faster on more threads, and the machine is shared."""
    torch.set_num_threads(1)
