"""RLIMIT_NOFILE so low that the script's own next open fails at times, and works again after it closes a file."""
import os
import resource
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
step(model, optimizer)
highest = max(int(name) for name in os.listdir("/proc/self/fd"))
limit = resource.getrlimit(resource.RLIMIT_NOFILE)
kept = []
for number in range(13):
    if number == 3:
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 6, limit[1]))
        try:
            while True:
                kept.append(open("/dev/null"))
        except OSError as error:
            print(error.strerror)
    if number == 9:
        [file.close() for file in kept]
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    print(number, step(model, optimizer))
with open("mine.txt", "w") as text:
    text.write("mine\n")
print(open("mine.txt").read().strip(), sha(model.parameters()))
