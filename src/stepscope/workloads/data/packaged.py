"""Data files and weights that ship inside the package, each compared with the hash of its content when it is read.

`files/LICENCES.txt` says of each where it is from, what was changed, and under which licence it is passed on;
`benchmarks/shipped_data.py` makes all but the digits anew from what their authors
published. numpy's zip of deflated arrays, and
text in gzip: both are read without a library, and neither can run anything.
"""

from __future__ import annotations

import gzip
import hashlib
import zipfile
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stepscope.errors import DataUnavailable

FOLDER = Path(__file__).with_name("files")
PICTURES = ("train_images", "train_labels", "test_images", "test_labels")
MOTIONS = ("train", "train_labels", "test", "test_labels")
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Weights:
    """Weights of a workload, trained on pictures none of which is in the data set `new`; accuracy on its test part."""

    sha256: str
    trained_on: str
    new: str
    accuracy: float  # 0 to 1


_CLOTHING = "pictures of Fashion-MNIST that do not ship"
WEIGHTS = {
    "densenet40-4-c32": Weights(
        "fbc8696357dde1b1bd6c63879ab4ae26721ad5adb6b6699cf0d6324853a90a3c",
        f"10,000 {_CLOTHING}",
        "fashion-mnist-6k",
        0.876,
    ),
    "lenet": Weights(
        "7bf9d7fe0572ffe7f25a24d68872a34a50ba18e9f67b5872a8056a13db9d9d4b",
        f"20,000 {_CLOTHING}",
        "fashion-mnist-6k",
        0.863,
    ),
    "resnet8-c32": Weights(
        "775872433fd8fa9c17081153d7214c0c2827f3cd4226a2cf847fa30e54fb3a80",
        f"20,000 {_CLOTHING}",
        "fashion-mnist-6k",
        0.885,
    ),
}


def shipped_weights(workload: str) -> dict[str, Tensor]:
    """The weights that ship for a workload, by name. DataUnavailable where they are not what was packaged."""
    arrays = load_arrays(f"{workload}.npz", None, WEIGHTS[workload].sha256)
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


def load_arrays(file: str, names: Sequence[str] | None, sha256: str, folder: Path | None = None) -> dict[str, Array]:
    """The arrays of these names in this order, or all. DataUnavailable where they are not what was packaged."""
    try:
        with ((folder or FOLDER) / file).open("rb") as opened, np.load(opened, allow_pickle=False) as packed:
            arrays = {name: packed[name] for name in (packed.files if names is None else names)}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(file, f"cannot be read ({error})") from error
    if arrays_sha256(arrays.values()) != sha256:
        raise _damaged(file, "is not what was packaged (its content hash differs)")
    return arrays


def load_text(file: str, sha256: str, folder: Path | None = None) -> str:
    """The text of a file. DataUnavailable where it is not what was packaged."""
    try:
        text = gzip.decompress(((folder or FOLDER) / file).read_bytes()).decode("utf-8")
    except (OSError, ValueError, EOFError, zlib.error) as error:
        raise _damaged(file, f"cannot be read ({error})") from error
    if text_sha256(text) != sha256:
        raise _damaged(file, "is not what was packaged (its content hash differs)")
    return text


def arrays_sha256(arrays: Iterable[Array]) -> str:
    """SHA-256 of the bytes of the arrays in their order, so that it outlives a change of compression."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def text_sha256(content: str) -> str:
    """SHA-256 of a text in UTF-8."""
    return hashlib.sha256(content.encode("utf-8")).hexdigest()


def _damaged(file: str, what: str) -> DataUnavailable:
    return DataUnavailable(f"the packaged file '{file}' {what}", "reinstall: pip install --force-reinstall stepscope")
