"""MNIST and Fashion-MNIST in full: four gzip-compressed IDX files, downloaded or, for Fashion-MNIST, from Debian.

IDX (Y. LeCun): two zero bytes, the type (8 = unsigned byte), the number of dimensions, each dimension as a big-endian
32-bit number, then the bytes.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import math
import struct
import zlib

import torch
from torch import Tensor

from stepscope.errors import DataUnavailable
from stepscope.workloads.data import cache, catalogue
from stepscope.workloads.data.cache import DataSet
from stepscope.workloads.data.pictures import Part, Pictures, PictureSet, content_sha256
from stepscope.workloads.data.source import DataFacts

DEBIAN = catalogue.DEBIAN_FASHION_MNIST  # of the package dataset-fashion-mnist, compressed anew
_DEBIAN_SHA256 = {  # of the content, not of the compressed file
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_STATISTICS = {"mnist": (0.1307, 0.3081), "fashion-mnist": (0.2860, 0.3530)}  # mean, deviation of the training pixels


def tensor(content: bytes, name: str) -> Tensor:
    """The array in an uncompressed IDX file of bytes; DataUnavailable where it is none."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise _damaged(name, "is no IDX file of bytes")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise _damaged(name, "ends within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if dimensions == 0 or len(content) - start != math.prod(shape):
        raise _damaged(name, f"holds {len(content) - start} bytes where its header says {shape}")
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).view(shape)


def _read(dataset: DataSet) -> Pictures:
    raw = [tensor(_content(dataset, file.name), file.name) for file in dataset.files]
    train, test = (Part(images.unsqueeze(1), labels.long()) for images, labels in (raw[:2], raw[2:]))
    mean, std = _STATISTICS[dataset.name]
    facts = DataFacts(
        name=dataset.name,
        kind="real-full",
        sha256=content_sha256(train, test),
        licence=dataset.licence,
        origin=dataset.files[0].urls[0].rpartition("/")[0],
        train_size=len(train.labels),
        test_size=len(test.labels),
    )
    return Pictures(train, test, (mean,), (std,), facts)


def _content(dataset: DataSet, name: str) -> bytes:
    try:
        if not cache.present(dataset) and dataset is catalogue.FASHION_MNIST:
            return _of_debian(name)
        return gzip.decompress(cache.read(dataset, name))
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged(name, f"cannot be read ({error})") from error


def _of_debian(name: str) -> bytes:
    content = gzip.decompress((DEBIAN / name).read_bytes())
    if hashlib.sha256(content).hexdigest() != _DEBIAN_SHA256[name]:
        raise _damaged(name, "is not what Debian packaged (its content hash differs)")
    return content


def _in_debian() -> bool:
    return all((DEBIAN / name).is_file() for name in _DEBIAN_SHA256)


def _fashion_present() -> bool:
    return cache.present(catalogue.FASHION_MNIST) or _in_debian()


def _damaged(name: str, what: str) -> DataUnavailable:
    return DataUnavailable(
        f"'{name}' {what}", "stepscope data fetch mnist (or fashion-mnist), or reinstall its package"
    )


MNIST = PictureSet(
    name="mnist",
    kind="real-full",
    classes=10,
    read=functools.partial(_read, catalogue.MNIST),
    present=functools.partial(cache.present, catalogue.MNIST),
    fetch="mnist",
)
FASHION_MNIST = PictureSet(
    name="fashion-mnist",
    kind="real-full",
    classes=10,
    read=functools.partial(_read, catalogue.FASHION_MNIST),
    present=_fashion_present,
    fetch="fashion-mnist",
)
