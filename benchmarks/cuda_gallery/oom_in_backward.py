"""An OutOfMemoryError in the backward pass (a custom Function that allocates), caught outside main, then exit code 9."""
# expect-exit: 9
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


torch.manual_seed(29)
model = net(1024, 6, 1024, drop=0.0).to(DEV)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if DEV == "cuda":
    torch.cuda.set_per_process_memory_fraction(2**30 / torch.cuda.get_device_properties(0).total_memory)


def step(i, n):
    g = torch.Generator().manual_seed(i)
    x = torch.randn(64, 1024, generator=g).to(DEV).repeat(n // 64, 1)
    y = torch.randint(0, 10, (64,), generator=g).to(DEV).repeat(n // 64)
    optimizer.zero_grad(set_to_none=True)
    if DEV == "cpu" and n > 512:
        raise torch.OutOfMemoryError("made up")
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss


def used():
    return (torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.cuda.memory_stats()["num_ooms"],
            torch.cuda.memory_stats()["num_alloc_retries"]) if DEV == "cuda" else ()


import sys


class Greedy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, much):
        ctx.much = much
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        if ctx.much:
            if DEV == "cpu":
                raise torch.OutOfMemoryError("made up")
            torch.empty(2**30, device=DEV)
        return grad, None


def main():
    for i in range(30):
        x, y = batch(i, 64, 1024)
        optimizer.zero_grad()
        loss = F.cross_entropy(Greedy.apply(model(x.to(DEV)), i >= 20), y.to(DEV))
        loss.backward()
        optimizer.step()
        if i % 4 == 0:
            print(i, loss.item().hex())


try:
    main()
except torch.OutOfMemoryError as error:
    frames = []
    tb = error.__traceback__
    while tb:
        if tb.tb_frame.f_code.co_filename == __file__:
            frames.append(tb.tb_frame.f_code.co_name)
        tb = tb.tb_next
    print("caught", str(error).split(".")[0], frames)
    error = None
    finish([model], 20)
    sys.exit(9)
