"""set_grad_enabled as a function, inference_mode and no_grad as decorators, and gradients off globally at the end of steps."""
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


@torch.inference_mode()
def evaluate():
    return model(batch()[0])


for number in range(10):
    torch.set_grad_enabled(True)
    print(number, step(model, optimizer), torch.is_grad_enabled())
    outputs = evaluate()
    try:
        outputs.requires_grad_().sum().backward()
    except RuntimeError as error:
        print(type(error).__name__, outputs.is_inference())
    torch.set_grad_enabled(False)
print(torch.is_grad_enabled(), sha(model.parameters()))
