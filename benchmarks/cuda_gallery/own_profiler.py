"""The user's torch.profiler over some steps in the middle, CUDA activity included, twice."""
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


from torch.profiler import ProfilerActivity, profile, record_function, schedule

torch.manual_seed(9)
model = net(16).to(DEV)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if DEV == "cuda" else [])


def step(i):
    x, y = batch(i)
    x, y = x.to(DEV), y.to(DEV)
    optimizer.zero_grad()
    with record_function("mine"):
        loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    if i % 4 == 0:
        print(i, loss.item().hex())


def show(prof):
    counts = {event.key: event.count for event in prof.key_averages()}
    for key in ("mine", "aten::convolution", "aten::addmm", "aten::convolution_backward", "Optimizer.step#SGD.step",
                "cudaLaunchKernel"):
        print(key, counts.get(key))
    kernels = [event for event in prof.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    print("kernels", len(kernels) > 0, "conv", sum("ampere" in event.name or "gemm" in event.name for event in kernels))
    print("names", sorted({event.key for event in prof.key_averages() if "stepscope" in event.key.lower()}))


for i in range(12):
    step(i)
with profile(activities=activities) as prof:
    for i in range(12, 17):
        step(i)
show(prof)
for i in range(17, 30):
    step(i)
with profile(activities=activities, schedule=schedule(wait=1, warmup=2, active=3, repeat=1), on_trace_ready=show,
             record_shapes=True) as prof:
    for i in range(30, 40):
        step(i)
        prof.step()
for i in range(40, 50):
    step(i)
finish([model], 50)
