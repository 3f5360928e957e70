"""BasicMotions: 80 recordings of a watch with six axes, 100 steps each, of four activities; a file of the package aeon.

Origin: J. Large, 2016, in the UEA archive (A. Bagnall et al., arXiv:1811.00075). `.ts` is text: lines of "@", then a
line a recording, with ":" between the axes and before the class. The file is read and aeon itself is never imported:
`pip install --no-deps aeon` is enough.
"""

from __future__ import annotations

import hashlib
import importlib.util
from pathlib import Path

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from stepscope.errors import DataUnavailable
from stepscope.workloads.data import synthetic
from stepscope.workloads.data.source import Batch, DataFacts, Source, Splits

SHAPE = (6, 100)  # axes, steps of 0.1 s
CLASSES = ("Standing", "Running", "Walking", "Badminton")
FILES = ("BasicMotions_TRAIN.ts", "BasicMotions_TEST.ts")


def folder() -> Path | None:
    """Return where aeon keeps the recordings; None where it is not installed."""
    found = importlib.util.find_spec("aeon")
    places = [] if found is None else list(found.submodule_search_locations or [])
    return Path(places[0]) / "datasets" / "data" / "BasicMotions" if places else None


def parse(content: str) -> tuple[Tensor, Tensor]:
    """Recordings [N, 6, 100] and classes [N] of one file."""
    rows = [line for line in content.splitlines() if line.strip() and not line.startswith(("@", "#"))]
    try:
        parts = [row.split(":") for row in rows]
        values = torch.tensor([[[float(v) for v in axis.split(",")] for axis in part[:-1]] for part in parts])
        labels = torch.tensor([CLASSES.index(part[-1].strip()) for part in parts])
    except ValueError as error:
        raise _damaged(str(error)) from error
    if values.dim() != 3 or values.shape[1:] != SHAPE:
        raise _damaged(f"recordings of {tuple(values.shape[1:])} where {SHAPE} was expected")
    return values, labels


def present() -> bool:
    """Return whether both files are installed."""
    where = folder()
    return where is not None and all((where / name).is_file() for name in FILES)


def _load() -> Splits:
    where = folder()
    assert where is not None, "load follows present"
    contents = [(where / name).read_bytes() for name in FILES]
    (train, train_labels), (test, test_labels) = (parse(content.decode("utf-8")) for content in contents)
    mean, std = train.mean(dim=(0, 2), keepdim=True), train.std(dim=(0, 2), keepdim=True)
    facts = DataFacts(
        name="basic-motions",
        kind="real-full",
        sha256=hashlib.sha256(b"".join(contents)).hexdigest(),
        licence="as packaged in aeon (BSD-3-Clause)",
        origin="UEA archive, https://www.timeseriesclassification.com",
        train_size=len(train),
        test_size=len(test),
    )
    parts = (TensorDataset((x - mean) / std, y) for x, y in ((train, train_labels), (test, test_labels)))
    return Splits(next(parts), next(parts), facts)


def _made_up(size: int, randomness: torch.Generator) -> Batch:
    values = torch.randn(size, *SHAPE, generator=randomness)
    return values, torch.randint(0, len(CLASSES), (size,), generator=randomness)


def _damaged(what: str) -> DataUnavailable:
    return DataUnavailable(f"BasicMotions is not as published: {what}", "pip install --no-deps --force-reinstall aeon")


SOURCES = (
    Source("basic-motions", "real-full", _load, present),
    synthetic.source(_made_up),
)
