"""An IterableDataset of words with a collate function that pads into a dict, and a batch sampler with ragged batches."""
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

from torch.utils.data import DataLoader, IterableDataset


class Words(IterableDataset):
    def __iter__(self):
        for number in range(18):
            yield {"tokens": [(number * k) % 20 for k in range(1, 3 + number % 4)], "label": number % 3}


def collate(samples):
    longest = max(len(sample["tokens"]) for sample in samples)
    tokens = torch.tensor([sample["tokens"] + [0] * (longest - len(sample["tokens"])) for sample in samples])
    return {"tokens": tokens, "labels": torch.tensor([sample["label"] for sample in samples]), "text": ["x"] * len(samples)}


model = nn.Sequential(nn.EmbeddingBag(20, 8), nn.Linear(8, 3))
optimizer = torch.optim.Adagrad(model.parameters(), lr=0.1)
ragged = [[0, 1], [2], [3, 4, 5, 6], [7]]
sets = [DataLoader(Words(), batch_size=4, collate_fn=collate), DataLoader(list(Words()), batch_sampler=ragged, collate_fn=collate)]
for loader in sets:
    for item in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(item["tokens"]), item["labels"])
        loss.backward()
        optimizer.step()
        print(len(item["text"]), loss.item().hex())
try:
    len(sets[0])
except TypeError:
    print("no length")
extra = list(torch.utils.data.get_worker_info() or "no worker")
print(len(extra), sha(model.parameters()))
