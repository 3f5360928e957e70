"""CIFAR-10 in its binary form: records of one label byte and 3 x 32 x 32 bytes (red, green, blue planes).

Format: https://www.cs.toronto.edu/~kriz/cifar.html. The binary form is read, and not the Python one, because the latter
is a pickle, which could run anything.
"""

from __future__ import annotations

import functools
import io
import tarfile
import zlib

import torch

from stepscope.errors import DataUnavailable
from stepscope.workloads.data import cache, catalogue
from stepscope.workloads.data.pictures import Part, Pictures, PictureSet, content_sha256
from stepscope.workloads.data.source import DataFacts

_RECORD = 1 + 3 * 32 * 32
_FOLDER = "cifar-10-batches-bin"
_TRAIN = tuple(f"{_FOLDER}/data_batch_{number}.bin" for number in range(1, 6))
_TEST = (f"{_FOLDER}/test_batch.bin",)
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)  # of the training pixels


def records(content: bytes) -> Part:
    """The images and labels of one file of records."""
    if not content or len(content) % _RECORD:
        raise DataUnavailable(f"{len(content)} bytes are no whole CIFAR-10 records", "stepscope data fetch cifar-10")
    table = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, _RECORD)
    return Part(table[:, 1:].reshape(-1, 3, 32, 32), table[:, 0].long())


def _read() -> Pictures:
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
    return Pictures(train, test, MEAN, STD, facts)


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    opened = archive.extractfile(name)
    if opened is None:
        raise KeyError(f"{name} is no file")
    return opened.read()


def _joined(contents: list[bytes]) -> Part:
    return records(b"".join(contents))


CIFAR10 = PictureSet(
    name="cifar-10",
    kind="real-full",
    classes=10,
    read=_read,
    present=functools.partial(cache.present, catalogue.CIFAR10),
    fetch="cifar-10",
)
