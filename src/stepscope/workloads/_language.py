"""Base of the language models: batches are tokens [B, T] and the tokens that follow [B, T]; scores [B, T, V]."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads.contract import Batch, Workload
from stepscope.workloads.data import text
from stepscope.workloads.data.text import Windows


def language_model(
    name: str,
    build: Callable[[], nn.Module],
    windows: Windows,
    summary: str,
    references: tuple[str, ...],
    **more: object,
) -> Workload:
    """A workload that predicts the token after each, or after the last; `more` are further fields, or replace these."""
    fields: dict[str, object] = {
        "domain": "language",
        "default_batch": 16,
        "default_optimizer": "adam",
        "sources": text.sources(windows),
        "own_data": functools.partial(text.own, windows),
        "example": functools.partial(example, windows),
        **more,
    }
    return Workload(
        name=name, build=build, input_shape=(windows.length,), summary=summary, references=references,
        loss=loss, correct=correct, **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy over all predicted tokens."""
    tokens, follows = batch
    scores = model(tokens)
    return functional.cross_entropy(scores.flatten(0, -2), follows.flatten())


def correct(model: nn.Module, batch: Batch) -> Tensor:
    """Right tokens, each counted as its share of a sample."""
    tokens, follows = batch
    right = (model(tokens).argmax(-1) == follows).float()
    total: Tensor = right.sum() if right.dim() == 1 else right.mean(dim=1).sum()
    return total


def example(windows: Windows, samples: int) -> Batch:
    """A batch of tokens that are all 0."""
    tokens = torch.zeros(samples, windows.length, dtype=torch.long)
    return tokens, torch.zeros(samples, dtype=torch.long) if windows.last_only else tokens.clone()
