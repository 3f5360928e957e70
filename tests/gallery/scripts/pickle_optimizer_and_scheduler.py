"""Optimizer and scheduler are pickled and restored in mid-run."""
import pickle
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

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
for number in range(12):
    print(number, step(model, optimizer), scheduler.get_last_lr())
    scheduler.step()
    if number in (0, 4, 8):
        model, optimizer = pickle.loads(pickle.dumps((model, optimizer)))
        scheduler_state = scheduler.state_dict()
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
        scheduler.load_state_dict(scheduler_state)
print(sorted(vars(optimizer)), sha(model.parameters()))
