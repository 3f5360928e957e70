"""A worker kills itself, and the loader's SIGCHLD handler raises RuntimeError in the main process."""
import os
import re
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

from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == 32:
            os.kill(os.getpid(), signal.SIGKILL)
        inputs = torch.arange(8.0).add(index).sin()
        return inputs, inputs[:3].argmax()


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
done = []
try:
    for inputs, targets in DataLoader(Data(), batch_size=8, num_workers=1, prefetch_factor=1, multiprocessing_context="fork"):
        done.append((inputs, targets))
except RuntimeError as error:
    print("caught", "exited unexpectedly" in str(error) or "killed by signal" in str(error))
for index in range(4):
    inputs = torch.arange(8.0).add(torch.arange(8.0).add(8 * index).unsqueeze(1)).sin()
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), inputs[:, :3].argmax(1))
    loss.backward()
    optimizer.step()
    print(index, loss.item().hex())
print(sha(model.parameters()))
