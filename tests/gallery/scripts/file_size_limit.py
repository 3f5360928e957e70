"""RLIMIT_FSIZE of a few bytes with SIGXFSZ ignored: any write beyond it fails, the user's own is tried and caught."""
# runner: stdout=pipe
import resource
import signal
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

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(20):
    if number == 5:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    print(number, step(model, optimizer))
try:
    with open("large.bin", "wb", buffering=0) as data:
        print(data.write(b"x" * 100))
        data.write(b"x")
except OSError as error:
    print(error.strerror)
print(sha(model.parameters()), flush=True)
