"""Sources of samples, apart from the workload that trains on them, and what is said of them in every result."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

from stepscope.errors import DataUnavailable, UnknownName
from stepscope.workloads.data.pictures import Part, Pictures, PictureSet, content_sha256

Batch = tuple[Tensor, ...]  # of the same first dimension: samples
DataKind = Literal["real-full", "real-subset", "synthetic"]
_RANK: dict[DataKind, int] = {"real-full": 0, "real-subset": 1, "synthetic": 2}


@dataclass(frozen=True)
class DataFacts:
    """Facts of a data set; only "real-*" data may report accuracy. An emulator has no sizes: they are 0."""

    name: str
    kind: DataKind
    sha256: str  # of the content, not of the file
    licence: str
    origin: str
    train_size: int
    test_size: int


@dataclass(frozen=True)
class Splits:
    """Data sets of tuples of tensors; `train` is null where the training makes its own, `test` without accuracy."""

    train: Dataset[Batch] | None
    test: Dataset[Batch] | None
    facts: DataFacts


def always() -> bool:
    """Return True: what ships with the package, or is made on the spot, is always there."""
    return True


@dataclass(frozen=True)
class Source:
    """One data set in the form that one workload takes; `fetch` names it for `stepscope data fetch`."""

    name: str
    kind: DataKind
    load: Callable[[], Splits]
    present: Callable[[], bool] = always
    fetch: str | None = None


def best(sources: Sequence[Source]) -> Source:
    """The first of the best kind that is on this machine: real and full, then real in part, then synthetic."""
    here = [source for source in sources if source.present()]
    if not here:
        names = ", ".join(source.name for source in sources)
        raise DataUnavailable(f"none of the data sets is on this machine: {names}", _how_to_get(sources[0]))
    return min(here, key=lambda source: _RANK[source.kind])


def named(sources: Sequence[Source], name: str) -> Source:
    """The source of this name; an error says how to get one that is not on this machine."""
    known = {source.name: source for source in sources}
    if name not in known:
        raise UnknownName("data set", name, known)
    if not known[name].present():
        raise DataUnavailable(f"the data set '{name}' is not on this machine", _how_to_get(known[name]))
    return known[name]


def _how_to_get(source: Source) -> str:
    if source.fetch is None:
        return f"install what holds '{source.name}' (docs/data.md)"
    return f"stepscope data fetch {source.fetch}"


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
    train = Part(images, torch.randint(0, 10, (SIZE,), generator=randomness))
    test = Part(images[:0], train.labels[:0])
    return Pictures(train, test, (0.5,), (0.29,), _facts(content_sha256(train), SIZE))


def _facts(sha256: str, size: int) -> DataFacts:
    return DataFacts("synthetic", "synthetic", sha256, "none needed", f"random numbers, seed {_SEED}", size, 0)


PICTURES = PictureSet(name="synthetic", kind="synthetic", classes=10, read=_pictures)
