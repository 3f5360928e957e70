"""threading.excepthook and sys.excepthook of the user print to stdout; then the script dies by an own exception."""
# runner: ends=exit 1
import sys
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

class Mine(Exception):
    pass


def in_thread(args):
    print("thread hook", args.exc_type.__name__, args.exc_value)


def in_main(kind, value, trace):
    names = []
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == __file__:
            names.append(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    print("main hook", kind.__name__, value, names, value.__context__)


def fail(where):
    raise Mine(where)


threading.excepthook, sys.excepthook = in_thread, in_main
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    print(number, step(model, optimizer))
    if number in (2, 5):
        thread = threading.Thread(target=fail, args=(number,))
        thread.start()
        thread.join()
model.register_forward_hook(lambda *_: fail("in hook"))
step(model, optimizer)
