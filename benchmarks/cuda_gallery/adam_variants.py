"""Adam: foreach, fused, capturable (its update captured in a graph), one after another."""
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


torch.manual_seed(10)
for kind in ("foreach", "fused", "capturable", "for-loop"):
    model = net(128).to(DEV)
    options = {"foreach": {"foreach": True}, "fused": {"fused": True}, "for-loop": {"foreach": False},
               "capturable": {"capturable": DEV == "cuda"}}[kind]
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3, device=DEV) if kind == "capturable" else 1e-3,
                                  **options)
    for i in range(16):
        x, y = batch(i)
        loss = F.cross_entropy(model(x.to(DEV)), y.to(DEV))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 5 == 0:
            print(kind, i, loss.item().hex())
    print(kind, sum(p.double().sum().item() for p in model.parameters()).hex())
    state = optimizer.state_dict()["state"][0]
    print(kind, sorted(state), state["step"].device.type, state["step"].item())
finish([model], 64)
