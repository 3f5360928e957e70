"""The user records memory history over some steps, looks at the snapshot, and switches it off."""
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


def net(width=32):
    return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
                         nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width), nn.ReLU(),
                         nn.Conv2d(2 * width, 2 * width, 3, stride=2, padding=1), nn.ReLU(),
                         nn.Flatten(), nn.Dropout(0.1), nn.Linear(2 * width * 64, 10))


def batch(i, n=64):
    g = torch.Generator().manual_seed(1000 + i)
    return torch.randn(n, 3, 32, 32, generator=g), torch.randint(0, 10, (n,), generator=g)


def train(model, optimizer, first, count, tell=5, n=64):
    for i in range(first, first + count):
        x, y = batch(i, n)
        x, y = x.to(DEV), y.to(DEV)
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        if i % tell == 0:
            print(i, loss.item().hex(), flush=True)


import collections
import pickle

torch.manual_seed(28)
model = net(16).to(DEV)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def show(name):
    snapshot = torch.cuda.memory._snapshot()
    traces = [entry for trace in snapshot["device_traces"] for entry in trace]
    print(name, sorted(collections.Counter(entry["action"] for entry in traces).items()))
    print(name, "segments", len(snapshot["segments"]), sum(s["total_size"] for s in snapshot["segments"]))
    frames = [frame["filename"] for entry in traces for frame in entry.get("frames", ())]
    print(name, "frames", any(frame == __file__ for frame in frames))


train(model, optimizer, 0, 8)
if DEV == "cuda":
    show("before")
    torch.cuda.memory._record_memory_history(max_entries=100000, stacks="python")
train(model, optimizer, 8, 12)
if DEV == "cuda":
    show("after 12")
train(model, optimizer, 20, 10)
if DEV == "cuda":
    torch.cuda.memory._dump_snapshot("snapshot.pickle")
    with open("snapshot.pickle", "rb") as file:
        print("dumped", sum(len(trace) for trace in pickle.load(file)["device_traces"]))
    torch.cuda.memory._record_memory_history(enabled=None)
train(model, optimizer, 30, 10)
if DEV == "cuda":
    show("switched off")
finish([model], 40)
