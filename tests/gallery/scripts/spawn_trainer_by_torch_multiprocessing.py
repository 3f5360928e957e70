"""torch.multiprocessing.spawn trains in a child only, which raises at its end; the parent catches ProcessRaisedException."""
import torch.multiprocessing as multiprocessing
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

def train(rank, steps):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):
        print(rank, number, step(model, optimizer), flush=True)
    raise ValueError("end of child")


if __name__ == "__main__":
    try:
        multiprocessing.spawn(train, args=(6,), nprocs=1)
    except multiprocessing.ProcessRaisedException as error:
        print(type(error).__name__, str(error).strip().splitlines()[-1], error.error_index)
