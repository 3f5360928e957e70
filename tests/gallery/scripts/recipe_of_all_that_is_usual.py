"""Accumulation, clipping, a scaler that skips, bfloat16, one-cycle, an average with batch norm, checkpoints: all at once."""
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


def step(model, optimizer, size=16):
    inputs, targets = batch(size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item().hex()


model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 3))
inputs = torch.randn(256, 8)
loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs, inputs[:, :3].argmax(1)), 16, shuffle=True)
valid = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(inputs[:40], inputs[:40, :3].argmax(1)), 10)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=100)
average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=4)
best, bad, updates = (9.0, None), 0, 0
for epoch in range(2):
    for number, (some, targets) in enumerate(loader, 1):
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(some), targets) / 2
        if epoch == 0 and number == 6:
            loss = loss * float("inf")
        scaler.scale(loss).backward()
        if number % 2 == 0:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            before = scaler.get_scale()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad(set_to_none=number % 4 == 0)
            if scaler.get_scale() >= before:
                updates += 1
                scheduler.step()
                average.update_parameters(model)
    model.eval()
    with torch.inference_mode():
        found = sum(nn.functional.cross_entropy(average(some), targets).item() for some, targets in valid)
    model.train()
    if found < best[0]:
        best = found, copy.deepcopy(average.module.state_dict())
    torch.save({"model": model.state_dict(), "scaler": scaler.state_dict(), "at": scheduler.state_dict()}, f"{epoch}.pt")
    print(epoch, found.hex(), scaler.get_scale(), updates)
print(sha(model.parameters()), sha(best[1].values()))
