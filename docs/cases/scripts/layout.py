"""A convolutional network; `--channels-last` stores pictures and weights with the channels innermost."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--channels-last", action="store_true")
parser.add_argument("--steps", type=int, default=40)
options = parser.parse_args()
layout = torch.channels_last if options.channels_last else torch.contiguous_format


def block(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs, bias=False), nn.BatchNorm2d(inputs), nn.ReLU(),
        nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(),
    )  # fmt: skip


torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 32, 3, 2, 1), nn.ReLU(), block(32, 64, 1), block(64, 128, 2), block(128, 128, 1), block(128, 256, 2),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
).to(memory_format=layout)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
images, labels = torch.randn(16, 3, 96, 96).to(memory_format=layout), torch.randint(10, (16,))
for _ in range(options.steps):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
