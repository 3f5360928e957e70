"""A script from a server with 16 cores; `--threads` says how many threads torch computes with."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=16)
parser.add_argument("--steps", type=int, default=80)
options = parser.parse_args()
torch.set_num_threads(options.threads)
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(25088, 10)
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
images, labels = torch.randn(16, 3, 32, 32), torch.randint(10, (16,))
for _ in range(options.steps):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
