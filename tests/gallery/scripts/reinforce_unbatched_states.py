"""REINFORCE as in pytorch/examples: dozens of unbatched calls with gradients, then one backward and one step an episode."""
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

policy = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
for episode in range(6):
    state, logs, rewards = torch.zeros(4), [], []
    for _ in range(10 + 3 * episode):
        chances = torch.distributions.Categorical(logits=policy(state))
        action = chances.sample()
        logs.append(chances.log_prob(action))
        state = torch.tanh(state + 0.1 * torch.randn(4) + 0.1 * (action.item() - 0.5))
        rewards.append(-state.abs().sum().item())
    loss = -(torch.stack(logs) * (torch.tensor(rewards) - sum(rewards) / len(rewards))).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(episode, loss.item().hex())
print(sha(policy.parameters()))
