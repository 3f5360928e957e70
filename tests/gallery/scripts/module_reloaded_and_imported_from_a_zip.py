"""The module of the model is reloaded in mid-run, a second copy comes from a zip, classes change below living instances."""
import importlib, os, sys, zipfile
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

open("mymodel.py", "w").write("from torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.l = nn.Linear(8, 3)\n    def forward(self, x):\n        return self.l(x)\n")
sys.path.insert(0, "")
import mymodel

for number in range(3):
    model = mymodel.Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        print(step(model, optimizer))
    text = open("mymodel.py").read().replace("return self.l(x)", "return 2 * self.l(x)")
    open("mymodel.py", "w").write(text + "\n# changed %d\n" % number)
    os.utime("mymodel.py", (number + 5, number + 5))
    old = mymodel.Net
    mymodel = importlib.reload(mymodel)
    print(old is mymodel.Net, isinstance(model, mymodel.Net))
    model.__class__ = mymodel.Net
    print(step(model, optimizer))
with zipfile.ZipFile("m.zip", "w") as archive:
    archive.writestr(zipfile.ZipInfo("zipped.py"), text)
sys.path.insert(0, "m.zip")
import zipped
model = zipped.Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    print(step(model, optimizer))
print(zipped.__file__, sha(model.parameters()))
