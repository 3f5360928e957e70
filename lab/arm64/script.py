"""A training script as somebody has it: nothing in it knows that it is measured."""

from __future__ import annotations

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.Adam(model.parameters())
inputs, labels = torch.randn(16, 32), torch.randint(0, 10, (16,))


def step() -> torch.Tensor:
    """Train one step, and return its loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), labels)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss


if __name__ == "__main__":
    for _ in range(24):
        step()
