"""Soft actor-critic: critic, actor and temperature each have an optimizer and a backward pass; targets follow softly."""
import copy
import hashlib

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batch(size=16):
    inputs = torch.randn(size, 8)
    return inputs, inputs[:, :3].argmax(1)


def step(model, optimizer, size=16):
    inputs, targets = batch(size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item().hex()

actor = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
critics = nn.ModuleList(nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1)) for _ in range(2))
targets = copy.deepcopy(critics).requires_grad_(False)
log_alpha = torch.zeros(1, requires_grad=True)
opts = [torch.optim.Adam(critics.parameters(), lr=1e-3), torch.optim.Adam(actor.parameters(), lr=1e-3), torch.optim.Adam([log_alpha], lr=1e-2)]
buffer = [(torch.randn(8), torch.randn(2), torch.randn(()), torch.randn(8)) for _ in range(200)]


def act(states):
    mean = actor(states)
    sample = mean + 0.1 * torch.randn_like(mean)
    return sample.tanh(), -(sample - mean).square().sum(1)


for number in range(12):
    rows = [buffer[i] for i in torch.randint(200, (32,)).tolist()]
    s, a, r, n = (torch.stack(column) for column in zip(*rows))
    with torch.no_grad():
        na, logp = act(n)
        q = torch.min(*(t(torch.cat([n, na], 1))[:, 0] for t in targets)) - log_alpha.exp() * logp
        y = r + 0.99 * q
    loss = sum((c(torch.cat([s, a], 1))[:, 0] - y).square().mean() for c in critics)
    opts[0].zero_grad(); loss.backward(); opts[0].step()
    na, logp = act(s)
    loss = (log_alpha.exp().detach() * logp - torch.min(*(c(torch.cat([s, na], 1))[:, 0] for c in critics))).mean()
    opts[1].zero_grad(); loss.backward(); opts[1].step()
    loss = -(log_alpha * (logp.detach() - 2)).mean()
    opts[2].zero_grad(); loss.backward(); opts[2].step()
    with torch.no_grad():
        for c, t in zip(critics.parameters(), targets.parameters()):
            t.lerp_(c, 0.01)
print(sha([*actor.parameters(), *critics.parameters(), *targets.parameters(), log_alpha]))
