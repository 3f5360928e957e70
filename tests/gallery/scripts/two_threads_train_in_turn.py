"""Two threads train models of their own, strictly in turn, while the main thread trains nothing."""
import threading
import hashlib

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def net():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def batch(size=16):
    inputs = torch.randn(size, 8)
    return inputs, inputs[:, :3].argmax(1)


def step(model, optimizer, size=16):
    inputs, targets = batch(size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item().hex()

turns = [threading.Semaphore(1), threading.Semaphore(0)]


def work(rank):
    torch.set_num_threads(1)
    model = models[rank]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(8):
        turns[rank].acquire()
        print(rank, number, step(model, optimizer))
        turns[1 - rank].release()


models = [net(), net()]
threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
[print(rank, sha(model.parameters())) for rank, model in enumerate(models)]
