"""Loops as people write them, each short: the script that `benchmarks.agreement` profiles. `loops.py NAME SEED`."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.networks import NETWORKS, Network, network


def loss_of(made: Network, samples: int) -> Tensor:
    """Return the loss of a fresh batch."""
    inputs, targets = made.batch(samples)
    return made.loss(made.model(inputs), targets)


def train(made: Network, optimizer: torch.optim.Optimizer, steps: int, samples: Callable[[int], int]) -> None:
    """Train in the plainest loop there is."""
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(made, samples(step)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()


def steps_6(made: Network, draw: random.Random) -> None:
    """Train for six steps."""
    train(made, torch.optim.Adam(made.model.parameters()), 6, lambda _: made.samples)


def steps_30(made: Network, draw: random.Random) -> None:
    """Train for thirty steps."""
    train(made, torch.optim.SGD(made.model.parameters(), lr=1e-3), 30, lambda _: made.samples)


def steps_400(made: Network, draw: random.Random) -> None:
    """Train for four hundred steps of little work."""
    train(made, torch.optim.SGD(made.model.parameters(), lr=1e-3), 400, lambda _: max(1, made.samples // 8))


def two_groups(made: Network, draw: random.Random) -> None:
    """Train with weight decay for matrices alone, as nanoGPT does."""
    parameters = list(made.model.parameters())
    groups = [
        {"params": [one for one in parameters if one.dim() > 1], "weight_decay": 0.1},
        {"params": [one for one in parameters if one.dim() <= 1], "weight_decay": 0.0},
    ]
    train(made, torch.optim.AdamW(groups, lr=1e-4), 60, lambda _: made.samples)


def lbfgs(made: Network, draw: random.Random) -> None:
    """Train with an optimizer that calls the loss several times a step."""
    optimizer = torch.optim.LBFGS(made.model.parameters(), lr=1e-3, max_iter=3)
    inputs, targets = made.batch(made.samples)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = made.loss(made.model(inputs), targets)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    for _ in range(15):
        optimizer.step(closure)  # type: ignore[no-untyped-call]


def accumulation(made: Network, draw: random.Random) -> None:
    """Add up the gradients of several batches for one update."""
    optimizer = torch.optim.Adam(made.model.parameters())
    count = draw.randint(2, 5)
    for batch in range(30 * count):
        loss = loss_of(made, made.samples) / count
        loss.backward()  # type: ignore[no-untyped-call]
        if batch % count == count - 1:
            optimizer.step()
            optimizer.zero_grad()


def variable_batch(made: Network, draw: random.Random) -> None:
    """Train with batches of different sizes."""
    train(made, torch.optim.Adam(made.model.parameters()), 80, lambda _: draw.randint(2, 2 * made.samples))


def validation(made: Network, draw: random.Random) -> None:
    """Validate now and then, from a loader with a short last batch."""
    optimizer = torch.optim.Adam(made.model.parameters())
    data = TensorDataset(*made.batch(10 * made.samples + 3))
    for _ in range(4):
        made.model.train()
        for inputs, targets in DataLoader(data, made.samples, shuffle=True):
            optimizer.zero_grad()
            made.loss(made.model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        made.model.eval()
        with torch.no_grad():
            for _ in range(5):
                loss_of(made, made.samples)


def two_models(made: Network, draw: random.Random) -> None:
    """Train two models by turns."""
    other = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizers = torch.optim.Adam(made.model.parameters()), torch.optim.SGD(other.parameters(), lr=0.1)
    for _ in range(40):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss_of(made, made.samples).backward()  # type: ignore[no-untyped-call]
        optimizers[0].step()
        functional.cross_entropy(other(torch.randn(16, 32)), torch.randint(10, (16,))).backward()  # type: ignore[no-untyped-call]
        optimizers[1].step()


LOOPS: dict[str, Callable[[Network, random.Random], None]] = {
    "steps-6": steps_6,
    "steps-30": steps_30,
    "steps-400": steps_400,
    "two-groups": two_groups,
    "lbfgs": lbfgs,
    "accumulation": accumulation,
    "variable-batch": variable_batch,
    "validation": validation,
    "two-models": two_models,
}


def main() -> None:
    name, seed = sys.argv[1], int(sys.argv[2])
    draw = random.Random(f"{name} {seed}")
    torch.manual_seed(seed)
    torch.set_num_threads(draw.randint(1, 2))
    LOOPS[name](network(draw.choice(sorted(set(NETWORKS) - {"vgg"})), draw.uniform(0.8, 1.3)), draw)


if __name__ == "__main__":
    main()
