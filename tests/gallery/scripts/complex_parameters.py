"""Complex parameters and complex gradients through a module with an FFT."""
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

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.complex64))

    def forward(self, inputs):
        return torch.fft.irfft(torch.fft.rfft(inputs) * self.filter, n=8)


model = Net()
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for number in range(10):
    inputs = torch.randn(6, 8)
    optimizer.zero_grad()
    loss = (model(inputs) - inputs.roll(1, 1)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(number, loss.item().hex())
print(sha([torch.view_as_real(model.filter)]))
