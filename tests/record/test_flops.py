"""FLOPs of a step per module, against sums done by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stepscope import workloads
from stepscope.record.dry.flops import FlopCount, ModuleFlops, count_flops, on_meta


def summed(model: nn.Module, batch: Any) -> Tensor:
    total: Tensor = model(batch).sum()
    return total


def totals(count: FlopCount) -> tuple[int | None, int | None]:
    assert count.reason is None
    return count.total_forward, count.total_backward


def test_a_linear_layer_without_input_gradient_costs_two_flops_a_weight_each_way() -> None:
    assert totals(count_flops(nn.Linear(3, 5), summed, torch.ones(7, 3))) == (30, 30)


def test_the_second_layer_pays_for_both_gradients() -> None:
    count = count_flops(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), summed, torch.ones(7, 3))
    expected = {"": (50, 70), "0": (30, 30), "1": (0, 0), "2": (20, 40)}
    assert count.by_module == {name: ModuleFlops(*flops) for name, flops in expected.items()}


@pytest.mark.parametrize("groups", [1, 4, 16])
def test_backward_of_a_grouped_convolution_is_twice_its_forward(groups: int) -> None:
    model = nn.Conv2d(16, 32, 3, padding=1, groups=groups)
    count = count_flops(model, summed, torch.ones(2, 16, 8, 8, requires_grad=True))
    forward = 2 * 8 * 8 * 32 * (16 // groups) * 9
    assert totals(count) == (forward, 2 * forward)


def test_a_transposed_convolution_costs_its_weights_at_every_input_position() -> None:
    model = nn.ConvTranspose2d(4, 6, 3, stride=2)
    assert totals(count_flops(model, summed, torch.ones(1, 4, 5, 5)))[0] == 2 * 25 * 4 * 6 * 9


def test_lstm_and_attention_are_counted_although_the_cpu_has_one_op_for_them() -> None:
    lstm = count_flops(nn.LSTM(5, 6), lambda model, x: model(x)[0].sum(), torch.ones(7, 2, 5), samples=2)
    attention = count_flops(nn.MultiheadAttention(8, 2), lambda m, x: m(x, x, x)[0].sum(), torch.ones(7, 1, 8), 1)
    assert totals(lstm)[0] == 2 * 7 * 24 * (5 + 6)
    assert totals(attention)[0] == 2 * (7 * 8 * 24 + 2 * 7 * 7 * 8 + 7 * 8 * 8)


class TwoEmbeddings(nn.Module):
    """Layers behind inputs that need no gradient: where torch's own tracker leaves modules open in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(3, 4), nn.Linear(3, 4)
        self.top = nn.Linear(4, 5)
        self.free = nn.Parameter(torch.ones(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.top(self.left(x) + self.right(x)) @ self.free
        return y


def test_backward_goes_to_the_module_that_made_the_node_and_the_rest_to_its_parent() -> None:
    count = count_flops(TwoEmbeddings(), summed, torch.ones(2, 3))
    expected = {"": (138, 228), "left": (24, 24), "right": (24, 24), "top": (40, 80)}
    assert {name: tuple(flops) for name, flops in count.by_module.items()} == expected


def test_a_module_called_twice_costs_twice() -> None:
    shared = nn.Linear(4, 4)
    count = count_flops(nn.Sequential(shared, shared), summed, torch.ones(1, 4))
    assert count.by_module["0"] == ModuleFlops(64, 32 + 64)


@pytest.mark.parametrize("reentrant", [False, True])
def test_a_forward_that_is_computed_again_belongs_to_backward_and_to_its_module(reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    x = torch.ones(1, 3, requires_grad=True)
    plain = count_flops(model, summed, x)
    again = count_flops(model, lambda m, x: checkpoint(m, x, use_reentrant=reentrant).sum(), x)
    assert again.total_forward == plain.total_forward == 50
    assert again.total_backward is not None
    assert again.by_module["0"].backward == plain.by_module["0"].backward + 30
    assert sum(again.by_module[name].backward for name in "01") == again.total_backward


def test_a_frozen_layer_has_no_weight_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
    model[1].requires_grad_(False)
    assert count_flops(model, summed, torch.ones(1, 3)).by_module["1"] == ModuleFlops(20, 20)


def test_what_lies_outside_every_module_is_in_the_total_only() -> None:
    count = count_flops(nn.Linear(3, 5), lambda model, x: (model(x) @ torch.ones(5, 5)).sum(), torch.ones(1, 3))
    assert totals(count) == (30 + 50, 30 + 50)
    assert count.by_module[""] == ModuleFlops(30, 30)


def test_counts_do_not_depend_on_the_batch() -> None:
    lenet = workloads.find("lenet")
    small, large = (count_flops(lenet.build(), lenet.loss, lenet.example(size)) for size in (1, 16))
    assert small == large


def test_the_model_its_gradients_and_the_random_state_are_left_alone() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout())
    state = {name: value.clone() for name, value in model.state_dict().items()}
    random = torch.get_rng_state()
    assert count_flops(model, summed, torch.ones(5, 3)).reason is None
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert torch.equal(random, torch.get_rng_state())


def test_a_model_that_looks_at_numbers_is_not_counted_and_says_why() -> None:
    count = count_flops(nn.Linear(3, 5), lambda model, x: model(x).sum() * x.sum().item(), torch.ones(1, 3))
    assert (count.total_forward, count.total_backward, dict(count.by_module)) == (None, None, {})
    assert count.reason is not None
    assert count.reason.startswith("not counted: ")


def test_a_batch_without_samples_is_not_counted_and_says_why() -> None:
    assert "samples" in str(count_flops(nn.Linear(3, 5), summed, {"x": 1}).reason)


def test_a_batch_may_be_a_nest_of_tensors() -> None:
    batch = {"ids": [torch.ones(2, 3)], "scale": 2.0}
    count = count_flops(nn.Linear(3, 5), lambda model, b: (model(b["ids"][0]) * b["scale"]).sum(), batch)
    assert totals(count) == (30, 30)


def test_a_compiled_model_is_counted_under_its_own_names() -> None:
    compiled: Any = torch.compile(nn.Sequential(nn.Linear(3, 5)), backend="eager")
    count = count_flops(compiled, summed, torch.ones(1, 3))
    assert totals(count) == (30, 30)
    assert set(count.by_module) == {name for name, _ in compiled.named_modules()}


def test_a_model_with_several_outputs_is_counted() -> None:
    count = count_flops(nn.LSTM(5, 6), lambda model, batch: model(batch)[0].sum(), torch.ones(7, 2, 5), samples=2)
    assert count.reason is None
    assert count.total_backward


def test_a_copy_on_the_meta_device_keeps_shared_and_frozen_parameters() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    model[0].weight.requires_grad_(False)
    copied: Any = on_meta(model)
    assert copied[0].weight is copied[1].weight
    assert copied[0].weight.device.type == "meta"
    assert not copied[0].weight.requires_grad
    assert copied[0].bias.requires_grad
