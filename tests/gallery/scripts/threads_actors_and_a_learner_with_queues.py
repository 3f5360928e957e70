"""Three actors play episodes with the learner's policy, one learner trains on what they put in queues."""
import hashlib
import queue
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


policy = net(64)
lock = threading.Lock()
queues = [queue.Queue(maxsize=2) for _ in range(3)]
played = []


def act(rank):
    generator = torch.Generator().manual_seed(rank)
    for _ in range(10):
        states = torch.randn(12, 8, generator=generator)
        with torch.no_grad(), lock:
            chosen = torch.distributions.Categorical(logits=policy(states)).sample()
        played.append(int(chosen.numel()))
        queues[rank].put((states, states[:, :3].argmax(1)))
    queues[rank].put(None)


actors = [threading.Thread(target=act, args=(rank,)) for rank in range(3)]
for actor in actors:
    actor.start()
optimizer = torch.optim.RMSprop(policy.parameters(), lr=1e-3)
learnt, open_queues = 0, list(queues)
while open_queues:
    for source in list(open_queues):
        got = source.get()
        if got is None:
            open_queues.remove(source)
            continue
        optimizer.zero_grad()
        with lock:
            loss = nn.functional.cross_entropy(policy(got[0]), got[1])
        loss.backward()
        with lock:
            optimizer.step()
        learnt += 1
for actor in actors:
    actor.join()
print(learnt, sum(played), sha(policy.parameters()))
