"""A thread registers and removes global module hooks and patches methods of classes while others train."""
import concurrent.futures
import hashlib
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


over, turns = threading.Event(), [0]
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


def meddle():
    while not over.is_set() or turns[0] < 3:
        handles = [register_module_forward_hook(lambda *_: None), register_module_forward_pre_hook(lambda *_: None)]
        kept = torch.optim.SGD.step
        torch.optim.SGD.step = lambda self, *values, **named: kept(self, *values, **named)
        torch.optim.SGD.step = kept
        for handle in handles:
            handle.remove()
        turns[0] += 1


def work(rank):
    generator, model = torch.Generator().manual_seed(rank), net(24, rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(15):
        step(model, optimizer, generator)
    return rank, sha(model.parameters())


thread = threading.Thread(target=meddle)
thread.start()
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    for result in pool.map(work, range(6)):
        print(*result)
over.set()
thread.join()
