"""Threads pack what they save for backward into numpy, into files or into other threads' hands."""
import concurrent.futures
import hashlib
import io

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
    generator, model = torch.Generator().manual_seed(rank), net(24, rank)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    packed = [0]

    def pack(tensor):
        packed[0] += 1
        if rank % 2:
            return tensor.detach().numpy().copy()
        kept = io.BytesIO()
        torch.save(tensor.detach(), kept)
        return kept.getvalue()

    def unpack(kept):
        return torch.from_numpy(kept) if rank % 2 else torch.load(io.BytesIO(kept))

    for _ in range(10):
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            step(model, optimizer, generator)
    return rank, packed, sha(model.parameters())


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for result in pool.map(work, range(6)):
        print(*result)
