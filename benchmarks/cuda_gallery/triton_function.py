"""A hand-written Triton kernel (scaled SiLU) inside an autograd.Function."""
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


try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

if triton is not None:
    @triton.jit
    def forward_kernel(x, out, n, scale, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < n)
        tl.store(out + at, scale * v / (1.0 + tl.exp(-v)), mask=at < n)

    @triton.jit
    def backward_kernel(x, grad, out, n, scale, BLOCK: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        v = tl.load(x + at, mask=at < n)
        s = 1.0 / (1.0 + tl.exp(-v))
        tl.store(out + at, scale * tl.load(grad + at, mask=at < n) * s * (1.0 + v * (1.0 - s)), mask=at < n)


class SiLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        if not x.is_cuda:
            return scale * x * x.sigmoid()
        out = torch.empty_like(x)
        forward_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), scale, BLOCK=1024)
        return out

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        if not x.is_cuda:
            s = x.sigmoid()
            return ctx.scale * grad * s * (1 + x * (1 - s)), None
        grad, out = grad.contiguous(), torch.empty_like(x)
        backward_kernel[(triton.cdiv(x.numel(), 1024),)](x, grad, out, x.numel(), ctx.scale, BLOCK=1024)
        return out, None


class Act(nn.Module):
    def forward(self, x):
        return SiLU.apply(x, 1.5)


torch.manual_seed(43)
model = nn.Sequential(nn.Linear(64, 256), Act(), nn.Linear(256, 256), Act(), nn.Linear(256, 10)).to(DEV)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for i in range(50):
    x, y = batch(i)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x.to(DEV)), y.to(DEV))
    loss.backward()
    optimizer.step()
    if i % 5 == 0:
        print(i, loss.item().hex())
finish([model], 50)
