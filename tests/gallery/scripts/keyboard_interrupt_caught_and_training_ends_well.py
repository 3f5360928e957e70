"""Ctrl-C is caught by the training loop as word_language_model does; then it evaluates and ends with code 0."""
import os
import signal
import hashlib

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batch(size=16):
    inputs = torch.randn(size, 8)
    return inputs, inputs[:, :3].argmax(1)


def step(model, optimizer, size=16):
    inputs, targets = batch(size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item().hex()

signal.signal(signal.SIGINT, signal.default_int_handler)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for part in range(3):
    try:
        for number in range(20):
            print(part, number, step(model, optimizer))
            if number == 3:
                os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        print("-" * 20)
        print("Exiting from training early")
print(sha(model.parameters()))
