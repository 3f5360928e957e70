"""DQN: a target net evaluated under no_grad, single calls of the net to act, and state dicts copied at times."""
import random
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

random.seed(0)
online, target = nn.Linear(4, 2), nn.Linear(4, 2)
target.load_state_dict(online.state_dict())
optimizer = torch.optim.RMSprop(online.parameters(), lr=1e-2)
memory, state = [], torch.zeros(4)
for number in range(20):
    with torch.no_grad():
        action = online(state).argmax().item() if random.random() > 0.2 else random.randrange(2)
    following = torch.tanh(state + torch.randn(4))
    memory.append((state, action, following.sum().item(), following))
    state = following
    if len(memory) < 9:
        continue
    chosen = random.sample(memory, 8)
    states, actions = torch.stack([c[0] for c in chosen]), torch.tensor([[c[1]] for c in chosen])
    with torch.no_grad():
        goal = torch.tensor([c[2] for c in chosen]) + 0.9 * target(torch.stack([c[3] for c in chosen])).max(1).values
    loss = nn.functional.smooth_l1_loss(online(states).gather(1, actions).squeeze(1), goal)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(number, loss.item().hex())
    if number % 5 == 0:
        target.load_state_dict(online.state_dict())
print(sha(online.parameters()), random.random())
