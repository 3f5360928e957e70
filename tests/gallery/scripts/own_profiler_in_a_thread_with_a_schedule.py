"""torch.profiler with a schedule runs in a thread that trains while the main thread trains too."""
import hashlib
import threading

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def net(width=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def batch(generator, size=16):
    inputs = torch.randn(size, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def step(model, optimizer, generator, size=16):
    inputs, targets = batch(generator, size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


from torch.profiler import ProfilerActivity, profile, schedule

ready, results = [], {}


def work():
    model, generator = net(24, 1), torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
                 on_trace_ready=lambda found: ready.append(any(event.key == "aten::addmm" for event in found.key_averages()))) as own:
        for _ in range(10):
            step(model, optimizer, generator)
            own.step()
    results["thread"] = sha(model.parameters())


thread = threading.Thread(target=work)
thread.start()
model, generator = net(32), torch.Generator().manual_seed(2)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for _ in range(60):
    loss = step(model, optimizer, generator)
thread.join()
print(ready, results, loss.hex(), sha(model.parameters()))
