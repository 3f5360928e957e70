"""A statistical profiler of the user: ITIMER_PROF each millisecond, its handler walks the stack of the script's own functions."""
import signal
import collections
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


seen = collections.Counter()


def sample(number, frame):
    while frame is not None:
        if frame.f_code.co_filename == __file__:
            seen[frame.f_code.co_name] += 1
        frame = frame.f_back


signal.signal(signal.SIGPROF, sample)
model = net()
optimizer = torch.optim.Adam(model.parameters())
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
for number in range(300):
    loss = step(model, optimizer, 256)
    if number % 60 == 0:
        print(number, loss)
signal.setitimer(signal.ITIMER_PROF, 0)
print(seen["step"] > 0, seen["<module>"] >= seen["step"], signal.getsignal(signal.SIGPROF) is sample)
print(sha(model.parameters()))
