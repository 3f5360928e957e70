"""bf16 autocast on the CPU, conv net, torch.amp, EMA by AveragedModel."""

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn

torch.manual_seed(0)


class SE(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.f = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c // 4, 1), nn.SiLU(), nn.Conv2d(c // 4, c, 1), nn.Sigmoid()
        )

    def forward(self, x):
        return x * self.f(x)


def mb(i, o, s):
    return nn.Sequential(
        nn.Conv2d(i, 4 * i, 1, bias=False),
        nn.BatchNorm2d(4 * i),
        nn.SiLU(),
        nn.Conv2d(4 * i, 4 * i, 3, s, 1, groups=4 * i, bias=False),
        nn.BatchNorm2d(4 * i),
        nn.SiLU(),
        SE(4 * i),
        nn.Conv2d(4 * i, o, 1, bias=False),
        nn.BatchNorm2d(o),
    )


model = nn.Sequential(
    nn.Conv2d(3, 24, 3, 2, 1),
    mb(24, 32, 1),
    mb(32, 48, 2),
    mb(48, 96, 2),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(96, 50),
)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
opt = torch.optim.RAdam(model.parameters(), 1e-3)
data = [(torch.randn(24, 3, 96, 96), torch.randint(0, 50, (24,))) for _ in range(5)]
for x, y in data:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = nn.functional.cross_entropy(model(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    ema.update_parameters(model)
update_bn(data, ema)
ema.eval()
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    print(ema(data[0][0]).float().mean().item())
