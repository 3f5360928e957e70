"""An ensemble is trained through vmap over stacked parameters; a module is called with batched tensors that refuse .item()."""
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

models = [net() for _ in range(3)]
weights, buffers = torch.func.stack_module_state(models)
skeleton = net().to("meta")
optimizer = torch.optim.Adam(weights.values(), lr=1e-2)


def loss_of(weights, inputs, targets):
    return nn.functional.cross_entropy(torch.func.functional_call(skeleton, weights, (inputs,)), targets)


for number in range(10):
    inputs, targets = batch()
    optimizer.zero_grad()
    losses = torch.vmap(loss_of, in_dims=(0, None, None))(weights, inputs, targets)
    losses.sum().backward()
    optimizer.step()
    print(number, [value.hex() for value in losses.tolist()])
print(sha(weights.values()))
