"""Base of the image classifiers: batches are images [B, C, H, W] and labels [B]; scores are [B, classes]."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads.contract import Batch, Published, Source, Workload, rates
from stepscope.workloads.data import folder, pictures
from stepscope.workloads.data.pictures import CIFAR10, CLOTHING, DIGITS, FASHION_MNIST, MNIST, Shape
from stepscope.workloads.data.synthetic import PICTURES as SYNTHETIC

COLOUR = (CIFAR10, FASHION_MNIST, MNIST, CLOTHING, DIGITS, SYNTHETIC)
GREY = (MNIST, FASHION_MNIST, DIGITS, CLOTHING, SYNTHETIC)
C32: Shape = (3, 32, 32)
C224: Shape = (3, 224, 224)
# With the rates of the others, the loss of deep networks rises at first, and in small batches it stays there.
DEEP = rates(sgd=0.05, momentum=0.005, adam=3e-4, rmsprop=1e-4)


def classifier(
    name: str,
    build: Callable[[], nn.Module],
    shape: Shape,
    classes: int,
    summary: str,
    references: tuple[str, ...],
    **more: object,
) -> Workload:
    """A workload that classifies images of one size; `more` are further fields of it, or replace these."""
    fields: dict[str, object] = {
        "domain": "vision",
        "dominant_layer": "convolution",
        "default_batch": 16,
        "default_optimizer": "momentum",
        "sources": sources(shape, classes),
        "own_data": functools.partial(folder.user_pictures, shape, classes),
        **more,
    }
    return Workload(
        name=name, build=build, input_shape=shape, summary=summary, references=references,
        example=example_maker(shape), loss=loss, correct=count_correct, **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def sources(shape: Shape, classes: int) -> tuple[Source, ...]:
    """The sets of pictures that fit a network of this input and so many outputs."""
    photographs = (folder.minc_source(shape),) if shape[1] >= 96 and classes >= 23 else ()
    return (*photographs, *pictures.sources(GREY if shape[0] == 1 else COLOUR, shape, classes))


def published_2019(flops: str, flops_are: str, parameters: str, parameters_are: str) -> tuple[Published, ...]:
    """The two figures of a row of the model table of the paper of 2019, with what each really is."""
    source = "model table of the paper of 2019"
    return Published("FLOPs", flops, source, flops_are), Published("parameters", parameters, source, parameters_are)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy of the scores."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def count_correct(model: nn.Module, batch: Batch) -> Tensor:
    """Return how many images get their own class."""
    images, labels = batch
    right: Tensor = (model(images).argmax(1) == labels).sum()
    return right


def example_maker(shape: tuple[int, ...]) -> Callable[[int], Batch]:
    """A maker of batches of empty images of this shape, all of class 0."""
    return functools.partial(_example, shape)


def _example(shape: tuple[int, ...], samples: int) -> Batch:
    return torch.zeros(samples, *shape), torch.zeros(samples, dtype=torch.long)
