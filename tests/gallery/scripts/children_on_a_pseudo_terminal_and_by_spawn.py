"""In mid training a child is forked onto a terminal of its own, and another process is spawned past fork."""
import hashlib
import os
import pty
import sys

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def batch(size=16):
    inputs = torch.randn(size, 8)
    return inputs, inputs[:, :3].argmax(1)

model = nn.Linear(8, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train():
    for _ in range(5):
        inputs, targets = batch()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
    print(loss.item().hex(), flush=True)


def end_of(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


train()
child, terminal = pty.fork()
if child == 0:
    os.write(1, b"terminal %d %d\n" % (os.isatty(0), model(torch.ones(2, 8)).shape[0]))
    os._exit(3)
text = b""
while b"\n" not in text:
    text += os.read(terminal, 100)
print(text, end_of(child), flush=True)
train()
print(end_of(os.posix_spawn(sys.executable, [sys.executable, "-Sc", "raise SystemExit(9)"], os.environ)), flush=True)
train()
print(sha(model.parameters()))
