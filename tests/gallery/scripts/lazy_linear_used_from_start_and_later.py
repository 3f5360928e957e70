"""Lazy modules take their shape and change their class in the first call, one at step 0 and one at step 6."""
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
    def __init__(self):
        super().__init__()
        self.first, self.later, self.last = nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.LazyLinear(3)
        self.use_later = False

    def forward(self, inputs):
        hidden = self.first(inputs).relu()
        return self.last(self.later(hidden) if self.use_later else hidden)


model = Net()
print([type(m).__name__ for m in model.modules()], [len(m._forward_pre_hooks) for m in model.modules()])
with torch.no_grad():
    model(batch(4)[0])
optimizer = torch.optim.SGD([*model.first.parameters(), *model.last.parameters()], lr=0.1)
for number in range(12):
    if number == 6:
        model.use_later = True
    print(number, step(model, optimizer), [len(m._forward_pre_hooks) for m in model.modules()])
print([type(m).__name__ for m in model.modules()], sha(model.parameters()))
