"""os.closerange(3, 256) in mid-run, then own files take the freed numbers and must hold only what the script wrote."""
import os
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
files = []
for number in range(20):
    if number in (4, 10):
        [file.close() for file in files]
        os.closerange(3, 256)
        files = [open(f"mine_{number}_{k}.txt", "w+b", buffering=0) for k in range(24)]
    for position, file in enumerate(files):
        file.write(b"%d %d\n" % (position, number))
    print(number, step(model, optimizer))
for position, file in enumerate(files):
    file.seek(0)
    expected = b"".join(b"%d %d\n" % (position, number) for number in range(10, 20))
    assert file.read() == expected, position
print(sorted(os.path.getsize(name) for name in os.listdir(".") if name.startswith("mine_")), sha(model.parameters()))
