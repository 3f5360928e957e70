"""Everything a library may quietly set in an interpreter is shown before and after training."""
import gc
import signal
import sys
import threading
import warnings
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

def show():
    print(sys.gettrace(), sys.getprofile(), threading.gettrace(), threading.getprofile(), sys.getswitchinterval(), sys.getrecursionlimit())
    print(sys.excepthook is sys.__excepthook__, threading.excepthook is threading.__excepthook__, sys.unraisablehook is sys.__unraisablehook__)
    print(gc.isenabled(), gc.get_threshold(), gc.callbacks, signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGALRM))
    print(sys.stdout is sys.__stdout__, sys.stdout.line_buffering, sys.stdout.write_through, sys.displayhook is sys.__displayhook__)
    print(signal.getsignal(signal.SIGINT) in (signal.default_int_handler, signal.SIG_IGN), signal.getitimer(signal.ITIMER_REAL))
    print(torch.is_grad_enabled(), torch.get_default_dtype(), torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled())
    print(threading.current_thread() is threading.main_thread(), threading.current_thread().name, sys.flags.dev_mode)


show()
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    print(number, step(model, optimizer))
    if number in (1, 4, 5):
        show()
show()
print(sha(model.parameters()))
