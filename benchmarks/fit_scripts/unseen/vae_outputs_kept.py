"""VAE; the latents and reconstructions of each validation batch are kept for a figure."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(0)


class VAE(nn.Module):
    def __init__(self, z=32):
        super().__init__()
        self.enc = nn.Sequential(
            nn.Conv2d(1, 32, 4, 2, 1), nn.ReLU(), nn.Conv2d(32, 64, 4, 2, 1), nn.ReLU(), nn.Flatten()
        )
        self.mu, self.lv = nn.Linear(64 * 256, z), nn.Linear(64 * 256, z)
        self.dec = nn.Sequential(
            nn.Linear(z, 64 * 256),
            nn.Unflatten(1, (64, 16, 16)),
            nn.ConvTranspose2d(64, 32, 4, 2, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(32, 1, 4, 2, 1),
        )

    def forward(self, x):
        h = self.enc(x)
        mu, lv = self.mu(h), self.lv(h)
        z = mu + torch.randn_like(mu) * (0.5 * lv).exp()
        return self.dec(z).sigmoid(), mu, lv


vae = VAE()
opt = torch.optim.Adam(vae.parameters(), 1e-3)
train, val = torch.rand(512, 1, 64, 64), torch.rand(3000, 1, 64, 64)
for epoch in range(2):
    for x in train.split(64):
        r, mu, lv = vae(x)
        loss = (
            F.binary_cross_entropy(r, x, reduction="sum") / len(x) - 0.5 * (1 + lv - mu.pow(2) - lv.exp()).sum(1).mean()
        )
        opt.zero_grad()
        loss.backward()
        opt.step()
    recs, zs = [], []
    for x in val.split(100):
        r, mu, _ = vae(x)
        recs.append(r.detach())
        zs.append(mu.detach().numpy())
    recs = torch.cat(recs)
    print(epoch, recs.mean().item())
