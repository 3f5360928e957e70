"""A program of several commands by click: options, prompts, echo, an exit code and a usage error in mid-training."""
# runner: stdin=lines
import hashlib
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


import click


@click.group()
def program():
    """Train a network."""


@program.command()
@click.option("--steps", default=5, show_default=True)
@click.option("--name", prompt=True)
@click.argument("words", nargs=-1)
@click.pass_context
def train(context, steps, name, words):
    """Train it."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for number in range(steps):
        click.echo(f"{number} {step(model, optimizer)}")
    click.echo((name, words, context.command_path.split()[-1], sha(model.parameters())))
    if "wrong" in words:
        raise click.UsageError("a wrong word", ctx=context)
    context.exit(len(words))


try:
    program(["train", "--help"])
except SystemExit as end:
    print(end.code)
try:
    program(["train", "--steps", "4", "--name", "first", "a", "b"])
except SystemExit as end:
    print(end.code)
try:
    program(["train", "--name", "second", "wrong"])
except SystemExit as end:
    print(end.code)
sys.argv[1:] = ["train", "--steps", "6", "a", "b", "c"]
program()
