"""bf16 puts forward and loss under autocast, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from stepscope.errors import UnknownName
from stepscope.record.train import describe_precision, in_precision


@dataclass(frozen=True)
class Work:
    """What a precision needs to know of a workload."""

    loss: Callable[..., Any]
    step: Callable[..., Any] | None = None


def _product(model: torch.nn.Linear, batch: torch.Tensor) -> torch.Tensor:
    return model(batch)  # type: ignore[no-any-return]


def test_fp32_leaves_a_workload_as_it_is() -> None:
    work = Work(_product)
    assert in_precision(work, "fp32", "cpu") is work


def test_bf16_computes_in_bfloat16_with_weights_and_gradients_in_float32() -> None:
    model, batch = torch.nn.Linear(4, 2), torch.ones(3, 4)
    loss = in_precision(Work(_product), "bf16", "cpu").loss(model, batch)
    loss.float().sum().backward()
    assert loss.dtype == torch.bfloat16
    assert {model.weight.dtype, *(p.grad.dtype for p in model.parameters() if p.grad is not None)} == {torch.float32}
    assert not torch.is_autocast_enabled("cpu")


def test_a_step_of_the_workloads_own_runs_in_bf16_as_a_whole() -> None:
    work = in_precision(Work(_product, step=lambda: torch.is_autocast_enabled("cpu")), "bf16", "cpu")
    assert work.step is not None
    assert work.step()


def test_a_precision_that_does_not_exist_is_refused_and_a_known_one_is_stated() -> None:
    with pytest.raises(UnknownName, match="unknown precision 'bf1'"):
        in_precision(Work(_product), "bf1", "cpu")
    assert describe_precision("bf16") == "bfloat16 (autocast)"
