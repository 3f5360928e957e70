"""DQN with a replay buffer that grows: deque of numpy arrays, target net."""

import collections
import random

import numpy as np
import torch
from torch import nn

random.seed(0)
torch.manual_seed(0)
rng = np.random.default_rng(0)
buffer = collections.deque(maxlen=20000)


def mk():
    return nn.Sequential(
        nn.Conv2d(4, 16, 8, 4),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 81, 256),
        nn.ReLU(),
        nn.Linear(256, 4),
    )


q, target = mk(), mk()
target.load_state_dict(q.state_dict())
opt = torch.optim.RMSprop(q.parameters(), 2.5e-4, alpha=0.95, centered=True)
obs = rng.integers(0, 255, (4, 84, 84), dtype=np.uint8)
for step in range(4000):
    if random.random() < 0.9:
        a = random.randrange(4)
    else:
        with torch.no_grad():
            a = int(q(torch.from_numpy(obs)[None].float() / 255).argmax())
    nxt = rng.integers(0, 255, (4, 84, 84), dtype=np.uint8)
    buffer.append((obs, a, rng.random(), nxt, rng.random() < 0.01))
    obs = nxt
    if step >= 500 and step % 50 == 0:
        batch = random.sample(buffer, 32)
        s, a_, r, s2, d = zip(*batch)
        s = torch.from_numpy(np.stack(s)).float() / 255
        s2 = torch.from_numpy(np.stack(s2)).float() / 255
        a_, r, d = torch.tensor(a_), torch.tensor(r, dtype=torch.float32), torch.tensor(d)
        with torch.no_grad():
            t = r + 0.99 * target(s2).max(1).values * (~d)
        loss = nn.functional.smooth_l1_loss(q(s).gather(1, a_[:, None]).squeeze(1), t)
        opt.zero_grad()
        loss.backward()
        opt.step()
    if step % 1000 == 0:
        target.load_state_dict(q.state_dict())
