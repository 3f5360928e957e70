"""pytest runs tests that train, one of which fails; its captured output and outcomes are printed."""
import contextlib
import hashlib
import io
import re
import sys

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


TESTS = '''
import pytest
from __main__ import net, sha, step, torch

@pytest.fixture
def model():
    return net()

@pytest.mark.parametrize("seed", [1, 2, 3])
def test_trains(model, seed, tmp_path, capsys, monkeypatch):
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.chdir(tmp_path)
    for _ in range(4):
        print(step(model, optimizer))
    assert len(capsys.readouterr().out.split()) == 4

def test_fails(model):
    torch.manual_seed(4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        step(model, optimizer)
    assert sha(model.parameters()) == ""
'''
import pytest

with open("test_training.py", "w") as text:
    text.write(TESTS)
sys.dont_write_bytecode = True
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    code = pytest.main(["-q", "-p", "no:cacheprovider", "--basetemp=temporary", "--rootdir=.", "-c", "/dev/null", "test_training.py"])
print(re.sub(r"in [0-9.]+s", "in some time", printed.getvalue()))
sys.exit(code)
