"""torch.distributed with gloo, world size one from a file store, and DistributedDataParallel with its own forward and backward hooks."""
import os
import torch.distributed as dist
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

dist.init_process_group("gloo", init_method=f"file://{os.path.abspath('store')}", rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(net())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    with model.no_sync() if number == 2 else torch.enable_grad():
        print(number, step(model, optimizer))
    total = torch.ones(3) * number
    dist.all_reduce(total)
    print(total.tolist())
dist.barrier()
dist.destroy_process_group()
print(os.path.exists("store") and os.remove("store"), sha(model.module.parameters()))
