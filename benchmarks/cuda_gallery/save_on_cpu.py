"""torch.autograd.graph.save_on_cpu, pinned: activations are offloaded; saved_tensors_hooks of the user in other steps."""
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


torch.manual_seed(31)
model = net(16).to(DEV)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
packed = [0, 0]


def pack(tensor):
    packed[0] += 1
    return tensor


def unpack(tensor):
    packed[1] += 1
    return tensor


for i in range(36):
    x, y = batch(i)
    x, y = x.to(DEV), y.to(DEV)
    optimizer.zero_grad()
    context = (torch.autograd.graph.save_on_cpu(pin_memory=DEV == "cuda") if i % 3
               else torch.autograd.graph.saved_tensors_hooks(pack, unpack))
    with context:
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if i % 4 == 0:
        print(i, loss.item().hex(), packed)
if DEV == "cuda":
    print("peak", torch.cuda.max_memory_allocated())
finish([model], 36)
