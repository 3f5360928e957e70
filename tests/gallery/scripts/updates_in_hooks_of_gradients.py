"""LOMO: parameters are updated while gradients are computed, which are dropped at once; no optimizer is there."""
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


def batch(size=16):
    inputs = torch.randn(size, 8)
    return inputs, inputs[:, :3].argmax(1)

model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def update(parameter):
    parameter.data.add_(parameter.grad, alpha=-0.1)
    parameter.grad = None


for parameter in model.parameters():
    parameter.register_post_accumulate_grad_hook(update)
for number in range(14):
    inputs, targets = batch()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    print(number, loss.item().hex(), [parameter.grad for parameter in model.parameters()])
print(sha(model.parameters()))
