"""sys.exit with True, None, a tuple and a large number in threads and handlers; the last one, 300, is cut to 44."""
# runner: ends=exit 44
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

model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    print(number, step(model, optimizer))
    try:
        sys.exit([None, True, (1, 2), "x", 2.5, -1, {}, 0][number])
    except SystemExit as left:
        print(repr(left.code))
thread = threading.Thread(target=sys.exit, args=(9,))
thread.start()
thread.join()
sys.exit(300)
