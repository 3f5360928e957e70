"""Exceptions keep their identity, their cause, context, notes and suppress flag on their way through the model and backward."""
import traceback
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

class Mine(Exception):
    pass


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.error = net(), None

    def forward(self, inputs):
        if self.error is not None:
            raise self.error
        return self.body(inputs)


model = nn.Sequential(Net(), nn.Identity())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
errors = [Mine("plain"), StopIteration("stop"), GeneratorExit(), KeyboardInterrupt("key"), SystemExit(4), AttributeError("attr")]
for number in range(12):
    print(number, step(model, optimizer))
    error = errors[number % 6]
    error.add_note(f"note {number}")
    model[0].error = error
    try:
        step(model, optimizer)
    except BaseException as caught:
        own = [frame.name for frame in traceback.extract_tb(caught.__traceback__) if frame.filename == __file__]
        print(caught is error, type(caught).__name__, own[-3:], caught.__cause__, caught.__context__, caught.__suppress_context__, caught.__notes__)
        error.__traceback__ = None
    model[0].error = None
print(sha(model.parameters()))
