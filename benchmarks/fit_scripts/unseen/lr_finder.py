"""Learning-rate finder: state copied, swept, put back, then the training."""

import copy

import torch
from torch import nn

torch.manual_seed(0)


def lr_find(model, opt, crit, batches, lo=1e-6, hi=1.0, n=25):
    saved = copy.deepcopy(model.state_dict()), copy.deepcopy(opt.state_dict())
    lr, hist = lo, []
    for (x, y), _ in zip(batches, range(n)):
        for g in opt.param_groups:
            g["lr"] = lr
        opt.zero_grad()
        loss = crit(model(x), y)
        if hist and loss.item() > 4 * min(h[1] for h in hist):
            break
        loss.backward()
        opt.step()
        hist.append((lr, loss.item()))
        lr *= (hi / lo) ** (1 / n)
    model.load_state_dict(saved[0])
    opt.load_state_dict(saved[1])
    return min(hist, key=lambda h: h[1])[0] / 10


model = nn.Sequential(nn.Linear(1000, 3000), nn.SiLU(), nn.Linear(3000, 3000), nn.SiLU(), nn.Linear(3000, 10))
opt = torch.optim.NAdam(model.parameters(), lr=1e-4)
crit = nn.CrossEntropyLoss()


def batches():
    while True:
        yield torch.randn(128, 1000), torch.randint(0, 10, (128,))


lr = lr_find(model, opt, crit, batches())
print("lr", lr)
for g in opt.param_groups:
    g["lr"] = lr
it = batches()
for step in range(10):
    x, y = next(it)
    opt.zero_grad()
    crit(model(x), y).backward()
    opt.step()
