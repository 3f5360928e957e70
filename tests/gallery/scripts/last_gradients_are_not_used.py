"""Four batches to an update; what is left at the end of an epoch is dropped."""
import copy
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


from torch.utils.data import DataLoader, TensorDataset


def loader(count, size, **options):
    inputs = torch.randn(count, 8)
    return DataLoader(TensorDataset(inputs, inputs[:, :3].argmax(1)), batch_size=size, **options)



model = net()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(2):
    optimizer.zero_grad()
    for number, (x, y) in enumerate(loader(176, 16)):
        (nn.functional.cross_entropy(model(x), y) / 4).backward()
        if number % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
print(sha(model.parameters()))
