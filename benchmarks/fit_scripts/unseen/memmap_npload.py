"""np.save, np.load(mmap_mode='r') and a Dataset that reads rows."""

import os

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

if not os.path.exists("features.npy"):
    rng = np.random.default_rng(0)
    np.save("features.npy", rng.standard_normal((6000, 4096), dtype=np.float32))
    np.save("labels.npy", rng.integers(0, 20, 6000))


class Rows(Dataset):
    def __init__(self):
        self.x = np.load("features.npy", mmap_mode="r")
        self.y = np.load("labels.npy")

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return torch.from_numpy(self.x[i].copy()), int(self.y[i])


net = torch.nn.Sequential(
    torch.nn.Linear(4096, 1024), torch.nn.ReLU(), torch.nn.Dropout(0.3), torch.nn.Linear(1024, 20)
)
opt = torch.optim.RMSprop(net.parameters(), lr=1e-4)
for epoch in range(2):
    for x, y in DataLoader(Rows(), batch_size=256, shuffle=True):
        loss = torch.nn.functional.cross_entropy(net(x), y)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
    print(epoch, float(loss))
