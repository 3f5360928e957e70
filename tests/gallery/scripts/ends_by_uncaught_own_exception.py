"""An own exception with a cause and an odd __str__ ends the script at step 9."""
# runner: ends=exit 1
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

class Diverged(RuntimeError):
    def __init__(self, number):
        super().__init__(number)
        self.number = number

    def __str__(self):
        return f"diverged at {self.number}\nsecond line"


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(20):
    print(number, step(model, optimizer))
    if number == 8:
        try:
            {}["missing"]
        except KeyError as error:
            raise Diverged(number) from error
