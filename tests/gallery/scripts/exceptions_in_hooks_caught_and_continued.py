"""Errors of forward, backward and optimizer hooks are caught by the loop; the call depth must be right afterwards."""
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

class HookFailed(Exception):
    pass


model = net()
where = ""


def failing(place):
    def hook(*args):
        if where == place:
            raise HookFailed(place)

    return hook


model[0].register_forward_pre_hook(failing("pre"))
model[1].register_forward_hook(failing("forward"))
model[2].weight.register_hook(failing("tensor"))
model[2].register_full_backward_hook(failing("backward"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.register_step_pre_hook(failing("optimizer"))
for number in range(15):
    where = {1: "pre", 4: "forward", 6: "tensor", 9: "backward", 11: "optimizer"}.get(number, "")
    try:
        print(number, step(model, optimizer))
    except HookFailed as error:
        print(number, "caught", error, error.__cause__, error.__context__)
print(sha(model.parameters()))
