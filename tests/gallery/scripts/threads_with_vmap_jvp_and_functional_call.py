"""Threads train by torch.func, with functional_call, vmap and grad, and by plain modules at the same time."""
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


from torch.func import functional_call, grad, jvp, vmap


def work(rank):
    generator, model = torch.Generator().manual_seed(rank), net(16, rank)
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights, inputs, target):
        return nn.functional.cross_entropy(functional_call(model, weights, (inputs[None],)), target[None])

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(8):
        inputs, targets = batch(generator, 8)
        if number % 3 == 2:
            step(model, optimizer, generator)
            continue
        gradients = vmap(grad(loss), in_dims=(None, 0, 0))(weights, inputs, targets)
        weights = {name: weight - 0.1 * gradients[name].mean(0) for name, weight in weights.items()}
    return rank, sha(weights.values()), sha(model.parameters())


model, inputs = net(16), torch.ones(4, 8)
print(jvp(model, (inputs,), (inputs,))[1].sum().item().hex())  # whose level is one of all threads
work(0)
with concurrent.futures.ThreadPoolExecutor(3) as pool:
    for result in pool.map(work, range(6)):
        print(*result)
