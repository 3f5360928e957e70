"""A function's backward starts threads that run backward passes of their own, and waits for them."""
import hashlib
import threading

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


class Ensemble(torch.autograd.Function):
    @staticmethod
    def forward(context, inputs, *weights):
        context.save_for_backward(inputs, *weights)
        return sum(inputs @ weight for weight in weights)

    @staticmethod
    def backward(context, gradient):
        inputs, *weights = context.saved_tensors
        results = [None] * len(weights)

        def work(rank):
            with torch.enable_grad():
                weight = weights[rank].detach().requires_grad_()
                (inputs.detach() @ weight).backward(gradient)
            results[rank] = weight.grad

        threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(weights))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return gradient @ sum(weights).T, *results


model, generator = net(24), torch.Generator().manual_seed(1)
weights = [nn.Parameter(torch.randn(8, 8, generator=generator) * 0.1) for _ in range(4)]
optimizer = torch.optim.SGD([*model.parameters(), *weights], lr=0.1)
for number in range(12):
    inputs, targets = batch(generator)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(Ensemble.apply(inputs, *weights)), targets)
    loss.backward()
    optimizer.step()
    print(number, loss.item().hex())
print(sha([*model.parameters(), *weights]))
