"""Prints exact numbers of the caching allocator: they must be the bare run's."""
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


torch.manual_seed(34)
model = net(32).to(DEV)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


def memory():
    if DEV != "cuda":
        return ()
    stats = torch.cuda.memory_stats()
    return [torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated(), torch.cuda.memory_reserved(),
            torch.cuda.max_memory_reserved(), *(stats[key] for key in (
                "allocation.all.allocated", "allocation.all.current", "segment.all.allocated", "requested_bytes.all.peak",
                "inactive_split_bytes.all.current", "num_alloc_retries", "num_device_alloc", "num_device_free"))]


for i in range(48):
    x, y = batch(i, 64 + 16 * (i % 3))
    x, y = x.to(DEV), y.to(DEV)
    if DEV == "cuda" and i % 6 == 0:
        torch.cuda.reset_peak_memory_stats()
    if DEV == "cuda" and i == 24:
        torch.cuda.empty_cache()
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if i % 4 == 3:
        print(i, loss.item().hex(), *memory())
del x, y, loss
optimizer.zero_grad(set_to_none=True)
print("end", *memory())
if DEV == "cuda":
    torch.cuda.empty_cache()
    print("emptied", torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), len(torch.cuda.memory_snapshot()))
finish([model], 48)
