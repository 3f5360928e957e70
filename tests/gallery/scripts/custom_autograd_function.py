"""An own autograd.Function counts its forward and backward calls and saves tensors."""
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

class Square(torch.autograd.Function):
    calls = [0, 0]

    @staticmethod
    def forward(context, value):
        Square.calls[0] += 1
        context.save_for_backward(value)
        return value * value

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context, gradient):
        Square.calls[1] += 1
        (value,) = context.saved_tensors
        return 2 * value * gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = net()

    def forward(self, inputs):
        return Square.apply(self.body(inputs))


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for number in range(10):
    print(number, step(model, optimizer), Square.calls)
print(sha(model.parameters()))
