"""register_multi_grad_hook, node hooks of the graph, next_functions walks and metadata of nodes at each step."""
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
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(8):
    seen = []
    inputs, targets = batch()
    outputs = model(inputs)
    loss = nn.functional.cross_entropy(outputs, targets)
    handle = torch.autograd.graph.register_multi_grad_hook(tuple(model.parameters()), lambda grads: seen.append(len(grads)))
    outputs.grad_fn.register_hook(lambda i, o: seen.append("node"))
    outputs.grad_fn.register_prehook(lambda o: seen.append("pre"))
    node, names = loss.grad_fn, []
    while node is not None:
        names.append((node.name(), dict(node.metadata)))
        following = [n for n, _ in node.next_functions if n is not None and "AccumulateGrad" not in n.name() and "TBackward" not in n.name()]
        node = following[0] if following else None
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    handle.remove()
    print(number, loss.item().hex(), seen, names)
print(sha(model.parameters()))
