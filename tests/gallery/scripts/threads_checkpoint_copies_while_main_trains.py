"""A thread copies, pickles and saves the model and the optimizer all the time while the main thread trains."""
import copy
import hashlib
import io
import pickle
import threading

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def net(width=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def batch(generator, size=16):
    inputs = torch.randn(size, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def step(model, optimizer, generator, size=16):
    inputs, targets = batch(generator, size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


model = net(64)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
generator = torch.Generator().manual_seed(1)
step(model, optimizer, generator)
over, first, copies, failures = threading.Event(), threading.Event(), [0], []


def save():
    while not over.is_set():
        try:
            copied = copy.deepcopy(model)
            states = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
            torch.save([copied, *states], io.BytesIO())
            pickle.loads(pickle.dumps(copied))
        except Exception as error:
            if "different storage" not in str(error):
                failures.append(repr(error))
        copies[0] += 1
        first.set()


thread = threading.Thread(target=save)
thread.start()
first.wait()
losses = [step(model, optimizer, generator).hex() for _ in range(60)]
over.set()
thread.join()
print(copies[0] > 0, failures, losses[-1], sha(model.parameters()))
