"""The set of cores the process may use is what it was given, before and after training, in main and in a thread."""
import os
import threading
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
before = os.sched_getaffinity(0)
for number in range(8):
    print(number, step(model, optimizer), os.sched_getaffinity(0) == before, os.sched_getscheduler(0) == os.SCHED_OTHER)
with open("/proc/self/status") as text:
    allowed = [line.split()[1] for line in text if line.startswith("Cpus_allowed:")]
seen = []
thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0) == before))
thread.start()
thread.join()
os.sched_setaffinity(0, {min(before)})
print(len(before), seen, allowed, step(model, optimizer), sha(model.parameters()))
