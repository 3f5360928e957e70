"""Line search over a loop of LSTM cells: thousands of operations in one optimizer step, as in time_sequence_prediction."""
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
        self.cell, self.head = nn.LSTMCell(1, 6), nn.Linear(6, 1)

    def forward(self, series):
        state, outputs = None, []
        for value in series.split(1, dim=1):
            state = self.cell(value, state)
            outputs.append(self.head(state[0]))
        return torch.cat(outputs, 1)


model = Net().double()
series = torch.sin(torch.arange(4 * 24, dtype=torch.double).reshape(4, 24) / 5)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=8, line_search_fn="strong_wolfe")
for number in range(4):
    calls = 0

    def closure():
        global calls
        calls += 1
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(series[:, :-1]), series[:, 1:])
        loss.backward()
        return loss

    print(number, optimizer.step(closure).item().hex(), calls)
    with torch.no_grad():
        print("test", model(series[:2, :-1]).sum().item().hex())
print(sha(model.parameters()))
