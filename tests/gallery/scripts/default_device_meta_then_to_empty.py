"""The model is made on the meta device under set_default_device, then to_empty and filled; default dtype is float64."""
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

torch.set_default_dtype(torch.float64)
torch.set_default_device("meta")
model = net()
torch.set_default_device(None)
model = model.to_empty(device="cpu")
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_(torch.linspace(-0.4, 0.4, parameter.numel()).reshape(parameter.shape))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for number in range(10):
    print(number, step(model, optimizer))
    with torch.device("meta"):
        print(nn.Linear(2, 2)(torch.ones(1, 2)).device)
print(torch.get_default_dtype(), sha(model.parameters()))
