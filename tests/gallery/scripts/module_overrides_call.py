"""A Module subclass overrides __call__, counts, and returns without super in some rounds."""
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

class Net(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.body = net()

    def __call__(self, inputs, *more, **named):
        type(self).calls += 1
        if self.calls % 3 == 0:
            return self.forward(inputs)
        return super().__call__(inputs, *more, **named)

    def forward(self, inputs):
        return self.body(inputs)


model = Net()
seen = []
model.register_forward_hook(lambda *_: seen.append(model.calls))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(10):
    print(number, step(model, optimizer), Net.calls)
print(seen, sorted(name for name in vars(Net) if not name.startswith("__")), Net.__call__.__qualname__, sha(model.parameters()))
