"""DINO: two large and four small crops for the student, the large ones for a teacher that follows it."""
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



student = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 8))
teacher = copy.deepcopy(student).requires_grad_(False)
optimizer = torch.optim.AdamW(student.parameters(), 1e-3)
center = torch.zeros(8)
data = DataLoader(TensorDataset(torch.randn(64, 1, 12, 12)), batch_size=16, shuffle=True)
for epoch in range(4):
    for (x,) in data:
        large = [x + 0.1 * torch.randn_like(x) for _ in range(2)]
        small = [x[..., n : n + 6, n : n + 6] for n in range(4)]
        with torch.no_grad():
            wanted = teacher(torch.cat(large)).chunk(2)
        out = [*student(torch.cat(large)).chunk(2), *student(torch.cat(small)).chunk(4)]
        loss = sum(-((t - center).div(0.1).softmax(1) * s.log_softmax(1)).sum(1).mean() for i, t in enumerate(wanted) for j, s in enumerate(out) if i != j)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            center = 0.9 * center + 0.1 * torch.cat(wanted).mean(0)
            for p, q in zip(student.parameters(), teacher.parameters()):
                q.mul_(0.9).add_(p, alpha=0.1)
print(loss.item().hex(), sha(teacher.parameters()))
