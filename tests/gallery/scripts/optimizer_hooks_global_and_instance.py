"""Step hooks of optimizers, global and per instance, and hooks of their state dicts."""
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

from torch.optim import optimizer as parts

order = []
handles = [
    parts.register_optimizer_step_pre_hook(lambda o, a, k: order.append("global pre")),
    parts.register_optimizer_step_post_hook(lambda o, a, k: order.append("global post")),
]
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.register_step_pre_hook(lambda o, a, k: order.append(("pre", len(a), sorted(k))))
optimizer.register_step_post_hook(lambda o, a, k: order.append("post"))
optimizer.register_state_dict_post_hook(lambda o, s: order.append("state"))
for number in range(10):
    if number == 6:
        [handle.remove() for handle in handles]
    print(number, step(model, optimizer), order)
    order.clear()
    optimizer.state_dict()
print(len(optimizer._optimizer_step_pre_hooks), len(optimizer._optimizer_step_post_hooks), sha(model.parameters()))
