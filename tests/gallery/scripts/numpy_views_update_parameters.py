"""Parameters are updated through numpy views of their memory, which no version counter sees."""
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
views = [parameter.detach().numpy() for parameter in model.parameters()]
for number in range(12):
    inputs, targets = batch()
    model.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    for view, parameter in zip(views, model.parameters()):
        view -= 0.1 * parameter.grad.numpy()
    print(number, loss.item().hex())
print(sha(model.parameters()))
