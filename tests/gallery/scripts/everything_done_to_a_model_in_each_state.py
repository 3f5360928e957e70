"""All that people do with a model, before the first call, in and between steps, in a forward pass and at the end."""
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

import copy
import io
import pickle
import warnings
from multiprocessing.reduction import ForkingPickler

from torch.ao import quantization
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.parallel import replicate
from torch.optim.swa_utils import AveragedModel

warnings.simplefilter("error")
warnings.filterwarnings("ignore", category=DeprecationWarning)
example = torch.ones(2, 8)


def quantised(model):
    ready = copy.deepcopy(model).eval()
    ready.qconfig = quantization.get_default_qconfig("x86")
    quantization.prepare(ready, inplace=True)
    ready(example)
    return quantization.convert(ready)


def ensemble(model):
    models = [copy.deepcopy(model) for _ in range(2)]
    parameters, buffers = stack_module_state(models)
    return vmap(lambda p, b: functional_call(models[0], (p, b), (example,)))(parameters, buffers)


WAYS = {
    "save": lambda m: torch.save(m, io.BytesIO()),
    "load": lambda m: pickle.loads(pickle.dumps(m)),
    "deepcopy": copy.deepcopy,
    "averaged": lambda m: AveragedModel(m).update_parameters(m),
    "script": torch.jit.script,
    "trace": lambda m: torch.jit.trace(m, example),
    "fx": torch.fx.symbolic_trace,
    "export": lambda m: torch.export.export(m, (example,)),
    "quantise": quantised,
    "dynamic": lambda m: quantization.quantize_dynamic(m, {nn.Linear}),
    "functional": lambda m: functional_call(m, dict(m.named_parameters()), (example,)),
    "vmap": ensemble,
    "spawned": lambda m: bytes(ForkingPickler.dumps(m.state_dict())) and None,
    "compile": lambda m: torch.compile(m, backend="eager")(example),
}


def look(state, model):
    kept = torch.get_rng_state()
    for name, way in WAYS.items():
        try:
            with torch.no_grad():
                said = type(way(model)).__name__
        except Exception as error:
            said = f"{type(error).__name__}: {str(error)[:80]}"
        print(state, name, said, sorted(vars(model)), len(model._forward_hooks), len(model._forward_pre_hooks))
    torch.set_rng_state(kept)


class Looking(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.calls = net(), 0

    def forward(self, inputs):
        self.calls += 1
        if self.calls in (3, 6):
            look("inside forward", self.body)
        return self.body(inputs)


model = Looking()
optimizer = torch.optim.Adam(model.parameters())
look("before", model.body)
for number in range(14):
    inputs, targets = batch()
    loss = nn.functional.cross_entropy(model(inputs), targets)
    loss.backward()
    if number in (3, 9):
        look("before the update", model.body)
    optimizer.step()
    optimizer.zero_grad()
    if number in (4, 11):
        look("between", model.body)
look("after", model.body)
print(sha(model.parameters()))
