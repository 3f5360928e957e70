"""A worker raises the user's own error, which comes out of next(loader) and is caught; then training goes on."""
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


class BadSample(Exception):
    pass


class Data(Dataset):
    def __init__(self, bad):
        self.bad = bad

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index == self.bad:
            raise BadSample(f"sample {index}")
        inputs = torch.arange(8.0).add(index).sin()
        return inputs, inputs[:3].argmax()


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for workers, bad in ((1, 20), (0, 33)):
    try:
        for inputs, targets in DataLoader(Data(bad), batch_size=8, num_workers=workers, multiprocessing_context="fork" if workers else None):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            print(workers, loss.item().hex())
    except BadSample as error:
        print("caught", str(error).strip().splitlines()[-1])
print(sha(model.parameters()))
