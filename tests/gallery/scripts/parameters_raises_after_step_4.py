"""parameters() and state_dict() work until step 4 and raise from then on, with an exception that is no Exception."""
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

class Hard(BaseException):
    pass


class Net(nn.Module):
    broken = False

    def __init__(self):
        super().__init__()
        self.body = net()

    def forward(self, inputs):
        return self.body(inputs)

    def named_parameters(self, *args, **kwargs):
        if Net.broken:
            raise Hard("broken")
        return super().named_parameters(*args, **kwargs)

    def named_modules(self, *args, **kwargs):
        if Net.broken:
            raise Hard("broken")
        return super().named_modules(*args, **kwargs)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(12):
    Net.broken = number >= 4
    print(number, step(model, optimizer))
try:
    list(model.parameters())
except Hard as error:
    print("caught", error)
print(sha(model.body.parameters()))
