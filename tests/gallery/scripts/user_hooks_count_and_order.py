"""All kinds of hooks on modules, tensors and gradients, some prepended, must be seen in the same number and order."""
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
order = []
model.register_forward_pre_hook(lambda m, a: order.append("pre"))
model.register_forward_pre_hook(lambda m, a, k: order.append("pre-kw"), with_kwargs=True, prepend=True)
model.register_forward_hook(lambda m, a, o: order.append("fwd"))
model.register_forward_hook(lambda m, a, o: order.append("always"), always_call=True)
model[0].register_full_backward_pre_hook(lambda m, g: order.append("bwd-pre"))
model[0].register_full_backward_hook(lambda m, i, o: order.append("bwd"))
model[2].weight.register_hook(lambda g: order.append("grad"))
model[2].weight.register_post_accumulate_grad_hook(lambda p: order.append("accumulated"))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(12):
    print(number, step(model, optimizer), order)
    order.clear()
print([(len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for m in model.modules()], sha(model.parameters()))
