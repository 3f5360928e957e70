"""nn.TransformerEncoder takes its fused fast path in eval only where no hooks are on it, which changes the bits of the result."""
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

warnings.simplefilter("ignore")
layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
model = nn.TransformerEncoder(layer, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(6):
    inputs = torch.randn(4, 5, 8)
    optimizer.zero_grad()
    loss = (model(inputs) - inputs.roll(1, 1)).pow(2).mean()
    loss.backward()
    optimizer.step()
    model.eval()
    with torch.no_grad():
        mask = torch.zeros(4, 5, dtype=torch.bool)
        mask[:, 3:] = True
        outputs = model(inputs, src_key_padding_mask=mask)
        print(number, loss.item().hex(), tuple(outputs.shape), sha([outputs[:, :3].contiguous()]))
    model.train()
print(sha(model.parameters()))
