"""Embeddings of threads have sparse gradients in one step and dense ones in the next; gradients are replaced by hand."""
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


def work(rank):
    generator = torch.Generator().manual_seed(rank)
    table, layer = nn.Embedding(500, 8, sparse=True), net(16, rank)
    with torch.no_grad():
        table.weight.copy_(torch.randn(500, 8, generator=generator))
    optimizers = torch.optim.SparseAdam(table.parameters(), lr=0.01), torch.optim.SGD(layer.parameters(), lr=0.1)
    for number in range(16):
        table.weight.grad = None
        table.sparse = number % 2 == 0
        layer.zero_grad()
        words = torch.randint(0, 500, (32,), generator=generator)
        nn.functional.cross_entropy(layer(table(words)), words % 3).backward()
        if not table.sparse:
            table.weight.grad = table.weight.grad.to_sparse()
        elif number % 4 == 0:
            table.weight.grad = table.weight.grad.coalesce()
        for optimizer in optimizers:
            optimizer.step()
    return rank, sha(table.parameters()), sha(layer.parameters())


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for result in pool.map(work, range(8)):
        print(*result)
