"""SimCLR: two views, NT-Xent on 2B x 2B, linear probe by sklearn afterwards."""

import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn

torch.manual_seed(0)
enc = nn.Sequential(
    nn.Conv2d(3, 32, 3, 2, 1),
    nn.ReLU(),
    nn.Conv2d(32, 64, 3, 2, 1),
    nn.ReLU(),
    nn.Conv2d(64, 128, 3, 2, 1),
    nn.ReLU(),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
)
proj = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
opt = torch.optim.AdamW([*enc.parameters(), *proj.parameters()], 1e-3)
imgs, labels = torch.rand(4096, 3, 32, 32), torch.randint(0, 10, (4096,))


def aug(x):
    if torch.rand(()) > 0.5:
        x = x.flip(3)
    x = x + 0.1 * torch.randn_like(x)
    i, j = torch.randint(0, 5, (2,)).tolist()
    return F.pad(x, (2, 2, 2, 2), mode="reflect")[:, :, i : i + 32, j : j + 32]


for b in torch.randperm(4096).split(1024):
    z = F.normalize(proj(enc(torch.cat([aug(imgs[b]), aug(imgs[b])]))), dim=1)
    sim = z @ z.T / 0.2
    sim = sim.masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    n = len(b)
    t = torch.cat([torch.arange(n) + n, torch.arange(n)])
    loss = F.cross_entropy(sim, t)
    opt.zero_grad()
    loss.backward()
    opt.step()
    print(loss.item())
enc.eval()
with torch.no_grad():
    feats = torch.cat([enc(c) for c in imgs.split(1024)]).numpy()
clf = LogisticRegression(max_iter=20).fit(feats[:3000], labels[:3000].numpy())
print(clf.score(feats[3000:], labels[3000:].numpy()))
