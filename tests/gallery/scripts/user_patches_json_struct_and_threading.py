"""Standard library functions that a recorder may need are broken by the user in mid-run: json.dumps, struct.pack, threading.Thread, queue, tempfile, os.write."""
import json
import queue
import struct
import tempfile
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

def refuse(*args, **kwargs):
    raise NotImplementedError("patched away")


model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(10):
    if number == 3:
        json.dumps = json.dump = struct.pack = refuse
        threading.Thread.start = queue.Queue.put = tempfile.mkstemp = refuse
    print(number, step(model, optimizer))
print(sha(model.parameters()))
