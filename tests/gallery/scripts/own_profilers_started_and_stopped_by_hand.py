"""autograd.profiler, a short torch.profiler per step and emit functions, started in each state, nested wrongly at times."""
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

from torch.profiler import ProfilerActivity, profile

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(14):
    if number % 3 == 0:
        with torch.autograd.profiler.profile() as profiler, torch.autograd.profiler.record_function("mine"):
            loss = step(model, optimizer)
        names = [event.name for event in profiler.function_events]
        print(number, loss, names.count("aten::addmm"), names.count("mine"))
    elif number % 3 == 1:
        with profile(activities=[ProfilerActivity.CPU], record_shapes=True, profile_memory=True) as profiler:
            loss = step(model, optimizer)
        names = [event.name for event in profiler.events()]
        print(number, loss, names.count("aten::addmm"))
        profiler.export_chrome_trace("trace.json")
        __import__("os").remove("trace.json")
    else:
        print(number, step(model, optimizer))
print(torch.autograd._profiler_enabled(), sha(model.parameters()))
