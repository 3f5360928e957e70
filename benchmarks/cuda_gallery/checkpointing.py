"""Activation checkpointing with dropout and preserve_rng_state, reentrant and not, checkpoint_sequential too."""
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


from torch.utils.checkpoint import checkpoint, checkpoint_sequential

torch.manual_seed(32)
first, second, third = net(128, 3, 64, 64, 0.3).to(DEV), net(128, 3, 64, 64, 0.3).to(DEV), net(128, 3, 64, 10, 0.3).to(DEV)
parameters = [p for m in (first, second, third) for p in m.parameters()]
optimizer = torch.optim.AdamW(parameters, lr=1e-3)
for i in range(40):
    x, y = batch(i)
    x, y = x.to(DEV).requires_grad_(), y.to(DEV)
    hidden = checkpoint(first, x, use_reentrant=False, preserve_rng_state=True)
    hidden = checkpoint(second, hidden, use_reentrant=True, preserve_rng_state=True)
    loss = F.cross_entropy(checkpoint_sequential(third, 2, hidden, use_reentrant=False), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if i % 5 == 0:
        print(i, loss.item().hex(), x.grad.sum().item().hex())
if DEV == "cuda":
    print("peak", torch.cuda.max_memory_allocated())
finish([first, second, third], 40)
