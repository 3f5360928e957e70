"""torch._dynamo.explain between steps counts graphs and breaks of a model with a disabled part."""
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
        self.body = net()

    @torch.compiler.disable
    def odd(self, outputs):
        return outputs * (2.0 if outputs.sum().item() > 0 else 1.0)

    def forward(self, inputs):
        return self.odd(self.body(inputs)) + 1


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    print(number, step(model, optimizer))
    if number in (3, 5):
        told = torch._dynamo.explain(model)(torch.ones(4, 8))
        print(told.graph_count, told.graph_break_count, told.op_count)
        torch._dynamo.reset()
print(sha(model.parameters()))
