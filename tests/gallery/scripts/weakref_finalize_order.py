"""weakref.finalize callbacks and __del__ of model parts print in a fixed order, some at interpreter exit."""
import gc
import weakref
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

class Part(nn.Linear):
    def __del__(self):
        print("del", self.name, flush=True)


model = nn.Sequential(Part(8, 8), Part(8, 3))
model[0].name, model[1].name = "first", "second"
weakref.finalize(model, print, "finalize model", flush=True)
at_exit = net()
weakref.finalize(at_exit, print, "finalize at exit", flush=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(6):
    print(number, step(model, optimizer))
print(sha(model.parameters()))
del model
gc.collect()
print("end")
