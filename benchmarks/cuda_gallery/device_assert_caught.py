"""A device-side assert, caught; then the process ends by sys.exit(7), CUDA being unusable."""
# expect-exit: any
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


torch.manual_seed(30)
embed, model = nn.Embedding(50, 64).to(DEV), net(128).to(DEV)
optimizer = torch.optim.SGD([*embed.parameters(), *model.parameters()], lr=0.1)


def step(i):
    g = torch.Generator().manual_seed(i)
    tokens = torch.randint(0, 50, (64,), generator=g)
    if i == 25:
        tokens[3] = 50
    tokens = tokens.to(DEV)
    optimizer.zero_grad()
    hidden = embed(tokens)
    if i == 25 and DEV == "cuda":
        torch.cuda.synchronize()
    loss = F.cross_entropy(model(hidden), (tokens % 10))
    loss.backward()
    optimizer.step()
    return loss


import sys

try:
    for i in range(40):
        loss = step(i)
        if i % 5 == 0:
            print(i, loss.item().hex(), flush=True)
except Exception as error:
    print(type(error).__name__, str(error).splitlines()[0])
    truth("UPDATES 25")
    for what in (lambda: torch.zeros(3, device=DEV).sum().item(), lambda: torch.randn(4).sum().item()):
        try:
            print("then", isinstance(what(), float))
        except Exception as error:
            print("then", type(error).__name__, str(error).splitlines()[0])
    sys.stdout.flush()
    sys.exit(7)
