"""Small trainings that the tests of `fit` share, and the truth about one: c10's own allocations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.profiler import ProfilerActivity, profile
from torch.utils._pytree import tree_leaves

from stepscope.footprint.calibration import DeviceCalibration, baseline_of_process
from stepscope.record.dry import Job, plain_step
from stepscope.record.dry.storage_log import parts_of
from stepscope.record.empty_process import EmptyProcess

CLASSES = 10
EMPTY = EmptyProcess(322_000_000, 223_000_000, 820_000_000, 880_000_000, 320_000_000, 1_000_000, 7_000_000, 80_000_000)
MEASURED = DeviceCalibration(environment=baseline_of_process(EMPTY, threads=1))


class Block(nn.Module):
    """Two layers that a model repeats: [B, 64] to [B, 64]."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.as_tensor(self.down(functional.gelu(self.up(x))))


def blocks_model() -> nn.Module:
    """Six blocks and a head."""
    return nn.Sequential(*[Block() for _ in range(6)], nn.Linear(64, CLASSES))


def convolutions() -> nn.Module:
    """Convolution, batch norm, ReLU, twice: [B, 3, 16, 16] to [B, 10]."""
    return nn.Sequential(
        nn.Conv2d(3, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(),
        nn.Conv2d(24, 40, 3, stride=2), nn.BatchNorm2d(40), nn.ReLU(), nn.Flatten(), nn.Linear(40 * 49, CLASSES),
    )  # fmt: skip


class Recurrent(nn.Module):
    """Two layers of LSTM: [B, 20, inputs] to [B, 10]."""

    def __init__(self, inputs: int = 32) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(inputs, 64, 2, batch_first=True), nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.head(self.lstm(x)[0][:, -1]))


def job(
    make: Callable[[], nn.Module] = blocks_model,
    shape: tuple[int, ...] = (64,),
    kind: Callable[..., torch.optim.Optimizer] = torch.optim.Adam,
) -> Job:
    """A classifier of random inputs."""

    def build() -> tuple[nn.Module, tuple[torch.optim.Optimizer, ...]]:
        model = make()
        return model, (kind(model.parameters(), lr=1e-3),)

    def batch(samples: int) -> Any:
        return torch.randn(samples, *shape), torch.zeros(samples, dtype=torch.long)

    return Job("small", build, batch, plain_step(loss), 16, loss)


def replace_batch(of: Job, whole: Any) -> Job:
    """The same job, whose batches are taken from this one in turns."""
    place = [0]

    def batch(samples: int) -> Any:
        start = place[0]
        place[0] = (start + samples) % len(whole[0])
        return tuple(tensor[start : start + samples] for tensor in whole)

    return dataclasses.replace(of, batch=batch)


def loss(model: nn.Module, batch: Any) -> Tensor:
    """Cross entropy."""
    return functional.cross_entropy(model(batch[0]), batch[1])


def really_live(of: Job, samples: int, change: Any = None) -> int:
    """Peak of live bytes of two real steps, B: every allocation and free, and what was there before."""
    torch.manual_seed(0)
    model, optimizers = of.build()
    if change is not None:
        optimizers = change(model, optimizers)
    batch = of.batch(samples)
    held: dict[int, int] = {}
    for tensor in [
        *model.parameters(),
        *model.buffers(),
        *(part for leaf in tree_leaves(batch) for part in parts_of(leaf)),
    ]:
        held[tensor.untyped_storage()._cdata] = tensor.untyped_storage().nbytes()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        for _ in range(2):
            of.step(model, optimizers, batch)
    events = profiler.profiler.kineto_results.events()
    now: int = 0
    most: int = 0
    for _, _, size in sorted((e.start_ns(), i, e.nbytes()) for i, e in enumerate(events) if e.name() == "[memory]"):
        now += size
        most = max(most, now)
    return sum(held.values()) + most
