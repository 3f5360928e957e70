"""Photos from a slow card: each read is a wait of 1 ms. `--workers 4` reads ahead."""

import argparse
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--steps", type=int, default=120)
options = parser.parse_args()


class Card(Dataset):
    def __len__(self) -> int:
        return 32 * options.steps

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        time.sleep(0.001)  # the card
        return torch.full((3, 32, 32), place % 7 / 7), place % 10


if __name__ == "__main__":
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(64 * 13 * 13, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for images, labels in DataLoader(Card(), batch_size=32, num_workers=options.workers):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
