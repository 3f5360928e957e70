"""Hogwild as in pytorch/examples: the parent only shares the model, forked children train it, one after the other here to stay exact."""
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

def child(model, rank):
    torch.manual_seed(rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(5):
        print(rank, number, step(model, optimizer))


model = net()
model.share_memory()
context = multiprocessing.get_context("fork")
for rank in range(2):
    process = context.Process(target=child, args=(model, rank))
    process.start()
    process.join()
    print("child", process.exitcode, flush=True)
print(sha(model.parameters()))
