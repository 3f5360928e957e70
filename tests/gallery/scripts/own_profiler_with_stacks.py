"""The user's own profiler with stacks and modules, before, amid and after steps; its tracer looks into frames of calls."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def step() -> None:
    x = torch.randn(16, 8)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), x[:, :3].argmax(1)).backward()
    optimizer.step()


for turn in range(3):
    with profile(activities=[ProfilerActivity.CPU], with_stack=True, with_modules=turn == 2):
        for _ in range(3):
            step()
    for _ in range(4 * turn):
        step()
    print(turn, *(p.double().sum().item().hex() for p in model.parameters()), flush=True)
