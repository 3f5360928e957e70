"""faulthandler's watchdog is armed and cancelled around steps, and set_flush_denormal changes the CPU's state."""
import faulthandler
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

log = open("fault.txt", "w")
faulthandler.enable(log)
print(torch.set_flush_denormal(True))
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    faulthandler.dump_traceback_later(60, file=log)
    print(number, step(model, optimizer), (torch.tensor([1e-40]) * 1.0).item())
    faulthandler.cancel_dump_traceback_later()
print(faulthandler.is_enabled(), sha(model.parameters()))
