"""threading.Timer saves a checkpoint every two milliseconds, each timer starts the next."""
import hashlib
import io
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
generator, over, saved = torch.Generator().manual_seed(1), threading.Event(), []
step(model, optimizer, generator)


def save():
    kept = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, kept)
    saved.append(len(kept.getvalue()) > 1000)
    if not over.is_set():
        timer = threading.Timer(0.002, save)
        timer.start()


save()
for _ in range(100):
    loss = step(model, optimizer, generator)
over.set()
for thread in threading.enumerate():
    if thread is not threading.main_thread() and isinstance(thread, threading.Timer):
        thread.join()
print(all(saved), len(saved) > 0, loss.hex(), sha(model.parameters()))
