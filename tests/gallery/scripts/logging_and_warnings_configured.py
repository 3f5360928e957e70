"""Logging goes to stdout at level DEBUG for every logger, warnings are errors and captured; nobody else may log or warn."""
import logging
import sys
import warnings
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

warnings.simplefilter("error")
logging.basicConfig(stream=sys.stdout, level=logging.DEBUG, format="%(name)s %(levelname)s %(message)s", force=True)
logging.captureWarnings(True)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    logging.info("step %d %s", number, step(model, optimizer))
print(len(logging.root.handlers), sha(model.parameters()))
logging.disable(logging.CRITICAL)
logging.critical("not seen")
