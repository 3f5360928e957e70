"""Eager quantisation aware training: prepare_qat swaps modules in mid-run, convert deep-copies them at the end."""
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
model = nn.Sequential(torch.ao.quantization.QuantStub(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3), torch.ao.quantization.DeQuantStub())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(5):
    print(number, step(model, optimizer))
torch.backends.quantized.engine = [name for name in ("fbgemm", "qnnpack") if name in torch.backends.quantized.supported_engines][0]
model.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
model = torch.ao.quantization.prepare_qat(model.train())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for number in range(5):
    print(number, step(model, optimizer))
print(sha(model.parameters()), [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()])
quantised = torch.ao.quantization.convert(model.eval())
print([type(m).__name__ for m in quantised.modules()], quantised(torch.ones(1, 8)).tolist())
