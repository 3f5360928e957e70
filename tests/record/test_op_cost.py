"""FLOPs and bytes of op calls, on what Kineto really says of ops that really ran."""

from __future__ import annotations

import contextlib
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile

from stepscope import workloads
from stepscope.record.dry.flops import count_flops
from stepscope.record.ops.costs import count_op_bytes, count_op_flops


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """torch 2.13 prints USDT lines to file descriptor 2 when its profiler starts."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def events_of(step: Callable[[], Any]) -> list[Any]:
    with quiet(), profile(activities=[ProfilerActivity.CPU], record_shapes=True, acc_events=True) as recorded:
        step()
    assert recorded.profiler is not None
    return list(recorded.profiler.kineto_results.events())


def flops_of(step: Callable[[], Any]) -> Counter[str]:
    counted: Counter[str] = Counter()
    for event in events_of(step):
        counted[event.name()] += count_op_flops(event.name(), event.shapes(), event.concrete_inputs()) or 0
    return +counted


def run_backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", ["lenet", "resnet18-c32"])
def test_the_ops_of_a_real_step_add_up_to_what_the_meta_device_counts(name: str) -> None:
    training = workloads.find(name).prepare(batch=2)
    batch = next(training.batches())
    counted = count_flops(training.model, training.workload.loss, batch)
    assert counted.total_forward is not None
    assert counted.total_backward is not None
    total = flops_of(lambda: run_backward(training.loss(batch))).total()
    assert total == pytest.approx(2 * (counted.total_forward + counted.total_backward), rel=0.01)


A, B = torch.ones(3, 4, 5), torch.ones(3, 5, 6)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (lambda: A[0] @ B[0], {"aten::mm": 240}),
        (lambda: A @ B, {"aten::bmm": 720}),
        (lambda: torch.baddbmm(torch.ones(3, 4, 6), A, B), {"aten::baddbmm": 720}),
        (lambda: A[0] @ B[0][:, 0], {"aten::addmv_": 40}),
        (lambda: torch.dot(A[0, 0], A[0, 1]), {"aten::dot": 10}),
        (lambda: functional.linear(A[0], torch.ones(7, 5), torch.ones(7)), {"aten::addmm": 280}),
        (lambda: torch.einsum("bij,bjk->bik", A, B), {"aten::bmm": 720}),
        (lambda: A + A, {}),
    ],
)
def test_products_count_once_at_the_op_that_does_the_work(step: Callable[[], Any], expected: dict[str, int]) -> None:
    assert flops_of(step) == expected


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 8, 3, stride=2, padding=1),
        nn.Conv2d(4, 8, 3, groups=2),
        nn.Conv2d(4, 4, 3, groups=4, dilation=2),
        nn.Conv2d(4, 8, (1, 5), padding=(0, 2)),
        nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("mkldnn", [True, False])
@pytest.mark.filterwarnings("ignore:TF32")  # said by torch when oneDNN is switched
def test_convolutions_of_every_kind_equal_the_count_on_the_meta_device(layer: nn.Module, mkldnn: bool) -> None:
    x = torch.ones(2, 4, 9, 9, requires_grad=True)
    counted = count_flops(layer, lambda model, batch: model(batch).sum(), x)
    assert counted.total_forward is not None
    assert counted.total_backward is not None
    with torch.backends.mkldnn.flags(enabled=mkldnn):
        total = flops_of(lambda: run_backward(layer(x).sum())).total()
    assert total == 2 * (counted.total_forward + counted.total_backward)


def test_an_lstm_on_the_cpu_is_not_free() -> None:
    layer, x = nn.LSTM(5, 6, num_layers=2), torch.ones(7, 3, 5, requires_grad=True)
    forward = 2 * 7 * 3 * 24 * ((5 + 6) + (6 + 6))
    total = flops_of(lambda: run_backward(layer(x)[0].sum())).total()
    assert total == pytest.approx(3 * forward, rel=0.03)  # on one thread torch leaves out the gradient of h0


def test_the_lstm_op_of_onednn_counts_both_of_its_products_and_backward_twice() -> None:
    shapes = [[7, 3, 5], [24, 5], [24, 6], [24], [24], [3, 6], [3, 6]]
    forward = 2 * 7 * 3 * 24 * (5 + 6)
    assert count_op_flops("aten::mkldnn_rnn_layer", shapes, []) == forward
    assert count_op_flops("aten::mkldnn_rnn_layer_backward", shapes, []) == 2 * forward


def test_attention_on_the_cpu_is_not_free() -> None:
    q, k = torch.ones(2, 3, 7, 8, requires_grad=True), torch.ones(2, 3, 5, 8, requires_grad=True)
    product = 2 * 2 * 3 * 7 * 5 * 8
    total = flops_of(lambda: run_backward(functional.scaled_dot_product_attention(q, k, k).sum())).total()
    assert total == (2 + 5) * product


@pytest.mark.parametrize("name", ["aten::mm", "aten::convolution_backward", "aten::mkldnn_convolution"])
@pytest.mark.parametrize("shapes", [[], [[]], [[], []], [[2, 3]], [[2, 3], [3]]])
def test_inputs_that_do_not_tell_are_null_and_not_zero(name: str, shapes: list[list[int]]) -> None:
    assert count_op_flops(name, shapes, []) is None


def test_an_op_without_a_formula_is_null_and_not_zero() -> None:
    assert count_op_flops("aten::relu", [[2, 3]], [None]) is None


def test_bytes_are_those_of_the_tensors_given() -> None:
    assert count_op_bytes([[2, 3], [], [], []], ["float", "Scalar", "ScalarList", ""]) == 24
    assert count_op_bytes([[2, 3], []], ["c10::Half", "long int"]) == 12 + 8  # no dimensions: one number
    assert count_op_bytes([], []) == 0


def test_bytes_of_a_list_of_tensors_or_of_an_unknown_type_are_null() -> None:
    assert count_op_bytes([[], []], ["TensorList", "Scalar"]) is None
    assert count_op_bytes([[4]], ["a type of tomorrow"]) is None


def test_bytes_of_a_real_addition_are_those_of_both_tensors() -> None:
    x: Tensor = torch.ones(10, dtype=torch.float64)
    (event,) = [event for event in events_of(lambda: x + x) if event.name() == "aten::add"]
    assert count_op_bytes(event.shapes(), event.dtypes()) == 160
