"""What the tests of the trainers share: a library of somebody else's, small real data, an exception of the user's."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

BATCH = 4


class RefusedError(Exception):
    """The user's own."""


def library(name: str) -> Any:
    """Somebody else's library, without the warnings of its import; the test is skipped where it is not installed."""
    os.environ.setdefault("KERAS_BACKEND", "torch")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(name)


def loader(batches: int) -> Any:
    """So many batches of random rows and labels."""
    torch.manual_seed(0)
    count = BATCH * batches
    return DataLoader(TensorDataset(torch.randn(count, 8), torch.randint(3, (count,))), batch_size=BATCH)


def a_file(tmp_path: Path) -> Path:
    """Something in which no run folder can be made."""
    path = tmp_path / "occupied"
    path.write_text("", encoding="utf-8")
    return path
