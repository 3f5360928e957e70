"""A sandbox by sys.addaudithook: no file is written outside the current folder, no process started, no socket opened."""
import os
import sys
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


home = os.getcwd()
refused = []


def sandbox(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and isinstance(arguments[2], int) and arguments[2] & 3:
        if not os.path.abspath(arguments[0]).startswith(home):
            raise PermissionError("not allowed to write there")
    elif event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "socket.connect", "os.system", "os.exec"):
        raise PermissionError("not allowed: " + event)


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
print(step(model, optimizer))
sys.addaudithook(sandbox)
for number in range(29):
    print(number, step(model, optimizer))
torch.save(model.state_dict(), "weights.pt")
try:
    open("/tmp/forbidden-by-the-sandbox", "w")
except PermissionError as error:
    print(error)
print(sha(model.parameters()))
