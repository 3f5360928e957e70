"""Workspaces on ARM: the rules against what c10 allocated in single ops of torch 2.10 on an emulated Cortex-A76, B."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from stepscope.record.dry.platform import Platform
from stepscope.record.dry.storage_log import HiddenBytes
from stepscope.record.dry.workspaces import Workspaces

# (batch, channels, side, outputs, kernel, stride, padding, groups): forward, backward with one thread and with four
SEEN: dict[tuple[int, ...], tuple[int, int, int]] = {
    (4, 1, 28, 6, 5, 1, 2, 1): (150528, 81056, 323456),
    (4, 6, 14, 16, 5, 1, 0, 1): (51200, 98656, 393856),
    (4, 3, 32, 16, 3, 1, 1, 1): (524288, 117760, 440704),
    (4, 16, 32, 16, 3, 1, 1, 1): (524288, 626944, 2350144),
    (4, 16, 32, 32, 3, 2, 1, 1): (280576, 243584, 884992),
    (4, 16, 32, 32, 1, 2, 0, 1): (461056, 259968, 259968),
    (4, 64, 8, 64, 3, 1, 1, 1): (212992, 737536, 2949376),
    (8, 16, 32, 16, 3, 1, 1, 1): (1048576, 626944, 2350144),
    (4, 64, 8, 64, 3, 1, 1, 64): (131072, 62976, 62976),
    (16, 64, 8, 128, 1, 1, 0, 1): (1048576, 228864, 524416),
    (1, 3, 32, 16, 3, 1, 1, 1): (110592, 110592, 110592),
}


def hidden(shape: tuple[int, ...], backward: bool, threads: int) -> HiddenBytes:
    samples, channels, side, outputs, kernel, stride, padding, groups = shape
    rules = Workspaces(Platform(block=0, threads=threads, acl=True))
    x = torch.empty(samples, channels, side, side, device="meta")
    weight = torch.empty(outputs, channels // groups, kernel, kernel, device="meta")
    how: list[Any] = [[stride] * 2, [padding] * 2, [1, 1], False, [0, 0], groups]
    plain = torch.ops.aten.convolution.default
    out = plain(x, weight, None, *how)
    if not backward:
        return rules(plain, (x, weight, None, *how), {}, out)
    result = (x, weight, torch.empty(outputs, device="meta"))
    call = torch.ops.aten.convolution_backward.default
    return rules(call, (out, x, weight, [outputs], *how, [True] * 3), {}, result)


@pytest.mark.parametrize("shape", SEEN)
def test_a_convolution_takes_what_was_seen(shape: tuple[int, ...]) -> None:
    forward, *backward = SEEN[shape]
    within = 512 if shape[4] == 1 else 0
    assert hidden(shape, False, 1).expected == pytest.approx(forward, abs=within)
    for threads, size in zip((1, 4), backward, strict=True):
        assert hidden(shape, True, threads).expected == size


def test_samples_that_the_threads_cannot_share_evenly_widen_the_interval() -> None:
    found = hidden((3, 8, 64, 8, 5, 1, 2, 1), True, 4)
    assert found.low == found.expected < found.high


@pytest.mark.parametrize(
    ("shape", "kept", "scratch"),  # steps, samples, inputs, units: of forward beside two copies of the weights
    [
        ((20, 64, 64, 64), 6537216, 7132088),
        ((20, 64, 256, 64), 17719296, 7132088),
        ((20, 64, 64, 256), 26845184, 27325368),
        ((20, 128, 64, 64), 13074432, 1029048),
        ((80, 2, 8, 256), 3289088, 3360696),
    ],
)
def test_an_lstm_keeps_what_was_seen(shape: tuple[int, ...], kept: int, scratch: int) -> None:
    steps, samples, inputs, units = shape
    empty = [torch.empty(size, device="meta") for size in ((steps, samples, inputs), (4 * units, inputs))]
    args = (*empty, torch.empty(4 * units, units, device="meta"), *[None] * 7, units, *[None] * 4, True)
    rules = Workspaces(Platform(block=0, acl=True))
    found = rules(torch.ops.aten.mkldnn_rnn_layer.default, args, {}, None)
    gates = {64: 272, 256: 1040}[units]
    assert found.output_sizes[0][1] == pytest.approx(kept, abs=17_000)
    assert found.expected - 4 * gates * (inputs + units) == pytest.approx(scratch, abs=12_000)


def test_a_processor_with_wider_vectors_gets_an_interval() -> None:
    rules = Workspaces(Platform(block=0, acl=True, is_known=False))
    assert "intervals" in rules.platform.name
    x, weight = torch.empty(4, 16, 32, 32, device="meta"), torch.empty(16, 16, 3, 3, device="meta")
    call = torch.ops.aten.convolution.default
    how: list[Any] = [[1, 1], [1, 1], [1, 1], False, [0, 0], 1]
    found = rules(call, (x, weight, None, *how), {}, call(x, weight, None, *how))
    assert found.low == 0 < 524288 <= found.high
