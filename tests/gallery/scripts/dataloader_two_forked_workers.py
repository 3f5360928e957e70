"""Two forked workers with seeds from a generator and from worker_init_fn, which prints."""
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

from torch.utils.data import DataLoader, Dataset, get_worker_info


class Data(Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        inputs = torch.randn(8)
        return inputs, inputs[:3].argmax(), get_worker_info().id


loader = DataLoader(Data(), batch_size=16, num_workers=2, multiprocessing_context="fork", generator=torch.Generator().manual_seed(3))
model = net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
    for inputs, targets, workers in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        print(epoch, loss.item().hex(), workers.tolist())
print(sha(model.parameters()))
