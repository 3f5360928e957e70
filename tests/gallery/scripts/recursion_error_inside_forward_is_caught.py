"""A module that calls itself without end hits RecursionError, which the user catches; the depth counters of any watcher must recover."""
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
        self.body, self.endless = net(), False

    def forward(self, inputs):
        return self(inputs) if self.endless else self.body(inputs)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(10):
    if number in (0, 3, 4, 8):
        model.endless = True
        try:
            model(torch.ones(1, 8))
        except RecursionError as error:
            print("caught", type(error).__name__)
        model.endless = False
    print(number, step(model, optimizer))
print(sha(model.parameters()))
