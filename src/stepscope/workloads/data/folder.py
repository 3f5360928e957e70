"""Photographs in files: MINC-2500, or a folder of the user's own with one subfolder a class.

Files are read when a batch needs them, scaled so that the shorter side fits, and cropped in the middle.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import tarfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepscope.errors import DataUnavailable, MissingDependency, UsageError
from stepscope.workloads.data import cache, catalogue
from stepscope.workloads.data.pictures import Shape
from stepscope.workloads.data.source import Batch, DataFacts, Source, Splits

ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".ppm", ".pgm", ".webp"})
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet, as is usual for photographs
_EACH_TEST = 5  # of a folder without a split of its own, every fifth picture of a class is a test picture
_UNPACKED = "unpacked"  # the mark that the archive was unpacked to its end


@dataclass(frozen=True)
class Labelled:
    """A picture file and the number of its class."""

    path: Path
    label: int


class PictureFileDataset(Dataset[Batch]):
    """(image [C, H, W], label) of picture files, read one by one."""

    def __init__(self, files: Sequence[Labelled], shape: Shape) -> None:
        self._files, self._shape = files, shape

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> Batch:
        file = self._files[index]
        return picture(file.path, self._shape), torch.tensor(file.label)


def picture(path: Path, shape: Shape) -> Tensor:
    """One picture as normalised floats [C, H, W], cropped in the middle."""
    image_module = _pillow()
    channels, height, width = shape
    try:
        with image_module.open(path) as opened:
            image = opened.convert("L" if channels == 1 else "RGB")
    except (OSError, ValueError) as error:
        raise DataUnavailable(f"the picture '{path}' cannot be read ({error})", "mend or remove this file") from error
    scale = max(height / image.height, width / image.width)
    large = image.resize((max(width, round(image.width * scale)), max(height, round(image.height * scale))))
    left, top = (large.width - width) // 2, (large.height - height) // 2
    pixels = np.asarray(large.crop((left, top, left + width, top + height)), dtype=np.float32) / 255
    values = torch.from_numpy(pixels.reshape(height, width, channels)).permute(2, 0, 1)
    mean, std = (torch.tensor(values_by_channel[:channels]).view(-1, 1, 1) for values_by_channel in (MEAN, STD))
    return ((values - mean) / std).contiguous()


def user_pictures(shape: Shape, classes: int, path: Path) -> Splits:
    """The user's folder of pictures, one subfolder a class, in the size that a network takes."""
    if not path.is_dir():
        raise UsageError(f"'{path}' is no folder", "pictures are taken from a folder with one subfolder a class")
    names = sorted(child.name for child in path.iterdir() if child.is_dir() and _pictures_in(child))
    if len(names) < 2:
        raise UsageError(f"'{path}' holds {len(names)} subfolders with pictures", "put each class into a subfolder")
    if len(names) > classes:
        raise UsageError(f"'{path}' holds {len(names)} classes, the network has {classes}", "leave some classes out")
    _pillow()
    by_class = [[Labelled(file, label) for file in _pictures_in(path / name)] for label, name in enumerate(names)]
    test = [file for files in by_class for file in files[_EACH_TEST - 1 :: _EACH_TEST]]
    train = [file for files in by_class for number, file in enumerate(files) if number % _EACH_TEST != _EACH_TEST - 1]
    return _splits(train, test, shape, path, path.name, "the user's own", str(path))


def minc_source(shape: Shape) -> Source:
    """MINC-2500 (23 materials) in the size that a network takes: the first of its five splits."""
    present = functools.partial(cache.is_present, catalogue.MINC2500)
    return Source("minc-2500", "real-full", functools.partial(_minc, shape), present, "minc-2500")


def _minc(shape: Shape) -> Splits:
    _pillow()
    root = _unpacked_minc()
    names = (root / "categories.txt").read_text(encoding="ascii").split()
    train, test = (
        [
            Labelled(root / line, names.index(line.split("/")[1]))
            for line in (root / "labels" / f"{part}1.txt").read_text(encoding="ascii").split()
        ]
        for part in ("train", "test")
    )
    dataset = catalogue.MINC2500
    return _splits(train, test, shape, root, dataset.name, dataset.licence, dataset.files[0].urls[0])


def _unpacked_minc() -> Path:
    """The folder minc-2500/ beside its archive, unpacked the first time and checked then."""
    dataset = catalogue.MINC2500
    archive = cache.path(dataset, dataset.files[0])
    mark, root = archive.with_name(_UNPACKED), archive.with_name("minc-2500")
    if not mark.is_file():
        try:
            if cache.verify(dataset)[archive.name] != "ok":
                raise OSError("its checksum is wrong")
            with tarfile.open(archive) as opened:
                opened.extractall(archive.parent, **_extract_filter())
            mark.touch()
        except (tarfile.TarError, OSError, EOFError, zlib.error) as error:
            hint = "stepscope data fetch minc-2500; it needs room for the archive and 57,500 files"
            raise DataUnavailable(f"'{archive}' cannot be unpacked ({error})", hint) from error
    return root


def _extract_filter() -> dict[str, Any]:
    return {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # since Python 3.10.12


def _splits(
    train: list[Labelled], test: list[Labelled], shape: Shape, root: Path, name: str, licence: str, origin: str
) -> Splits:
    facts = DataFacts(name, "real-full", _sha256([*train, *test], root), licence, origin, len(train), len(test))
    return Splits(PictureFileDataset(train, shape), PictureFileDataset(test, shape) if test else None, facts)


def _sha256(files: Sequence[Labelled], root: Path) -> str:
    """SHA-256 over name, class and size of every file: their bytes would have to be read in full at every run."""
    digest = hashlib.sha256()
    for file in files:
        digest.update(f"{file.path.relative_to(root)} {file.label} {file.path.stat().st_size}\n".encode())
    return digest.hexdigest()


def _pictures_in(folder: Path) -> list[Path]:
    return sorted(file for file in folder.iterdir() if file.suffix.lower() in ENDINGS)


def _pillow() -> Any:
    if importlib.util.find_spec("PIL") is None:
        hint = "pip install 'stepscope[data]'"
        raise MissingDependency("reading pictures needs Pillow, which is not installed", hint)
    return importlib.import_module("PIL.Image")
