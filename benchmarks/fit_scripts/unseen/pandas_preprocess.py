"""A table made with pandas: one-hot, z-scores, a join; then an MLP."""

import numpy as np
import pandas as pd
import torch
from torch import nn

rng = np.random.default_rng(3)
n = 150_000
df = pd.DataFrame({f"x{i}": rng.normal(size=n) for i in range(20)})
df["city"] = rng.integers(0, 60, n).astype(str)
df["kind"] = rng.choice(list("abcdef"), n)
means = df.groupby("city")["x0"].mean().rename("city_mean").reset_index()
df = df.merge(means, on="city", how="left")
df = pd.get_dummies(df, columns=["city", "kind"], dtype=np.float32)
target = (df["x0"] + df["x1"] * df["city_mean"] > 0).astype(np.int64)
values = ((df - df.mean()) / df.std()).fillna(0.0).to_numpy(dtype=np.float32)
X, y = torch.from_numpy(values), torch.from_numpy(target.to_numpy())
del df
ds = torch.utils.data.TensorDataset(X, y)
train, test = torch.utils.data.random_split(ds, [120_000, 30_000])
net = nn.Sequential(nn.Linear(X.shape[1], 128), nn.ReLU(), nn.Linear(128, 2))
opt = torch.optim.Adam(net.parameters())
for a, b in torch.utils.data.DataLoader(train, batch_size=4096, shuffle=True):
    opt.zero_grad()
    nn.functional.cross_entropy(net(a), b).backward()
    opt.step()
net.eval()
with torch.no_grad():
    right = sum((net(a).argmax(1) == b).sum().item() for a, b in torch.utils.data.DataLoader(test, batch_size=10_000))
print(right / 30_000)
