"""A model holds meta, sparse, quantized, complex, nested, mkldnn and empty tensors beside those that are trained."""
import hashlib
import warnings

import torch
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)


def sha(tensors):
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def net(width=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model


def batch(generator, size=16):
    inputs = torch.randn(size, 8, generator=generator)
    return inputs, inputs[:, :3].argmax(1)


def step(model, optimizer, generator, size=16):
    inputs, targets = batch(generator, size)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()


warnings.simplefilter("ignore")


class Odd(nn.Module):
    def __init__(self):
        super().__init__()
        self.core = net(16)
        self.ghost = nn.Parameter(torch.empty(4, 4, device="meta"))
        self.waves = nn.Parameter(torch.ones(8, dtype=torch.complex64))
        self.rare = nn.Parameter(torch.eye(8).to_sparse(), requires_grad=False)
        self.nothing = nn.Parameter(torch.empty(0))
        self.whole = nn.Parameter(torch.arange(3), requires_grad=False)
        self.register_buffer("coarse", torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8))
        self.register_buffer("rows", torch.eye(8).to_sparse_csr())
        self.register_buffer("fast", torch.ones(4, 4).to_mkldnn())
        self.register_buffer("ragged", torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]))
        self.register_buffer("missing", None)

    def forward(self, x):
        x = torch.sparse.mm(self.rare, x.T).T + (self.rows @ x.T).T
        return self.core((x * self.waves).real) + self.coarse.dequantize().mean() + self.fast.to_dense().mean()


model, generator = Odd(), torch.Generator().manual_seed(1)
optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad and not parameter.is_meta], lr=0.1)
for number in range(14):
    loss = step(model, optimizer, generator)
    model.ghost.grad = torch.empty(4, 4, device="meta") if number % 2 else None
    print(number, loss.hex())
print(sha(model.core.parameters()), sha([torch.view_as_real(model.waves)]))
