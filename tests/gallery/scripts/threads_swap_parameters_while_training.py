"""Each thread replaces parameters of its model by new ones, as growing and low-rank training do."""
import concurrent.futures
import hashlib

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


def work(rank):
    generator, model = torch.Generator().manual_seed(rank), net(16, rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for number in range(24):
        step(model, optimizer, generator)
        layer = model[2 * (number % 2)]
        if number % 4 == 0:
            layer.weight = nn.Parameter(layer.weight.detach() * 0.99)
            optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        elif number % 4 == 1:
            layer.weight.data = layer.weight.data.clone()
        elif number % 4 == 2:
            del layer.bias
            layer.register_parameter("bias", nn.Parameter(torch.zeros(layer.out_features)))
            optimizer.param_groups[0]["params"] = list(model.parameters())
            optimizer.state.clear()
        else:
            optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    return rank, len(optimizer.param_groups), sha(model.parameters())


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    for result in pool.map(work, range(8)):
        print(*result)
