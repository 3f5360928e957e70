"""An engine that is no module trains in bfloat16: its optimizer has float32 copies, and steps each second time it is told to."""
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


def batch(size=16):
    inputs = torch.randn(size, 8)
    return inputs, inputs[:, :3].argmax(1)

class Engine:
    def __init__(self, module):
        self.module, self.passes = module.bfloat16(), 0
        self.master = [parameter.detach().float().clone().requires_grad_() for parameter in module.parameters()]
        self.optimizer = torch.optim.AdamW(self.master, lr=1e-3)

    def __call__(self, inputs):
        return self.module(inputs.bfloat16()).float()

    def backward(self, loss):
        (loss * 128 / 2).backward()
        self.passes += 1

    def step(self):
        if self.passes % 2:
            return
        for master, parameter in zip(self.master, self.module.parameters()):
            master.grad, parameter.grad = parameter.grad.float() / 128, None
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for master, parameter in zip(self.master, self.module.parameters()):
                parameter.copy_(master)


engine = Engine(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 3)))
for number in range(24):
    inputs, targets = batch(8)
    loss = nn.functional.cross_entropy(engine(inputs), targets)
    engine.backward(loss)
    engine.step()
    print(number, loss.item().hex())
print(sha(engine.master))
