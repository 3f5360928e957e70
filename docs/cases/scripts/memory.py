"""A network for pictures on a board with little memory. `--limit-mb` is the board's: the process may hold no more.

`--pieces 8` makes the same update of 32 pictures from 8 passes of 4, whose gradients add up.
"""

import argparse
import resource

import torch
from torch import nn


def block(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))


def training() -> tuple:
    """Model, optimizer, batches and loss: what `stepscope fit memory:training` asks for."""
    torch.manual_seed(0)
    model = nn.Sequential(block(3, 32), block(32, 32), block(32, 32), nn.Flatten(), nn.Linear(32 * 20 * 20, 10))

    def batch(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.randn(count, 3, 160, 160), torch.randint(10, (count,))

    return model, torch.optim.SGD(model.parameters(), lr=0.01), batch, nn.functional.cross_entropy


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--pieces", type=int, default=1)
    parser.add_argument("--limit-mb", type=int)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    if options.limit_mb is not None:
        resource.setrlimit(resource.RLIMIT_DATA, (options.limit_mb * 1_000_000, options.limit_mb * 1_000_000))
    model, optimizer, batch, loss_of = training()
    images, labels = batch(options.batch)
    for _ in range(options.steps):
        optimizer.zero_grad()
        for x, y in zip(images.chunk(options.pieces), labels.chunk(options.pieces), strict=True):
            loss = loss_of(model(x), y) / options.pieces
            loss.backward()
        optimizer.step()
