"""ZeroRedundancyOptimizer in a world of one, with DDP."""
import copy
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


import os
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model = nn.parallel.DistributedDataParallel(net())
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=1e-2)
for number in range(12):
    x, y = batch()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
optimizer.consolidate_state_dict(0)
print(sorted(optimizer.state_dict()), sha(model.parameters()))
dist.destroy_process_group()
