"""Two threads each iterate a loader with a forked worker, leave epochs early, and train."""
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


from torch.utils.data import DataLoader, Dataset


class Data(Dataset):
    def __init__(self, rank):
        self.rank = rank

    def __len__(self):
        return 64

    def __getitem__(self, index):
        inputs = torch.arange(8.0).add(index + self.rank).sin()
        return inputs, inputs[:3].argmax()


def work(rank):
    model, lines = net(24, rank), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Data(rank), 8, num_workers=rank, persistent_workers=rank > 0, multiprocessing_context="fork" if rank else None)
    for epoch in range(3):
        for number, (inputs, targets) in enumerate(loader):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if number == 4:
                break
        lines.append((rank, epoch, loss.item().hex()))
    return lines, sha(model.parameters())


work(0)  # each operator once: a fork in the midst of a first call would leave its child waiting for that, also bare
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for result in pool.map(work, range(2)):
        print(*result)
