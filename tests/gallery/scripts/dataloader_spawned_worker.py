"""A spawned worker imports __main__ anew, so the script's file, name and guard must be found by it."""
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
        return 64

    def __getitem__(self, index):
        inputs = torch.arange(8.0).add(index).sin()
        return inputs, inputs[:3].argmax(), __name__


if __name__ == "__main__":
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for inputs, targets, names in DataLoader(Data(), batch_size=16, num_workers=1, multiprocessing_context="spawn"):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        print(loss.item().hex(), sorted(set(names)))
    print(sha(model.parameters()))
