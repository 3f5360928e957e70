"""DistributedDataParallel over NCCL with one process, no_sync for accumulation."""
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


import tempfile
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.manual_seed(46)
folder = tempfile.mkdtemp()
dist.init_process_group("nccl" if DEV == "cuda" else "gloo", init_method=f"file://{folder}/rendezvous", rank=0, world_size=1,
                        **({"device_id": torch.device("cuda", 0)} if DEV == "cuda" else {}))
model = net(256).to(DEV)
ddp = DistributedDataParallel(model, device_ids=[0] if DEV == "cuda" else None)
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
updates = 0
for i in range(60):
    x, y = batch(i)
    x, y = x.to(DEV), y.to(DEV)
    if i % 2 == 0:
        with ddp.no_sync():
            F.cross_entropy(ddp(x), y).backward()
        continue
    loss = F.cross_entropy(ddp(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    updates += 1
    if updates % 4 == 0:
        total = loss.detach().clone()
        dist.all_reduce(total)
        print(i, total.item().hex())
dist.barrier()
dist.destroy_process_group()
finish([model], updates)
