"""Wide MLP, checkpoint with optimizer state each epoch, keep the best in memory."""

import copy
import os

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
X = torch.randn(4000, 512)
W = torch.randn(512, 1)
Y = (X @ W).squeeze(1) + 0.1 * torch.randn(4000)
n = 3200
model = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 1))
optim = torch.optim.Adam(model.parameters(), lr=3e-4)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim, 3)
best, best_state = float("inf"), None
os.makedirs("ckpt", exist_ok=True)
for epoch in range(3):
    perm = torch.randperm(n)
    for i in range(0, n, 256):
        idx = perm[i : i + 256]
        optim.zero_grad()
        F.mse_loss(model(X[idx]).squeeze(1), Y[idx]).backward()
        optim.step()
    sched.step()
    with torch.no_grad():
        val = F.mse_loss(model(X[n:]).squeeze(1), Y[n:]).item()
    print(epoch, val)
    torch.save(
        {"epoch": epoch, "model": model.state_dict(), "optim": optim.state_dict(), "sched": sched.state_dict()},
        "ckpt/last.pt",
    )
    if val < best:
        best, best_state = val, copy.deepcopy(model.state_dict())
model.load_state_dict(best_state)
print("best", best)
