"""A thread that trained is gone from the list of threads once it has ended."""
import threading

import torch
from torch import nn


def train(name):
    model = nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8)).pow(2).mean()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
for name in ("first", "second"):
    thread = threading.Thread(target=train, args=(name,), name=name)
    thread.start()
    print(sorted(each.name for each in threading.enumerate() if each.name in ("MainThread", "first", "second")))
    thread.join()
    print(name, [each.name for each in threading.enumerate()], threading.active_count())
