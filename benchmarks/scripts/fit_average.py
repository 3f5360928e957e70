"""An average of the parameters beside them, and data in an array of numpy. A script for `benchmarks.fit_limit`."""

import copy

import numpy as np
import torch
from torch import nn

torch.manual_seed(0)
torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(2000, 4000), nn.ReLU(), nn.Linear(4000, 4000), nn.ReLU(), nn.Linear(4000, 10))
average = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
rows = np.random.default_rng(0).random((20_000, 2000), dtype="float32")
for step in range(8):
    x, y = torch.from_numpy(rows[step * 64 : step * 64 + 64]), torch.zeros(64, dtype=torch.long)
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    with torch.no_grad():
        for mean, parameter in zip(average.parameters(), model.parameters(), strict=True):
            mean.lerp_(parameter, 0.01)
torch.save(copy.deepcopy(average.state_dict()), "average.pt")
print(loss.item())
