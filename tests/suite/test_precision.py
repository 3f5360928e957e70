"""bf16 and fp16 put forward and loss under autocast; fp16 scales the loss; int8 rounds in forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
import torch

from stepscope import workloads
from stepscope.errors import UnknownName, UsageError
from stepscope.record.precision import describe_precision, quantisation_aware, workload_in_precision

if TYPE_CHECKING:
    from stepscope.workloads.contract import Training, Workload


@dataclass(frozen=True)
class Work:
    """What a precision needs to know of a workload."""

    loss: Callable[..., Any]
    step: Callable[..., Any] | None = None


def _product(model: torch.nn.Linear, batch: torch.Tensor) -> torch.Tensor:
    return model(batch)  # type: ignore[no-any-return]


def test_fp32_leaves_a_workload_as_it_is() -> None:
    work = Work(_product)
    assert workload_in_precision(work, "fp32", "cpu") is work


def test_bf16_computes_in_bfloat16_with_weights_and_gradients_in_float32() -> None:
    model, batch = torch.nn.Linear(4, 2), torch.ones(3, 4)
    loss = workload_in_precision(Work(_product), "bf16", "cpu").loss(model, batch)
    loss.float().sum().backward()
    assert loss.dtype == torch.bfloat16
    assert {model.weight.dtype, *(p.grad.dtype for p in model.parameters() if p.grad is not None)} == {torch.float32}
    assert not torch.is_autocast_enabled("cpu")


def test_a_step_of_the_workloads_own_runs_in_bf16_as_a_whole() -> None:
    work = workload_in_precision(Work(_product, step=lambda: torch.is_autocast_enabled("cpu")), "bf16", "cpu")
    assert work.step is not None
    assert work.step()


def test_a_precision_that_does_not_exist_is_refused_and_a_known_one_is_stated() -> None:
    with pytest.raises(UnknownName, match="unknown precision 'bf1'"):
        workload_in_precision(Work(_product), "bf1", "cpu")
    assert describe_precision("bf16") == "bfloat16 (autocast)"


def _training(precision: str) -> Training:
    made: Workload = workload_in_precision(workloads.find("lenet"), precision, "cpu")
    return made.prepare(batch=2)


def test_fp16_scales_the_loss_and_the_update_is_that_of_the_unscaled_one() -> None:
    training = _training("fp16")
    batch = next(iter(training.batches()))
    before = [parameter.detach().clone() for parameter in training.model.parameters()]
    found = float(training.step(batch))
    other = _training("fp32")
    assert found == pytest.approx(float(other.step(batch)), rel=0.02)
    for start, half, whole in zip(before, training.model.parameters(), other.model.parameters(), strict=True):
        assert half.dtype == torch.float32
        assert float((half - whole).detach().norm()) < 0.3 * float((whole - start).detach().norm())


def test_fp16_is_refused_where_the_step_or_the_backend_does_not_have_it() -> None:
    with pytest.raises(UsageError, match="has a step of its own"):
        workload_in_precision(workloads.find("dqn-2013-84"), "fp16", "cpu")

    def no_kernel(model: torch.nn.Module, batch: Any) -> torch.Tensor:
        raise RuntimeError("could not create a primitive descriptor for the LSTM\nmore")

    broken = workload_in_precision(replace(workloads.find("lenet"), loss=no_kernel), "fp16", "cpu").prepare(batch=2)
    with pytest.raises(UsageError, match=r"cannot train 'lenet' in float16: could not create .* LSTM$"):
        broken.step(next(iter(broken.batches())))


def test_int8_rounds_weights_to_their_levels_and_trains_the_float32_ones() -> None:
    torch.manual_seed(0)
    model = quantisation_aware(torch.nn.Sequential(torch.nn.Linear(64, 1)))
    found = model(torch.eye(64))
    assert len(set(found.flatten().tolist())) < 64  # two of 64 weights fall on one level
    found.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_int8_is_refused_where_it_would_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="no layer that quantised inference has"):
        quantisation_aware(torch.nn.Sequential(torch.nn.Softmax(dim=-1)))
    monkeypatch.setattr("stepscope.record.precision._KERNELS", ())
    with pytest.raises(UsageError, match="without a backend for int8"):
        quantisation_aware(torch.nn.Linear(2, 2))
