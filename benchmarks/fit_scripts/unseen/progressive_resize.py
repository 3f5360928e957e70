"""Progressive resizing: images grow from epoch to epoch, batch shrinks."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)
full = torch.rand(240, 3, 96, 96)
lab = torch.randint(0, 5, (240,))


class Res(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)
        self.na, self.nb = nn.GroupNorm(4, c), nn.GroupNorm(4, c)

    def forward(self, x):
        return F.relu(x + self.nb(self.b(F.relu(self.na(self.a(x))))))


net = nn.Sequential(
    nn.Conv2d(3, 32, 5, 2, 2),
    Res(32),
    nn.Conv2d(32, 64, 3, 2, 1),
    Res(64),
    nn.AdaptiveMaxPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 5),
)
opt = torch.optim.Adam(net.parameters(), 1e-3)
sched = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=60)
for size, bs in ((32, 60), (64, 48), (96, 40)):
    small = F.interpolate(full, size=(size, size), mode="bilinear", align_corners=False)
    for i in range(0, 240, bs):
        xb = small[i : i + bs]
        if torch.rand(1).item() < 0.5:
            xb = xb.flip(-1)
        loss = F.cross_entropy(net(xb), lab[i : i + bs])
        opt.zero_grad()
        loss.backward()
        opt.step()
        sched.step()
    print(size, loss.item())
