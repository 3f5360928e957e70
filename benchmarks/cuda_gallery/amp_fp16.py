"""fp16 autocast with GradScaler; steps are skipped: at first (huge scale) and where a batch has inf."""
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


torch.manual_seed(1)
model = net().to(DEV)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler(DEV, init_scale=2.0**24, growth_interval=10)
HALF = torch.float16 if DEV == "cuda" else torch.bfloat16
updates = 0
for i in range(50):
    x, y = batch(i)
    x, y = x.to(DEV), y.to(DEV)
    if i in (20, 21, 33):
        x[0, 0, 0, 0] = float("inf")
    optimizer.zero_grad(set_to_none=True)
    with torch.autocast(DEV, dtype=HALF):
        loss = F.cross_entropy(model(x) if i not in (20, 21, 33) else model.eval()(x), y)
    model.train()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    before = scaler.get_scale()
    scaler.step(optimizer)
    scaler.update()
    skipped = scaler.get_scale() < before
    updates += not skipped
    if i % 5 == 0 or skipped:
        print(i, repr(loss.item()), scaler.get_scale(), "skipped" if skipped else "")
print("updates", updates)
finish([model], updates)
