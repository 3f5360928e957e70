"""A small 3-D U-Net on patches; dice loss; sliding-window validation."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


def cb(i, o):
    return nn.Sequential(
        nn.Conv3d(i, o, 3, padding=1),
        nn.InstanceNorm3d(o),
        nn.LeakyReLU(0.01, inplace=True),
        nn.Conv3d(o, o, 3, padding=1),
        nn.InstanceNorm3d(o),
        nn.LeakyReLU(0.01, inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, c=8):
        super().__init__()
        self.d1, self.d2, self.mid = cb(1, c), cb(c, 2 * c), cb(2 * c, 4 * c)
        self.u2, self.u1 = nn.ConvTranspose3d(4 * c, 2 * c, 2, 2), nn.ConvTranspose3d(2 * c, c, 2, 2)
        self.c2, self.c1, self.out = cb(4 * c, 2 * c), cb(2 * c, c), nn.Conv3d(c, 3, 1)

    def forward(self, x):
        a = self.d1(x)
        b = self.d2(F.max_pool3d(a, 2))
        m = self.mid(F.max_pool3d(b, 2))
        m = self.c2(torch.cat([self.u2(m), b], 1))
        return self.out(self.c1(torch.cat([self.u1(m), a], 1)))


def dice(logits, y):
    p = logits.softmax(1)
    t = F.one_hot(y, 3).permute(0, 4, 1, 2, 3).float()
    return 1 - (2 * (p * t).sum((2, 3, 4)) / ((p + t).sum((2, 3, 4)) + 1e-5)).mean()


net = UNet()
opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.99, nesterov=True)
for step in range(3):
    x, y = torch.randn(2, 1, 32, 32, 32), torch.randint(0, 3, (2, 32, 32, 32))
    logits = net(x)
    loss = dice(logits, y) + F.cross_entropy(logits, y)
    opt.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 12)
    opt.step()
net.eval()
vol = torch.randn(1, 1, 64, 64, 64)
out = torch.zeros(1, 3, 64, 64, 64)
with torch.no_grad():
    for z in range(0, 64, 32):
        for yy in range(0, 64, 32):
            for xx in range(0, 64, 32):
                out[..., z : z + 32, yy : yy + 32, xx : xx + 32] = net(vol[..., z : z + 32, yy : yy + 32, xx : xx + 32])
print(out.argmax(1).float().mean())
