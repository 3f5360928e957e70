"""Made-up samples for what is nowhere to be had: right in shape, type and range, and never reported as accuracy."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable

import torch
from torch.utils.data import TensorDataset

from stepscope.workloads.data.pictures import LabelledImages, Pictures, PictureSet, content_sha256
from stepscope.workloads.data.source import Batch, DataFacts, Source, Splits

SIZE = 512
_SEED = 20190410  # of the made-up numbers: fixed, so that the content hash is the same everywhere
Maker = Callable[[int, torch.Generator], Batch]  # so many samples, from this source of randomness


def source(make: Maker, size: int = SIZE) -> Source:
    """A source of `size` samples, made when it is loaded."""
    return Source("synthetic", "synthetic", functools.partial(_load, make, size))


def _load(make: Maker, size: int) -> Splits:
    tensors = make(size, torch.Generator().manual_seed(_SEED))
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().data)
    return Splits(TensorDataset(*tensors), None, _facts(digest.hexdigest(), size))


def _pictures() -> Pictures:
    """Grey noise of 32 x 32 with random labels of 10 classes; larger inputs are made from it as from any picture."""
    randomness = torch.Generator().manual_seed(_SEED)
    images = torch.randint(0, 256, (SIZE, 1, 32, 32), dtype=torch.uint8, generator=randomness)
    train = LabelledImages(images, torch.randint(0, 10, (SIZE,), generator=randomness))
    test = LabelledImages(images[:0], train.labels[:0])
    return Pictures(train, test, (0.5,), (0.29,), _facts(content_sha256(train), SIZE))


def _facts(sha256: str, size: int) -> DataFacts:
    return DataFacts("synthetic", "synthetic", sha256, "none needed", f"random numbers, seed {_SEED}", size, 0)


PICTURES = PictureSet(name="synthetic", kind="synthetic", classes=10, read=_pictures)
