"""Trains on the CPU although a GPU is there: CUDA must stay uninitialised."""
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
DEV = 'cpu'


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


def traces():
    """What of CUDA is in this process."""
    with open("/proc/self/maps") as file:
        maps = file.read()
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(os.readlink(f"/proc/self/fd/{fd}"))
        except OSError:
            pass
    return (torch.cuda.is_initialized(), "libcuda.so" in maps, "libnvidia-ml.so" in maps,
            sum(name.startswith("/dev/nvidia") for name in names))


torch.manual_seed(3)
torch.set_num_threads(2)
print("before", traces())
with torch.no_grad():  # no backward pass yet: the engine of autograd counts devices
    weight, bias = torch.randn(64, 10) * 0.1, torch.zeros(10)
    for i in range(10):
        x, y = batch(i)
        p = (x @ weight + bias).softmax(1)
        p[torch.arange(len(y)), y] -= 1
        weight -= 0.1 * x.T @ p / len(y)
        bias -= 0.1 * p.mean(0)
print("by hand", traces(), weight.sum().item().hex())
model = net()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(40):
    x, y = batch(i)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if i % 5 == 0:
        print(i, loss.item().hex(), torch.cuda.is_initialized())
print("after", traces())
finish([model], 40)
print("initialised", torch.cuda.is_initialized())
