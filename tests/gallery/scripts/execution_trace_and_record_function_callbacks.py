"""An ExecutionTraceObserver of the user and many nested record_function ranges around and inside the model."""
import json
import os
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

from torch.profiler import ExecutionTraceObserver, record_function

observer = ExecutionTraceObserver().register_callback("trace.json")
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    if number == 4:
        observer.start()
    with record_function("outer"), record_function("## weird {name} \u2603"):
        print(number, step(model, optimizer))
    if number == 5:
        observer.stop()
observer.unregister_callback()
names = [node["name"] for node in json.load(open("trace.json"))["nodes"]]
print(names.count("outer"), names.count("aten::addmm"))
os.remove("trace.json")
print(sha(model.parameters()))
