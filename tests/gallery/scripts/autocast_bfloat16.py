"""Forward under autocast to bfloat16, backward outside of it; the cache of casted weights must not be disturbed."""
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

model = net()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for number in range(10):
    inputs, targets = batch()
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = model(inputs)
        loss = nn.functional.cross_entropy(outputs.float(), targets)
    loss.backward()
    optimizer.step()
    print(number, outputs.dtype, loss.item().hex(), torch.is_autocast_enabled("cpu"))
print(sha(model.parameters()))
