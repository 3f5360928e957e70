"""A SIGALRM handler raises the user's Timeout into an endless loop of steps, ten times, wherever the loop is at that moment."""
import signal
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

class Timeout(Exception):
    pass


def expired(number, frame):
    # Within torch an exception may leave gradients off, or be swallowed by an import; within the profile function that
    # notes calls it may be swallowed by a generator that is being freed: there the alarm is put off.
    if any(part in frame.f_code.co_filename for part in ("/torch/", "contextlib", "importlib", "gallery/faults.py")):
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
    else:
        raise Timeout


with torch.profiler.record_function("first"):  # what torch imports here it tries, and would swallow a timeout
    pass
signal.signal(signal.SIGALRM, expired)
torch.manual_seed(0)
caught = 0
for turn in range(10):
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02 + 0.003 * turn)
        while True:
            step(model, optimizer)
    except Timeout as error:
        caught += 1
        print("timeout", turn, error.args)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
torch.manual_seed(1)
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
print(caught, [step(model, optimizer) for _ in range(8)], sha(model.parameters()))
