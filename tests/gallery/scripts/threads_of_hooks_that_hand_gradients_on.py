"""Gradient hooks hand gradients to a pool that clips and sums them, as overlapping all-reduce does."""
import concurrent.futures
import hashlib

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


model, generator = net(48), torch.Generator().manual_seed(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
pool, waiting = concurrent.futures.ThreadPoolExecutor(3), []


def reduce(parameter):
    parameter.grad.mul_(0.5)
    other = parameter.grad.detach().clone().requires_grad_()
    (other * other).sum().backward()
    return other.grad.norm().item()


def hook(parameter):
    waiting.append(pool.submit(reduce, parameter))


handles = [parameter.register_post_accumulate_grad_hook(hook) for parameter in model.parameters()]
for number in range(20):
    inputs, targets = batch(generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(inputs), targets).backward()
    norms = [done.result() for done in waiting]
    waiting.clear()
    optimizer.step()
    if number % 5 == 0:
        print(number, len(norms), sum(norms).hex())
pool.shutdown()
print(sha(model.parameters()))
