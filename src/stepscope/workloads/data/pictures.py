"""Labelled images of any set in the size that a network takes, resized a batch at a time.

Held as the bytes that the set has, [N, C, H, W] of 0..255, because floats at 224 x 224 would not fit a small board.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from stepscope.workloads.data.source import Batch, DataFacts, DataKind, Source, Splits, always

Shape = tuple[int, int, int]  # channels, height, width


@dataclass(frozen=True)
class Part:
    """Images [N, C, H, W] as uint8 and labels [N] as int64."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Pictures:
    """A set that has been read: mean and standard deviation are of the pixels scaled to 0..1, one a channel."""

    train: Part
    test: Part
    mean: tuple[float, ...]
    std: tuple[float, ...]
    facts: DataFacts


@dataclass(frozen=True)
class PictureSet:
    """A set that can be read: what it is called, how many classes it has, whether it is on this machine."""

    name: str
    kind: DataKind
    classes: int
    read: Callable[[], Pictures]
    present: Callable[[], bool] = always
    fetch: str | None = None


class Resized(Dataset[Batch]):
    """(image [C, H, W] as normalised floats, label); to grow by up to a quarter it is padded, not scaled."""

    def __init__(self, part: Part, mean: Sequence[float], std: Sequence[float], shape: Shape) -> None:
        self._part, self._shape = part, shape
        self._mean, self._std = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))

    def __len__(self) -> int:
        return len(self._part.labels)

    def __getitem__(self, index: int) -> Batch:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Batch]:
        """The samples of a whole batch, which is how a loader asks where it can."""
        channels, height, width = self._shape
        images = fitted(self._part.images[indices].float() / 255, height, width)
        images = ((images - self._mean) / self._std).expand(-1, channels, -1, -1)
        return list(zip(images, self._part.labels[indices], strict=True))


def fitted(images: Tensor, height: int, width: int) -> Tensor:
    """Images [N, C, h, w] at [N, C, height, width]."""
    down, right = height - images.shape[2], width - images.shape[3]
    if 0 <= 4 * down <= images.shape[2] and 0 <= 4 * right <= images.shape[3]:
        return functional.pad(images, [right // 2, right - right // 2, down // 2, down - down // 2])
    shrinks = down < 0 or right < 0
    return functional.interpolate(images, (height, width), mode="bilinear", antialias=shrinks, align_corners=False)


def splits(pictures: Pictures, shape: Shape, two_classes: bool = False) -> Splits:
    """The set in one size; with `two_classes` the question is whether the class number is odd."""
    facts, parts = pictures.facts, (pictures.train, pictures.test)
    if two_classes:
        parts = (Part(parts[0].images, parts[0].labels % 2), Part(parts[1].images, parts[1].labels % 2))
        facts = replace(facts, name=f"{facts.name}, odd or even class")
    train, test = (Resized(part, pictures.mean, pictures.std, shape) for part in parts)
    return Splits(train, test, facts)


def sources(sets: Sequence[PictureSet], shape: Shape, classes: int) -> tuple[Source, ...]:
    """Return the data that a network of this input and so many outputs can be trained on: no more classes than that."""
    two = classes == 2
    fit = [each for each in sets if each.classes <= classes or two]
    return tuple(
        Source(each.name, each.kind, functools.partial(_load, each, shape, two), each.present, each.fetch)
        for each in fit
    )


def content_sha256(*parts: Part) -> str:
    """SHA-256 of images and labels, in the order given."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.images.contiguous().numpy().data)
        digest.update(part.labels.to(torch.uint8).numpy().data)
    return digest.hexdigest()


def _load(each: PictureSet, shape: Shape, two_classes: bool) -> Splits:
    return splits(each.read(), shape, two_classes)
