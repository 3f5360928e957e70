"""unittest.mock wraps Module.__call__, SGD.step and Tensor.backward with autospec, and asserts how they were called."""
from unittest import mock
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
for number in range(6):
    print(number, step(model, optimizer))
with mock.patch.object(torch.optim.SGD, "step", autospec=True, side_effect=torch.optim.SGD.step) as stepped:
    for number in range(6):
        print(number, step(model, optimizer))
    print(stepped.call_count, stepped.call_args_list[0] == mock.call(optimizer))
with mock.patch.object(nn.Module, "__call__", autospec=True, side_effect=nn.Module.__call__) as called:
    for number in range(6):
        print(number, step(model, optimizer))
    print(called.call_count, [type(call.args[0]).__name__ for call in called.call_args_list[:4]])
with mock.patch.object(torch.Tensor, "backward", autospec=True, side_effect=torch.Tensor.backward) as passed:
    with mock.patch("torch.nn.functional.cross_entropy", wraps=nn.functional.cross_entropy) as loss:
        for number in range(6):
            print(number, step(model, optimizer))
    print(passed.call_count, loss.call_count, passed.call_args.args[0].shape)
print(sha(model.parameters()))
