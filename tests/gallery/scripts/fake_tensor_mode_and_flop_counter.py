"""FakeTensorMode runs the model without data between steps, and FlopCounterMode counts one step."""
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

from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    with FlopCounterMode(display=False) as counter:
        print(number, step(model, optimizer), end=" ")
    print(counter.get_total_flops())
    if number in (0, 4):
        with FakeTensorMode():
            shadow = net()
            outputs = shadow(torch.ones(5, 8))
            outputs.sum().backward()
            print(type(outputs).__name__, tuple(shadow[0].weight.grad.shape))
print(sorted(counter.get_flop_counts()), sha(model.parameters()))
