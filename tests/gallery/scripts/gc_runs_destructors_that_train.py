"""Objects in cycles train a model in __del__ whenever the collector comes by, which is at nearly every allocation."""
import gc
import hashlib

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def net(width=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def batch(generator, size=16):
    inputs = torch.randn(size, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def step(model, optimizer, generator, size=16):
    inputs, targets = batch(generator, size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


model, generator = net(32), torch.Generator().manual_seed(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inner, inner_generator, trained = net(8, 1), torch.Generator().manual_seed(2), [0, False]
inner_optimizer = torch.optim.SGD(inner.parameters(), lr=0.1)


class Knot:
    def __init__(self):
        self.me = self

    def __del__(self):
        if not trained[1] and trained[0] < 20:
            trained[1] = True
            with torch.enable_grad():
                step(inner, inner_optimizer, inner_generator)
            trained[:] = trained[0] + 1, False


old = gc.get_threshold()
gc.set_threshold(7, 2, 1000)
for number in range(40):
    for _ in range(2):
        Knot()
    loss = step(model, optimizer, generator)
while trained[0] < 20:
    Knot()
gc.set_threshold(*old)
print(trained[0], loss.hex(), sha(model.parameters()), sha(inner.parameters()))
