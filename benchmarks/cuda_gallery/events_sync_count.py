"""CUDA events by the user; calls of torch.cuda.synchronize and of events are counted: nobody else may make any."""
import hashlib
import os

os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"

import torch
import torch.nn.functional as F
from torch import nn

torch.use_deterministic_algorithms(True)
torch.backends.cudnn.deterministic = True
torch.backends.cudnn.benchmark = False
torch.backends.cudnn.allow_tf32 = False
torch.backends.cuda.matmul.allow_tf32 = False
DEV = 'cuda' if torch.cuda.is_available() else 'cpu'


def truth(text):
    path = os.environ.get("STEPSCOPE_TRUTH")
    if path:
        with open(path, "a") as file:
            file.write(f"{text}\n")


def finish(models, updates):
    total = hashlib.sha256()
    for model in models:
        for name, value in sorted(model.state_dict().items()):
            total.update(name.encode())
            total.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    print("weights", total.hexdigest())
    print("rng", hashlib.sha256(torch.get_rng_state().numpy().tobytes()).hexdigest())
    if torch.cuda.is_initialized():
        print("cuda rng", hashlib.sha256(torch.cuda.get_rng_state().numpy().tobytes()).hexdigest())
    truth(f"UPDATES {updates}")


def net(wide=256, deep=4, inputs=64, outputs=10, drop=0.1):
    layers = [nn.Linear(inputs, wide), nn.ReLU()]
    for _ in range(deep):
        layers += [nn.Linear(wide, wide), nn.ReLU(), nn.Dropout(drop)]
    return nn.Sequential(*layers, nn.Linear(wide, outputs))


def batch(i, n=128, inputs=64):
    g = torch.Generator().manual_seed(1000 + i)
    return torch.randn(n, inputs, generator=g), torch.randint(0, 10, (n,), generator=g)


calls = {"synchronize": 0, "record": 0, "elapsed": 0, "event": 0, "stream": 0}
original = torch.cuda.synchronize


def synchronize(*args, **kwargs):
    calls["synchronize"] += 1
    return original(*args, **kwargs)


torch.cuda.synchronize = synchronize


def count(cls, name, key):
    method = getattr(cls, name)

    def counted(self, *args, **kwargs):
        calls[key] += 1
        return method(self, *args, **kwargs)
    setattr(cls, name, counted)


count(torch.cuda.Event, "record", "record")
count(torch.cuda.Event, "elapsed_time", "elapsed")
count(torch.cuda.Event, "synchronize", "event")
count(torch.cuda.Stream, "synchronize", "stream")
torch.manual_seed(33)
model = net(256).to(DEV)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
times = []
for i in range(50):
    x, y = batch(i)
    x, y = x.to(DEV), y.to(DEV)
    if DEV == "cuda":
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if DEV == "cuda":
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    if i % 5 == 0:
        print(i, loss.item().hex())
print(calls, len(times), all(0 < time < 10000 for time in times))
finish([model], 50)
