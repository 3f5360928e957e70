"""The whole step (forward, backward, update) captured by torch.cuda.graph and replayed, then captured anew."""
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


torch.manual_seed(6)
model = net(256).to(DEV)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
static_x, static_y = torch.randn(128, 64, device=DEV), torch.randint(0, 10, (128,), device=DEV)
updates = 0


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = F.cross_entropy(model(static_x), static_y)
    loss.backward()
    optimizer.step()
    return loss


def warm_up():
    global updates
    if DEV == "cuda":
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
    else:
        for _ in range(3):
            step()
    updates += 3


def capture():
    if DEV != "cuda":
        return None, None
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = F.cross_entropy(model(static_x), static_y)
        loss.backward()
        optimizer.step()
    return graph, loss


for part in range(2):
    warm_up()
    graph, static_loss = capture()
    for i in range(40):
        x, y = batch(100 * part + i)
        static_x.copy_(x)
        static_y.copy_(y)
        if graph is not None:
            graph.replay()
            loss = static_loss
        else:
            loss = step()
        updates += 1
        if i % 8 == 0:
            print(part, i, loss.item().hex())
print("updates", updates)
finish([model], updates)
