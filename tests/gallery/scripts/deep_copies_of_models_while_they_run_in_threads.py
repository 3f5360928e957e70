"""Models are copied, saved and deleted by other threads in the middle of their forward passes."""
import copy
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


model = net(48)
begun, copied = threading.Barrier(2), threading.Barrier(2)
results = []


def keep():
    for _ in range(15):
        begun.wait()
        kept = copy.deepcopy(model)
        torch.save(kept, io.BytesIO())
        results.append(sha(kept.parameters()))
        copied.wait()


calls = [0]


def meet(module, inputs, output):
    calls[0] += 1
    if calls[0] % 2 == 0:
        begun.wait()
        copied.wait()


optimizer, generator = torch.optim.SGD(model.parameters(), lr=0.1), torch.Generator().manual_seed(1)
kept_forward = model[1].forward
meeting = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: meet(module, inputs, output) if module is model[1] else None)
thread = threading.Thread(target=keep)
thread.start()
for _ in range(30):
    loss = step(model, optimizer, generator)
meeting.remove()
thread.join()
print(len(results), results[0], results[-1], loss.hex(), sha(model.parameters()))
