"""CUDA_VISIBLE_DEVICES=0 after importing torch and after some CPU calls of a model, then CUDA."""
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


torch.manual_seed(21)
model = net(64)
with torch.no_grad():
    print("before", model(batch(0)[0]).sum().item().hex(), torch.cuda.is_initialized())
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
DEV = "cuda" if torch.cuda.is_available() else "cpu"
print(DEV, torch.cuda.device_count() <= 1, torch.cuda.is_initialized())
model.to(DEV)
train(model, torch.optim.SGD(model.parameters(), lr=0.1), 0, 40)
finish([model], 40)
