"""What the image classifiers share: batches are images [B, C, H, W] and labels [B]; scores are [B, classes]."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads.contract import Batch


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy of the scores."""
    images, labels = batch
    return functional.cross_entropy(model(images), labels)


def correct(model: nn.Module, batch: Batch) -> Tensor:
    """How many images get their own class."""
    images, labels = batch
    right: Tensor = (model(images).argmax(1) == labels).sum()
    return right


def example_of(shape: tuple[int, ...]) -> Callable[[int], Batch]:
    """A maker of batches of empty images of this shape, all of class 0."""
    return functools.partial(_example, shape)


def _example(shape: tuple[int, ...], samples: int) -> Batch:
    return torch.zeros(samples, *shape), torch.zeros(samples, dtype=torch.long)
