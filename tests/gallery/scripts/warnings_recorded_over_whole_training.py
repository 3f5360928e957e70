"""All warnings of the whole training are recorded, with ResourceWarning on; their number must be as bare."""
import gc
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

with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(14):
        print(number, step(model, optimizer))
        if number == 6:
            warnings.warn("mine")
            open("/dev/null")
    gc.collect()
print([(w.category.__name__, str(w.message)[:30].split("<")[0]) for w in caught], sha(model.parameters()))
