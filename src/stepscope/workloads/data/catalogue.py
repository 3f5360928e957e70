"""The data sets that workloads are trained on: which there are, fetching them, and whether what is here is whole.

Addresses and checksums are as public libraries record them. `listed` and `verify` say how things stand; `fetch`
downloads. Data lies in $STEPSCOPE_DATA, else in ~/.cache/stepscope.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stepscope.errors import UnknownName
from stepscope.workloads.data import cache
from stepscope.workloads.data.cache import DataSet, RemoteFile

_IDX = ("train-images", "train-labels", "t10k-images", "t10k-labels")
_IDX_FILES = tuple(f"{name}-idx{3 if 'images' in name else 1}-ubyte.gz" for name in _IDX)


def _idx_files(mirrors: tuple[str, ...], algorithm: str, digests: tuple[str, ...]) -> tuple[RemoteFile, ...]:
    return tuple(
        RemoteFile(name, tuple(mirror + name for mirror in mirrors), f"{algorithm}:{digest}")
        for name, digest in zip(_IDX_FILES, digests, strict=True)
    )


def _iwslt(name: str, digest: str) -> RemoteFile:
    return RemoteFile(name, (f"https://nlp.stanford.edu/projects/nmt/data/iwslt15.en-vi/{name}",), f"sha256:{digest}")


CIFAR10 = DataSet(
    name="cifar-10",
    summary="60,000 colour photographs of 32 x 32 in 10 classes",
    licence="none stated; A. Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    files=(
        RemoteFile(
            "cifar-10-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            "sha256:c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
            170_052_171,
        ),
    ),
    source="tensorflow-datasets",
)
MNIST = DataSet(
    name="mnist",
    summary="70,000 handwritten digits, grey, 28 x 28",
    licence="CC BY-SA 3.0, as keras states",
    files=_idx_files(
        (
            "https://storage.googleapis.com/cvdf-datasets/mnist/",
            "https://ossci-datasets.s3.amazonaws.com/mnist/",
        ),
        "sha256",
        (
            "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
            "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
            "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
            "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        ),
    ),
    source="tensorflow-datasets",
)
FASHION_MNIST = DataSet(
    name="fashion-mnist",
    summary="70,000 pieces of clothing in 10 classes, grey, 28 x 28",
    licence="MIT, Zalando SE",
    files=_idx_files(
        ("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
        "md5",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
    source="torchvision",
)
SQUAD = DataSet(
    name="squad-v1.1",
    summary="100,000 questions on paragraphs of Wikipedia; the answer is a span of the paragraph",
    licence="CC BY-SA 4.0",
    files=(
        RemoteFile(
            "train-v1.1.json",
            ("https://rajpurkar.github.io/SQuAD-explorer/dataset/train-v1.1.json",),
            "sha256:3527663986b8295af4f7fcdff1ba1ff3f72d07d61a20f487cb238a6ef92fd955",
            30_288_272,
        ),
        RemoteFile(
            "dev-v1.1.json",
            ("https://rajpurkar.github.io/SQuAD-explorer/dataset/dev-v1.1.json",),
            "sha256:95aa6a52d5d6a735563366753ca50492a658031da74f301ac5238b03966972c9",
            4_854_279,
        ),
    ),
    source="tensorflow-datasets",
)
IWSLT15 = DataSet(
    name="iwslt15-en-vi",
    summary="133,317 sentences of TED talks in English and Vietnamese",
    licence="none stated by the host; TED talks, prepared by Stanford",
    files=(
        _iwslt("train.en", "c26dfeed74b6bf3752f5ca552f2412456f0de153f7c804df8717931fb3a5c78a"),
        _iwslt("train.vi", "707206edf2dc0280273952c7b70544ea8a1363aa69aaeb9d70514b888dc3067d"),
        _iwslt("tst2012.en", "b8fbcd0d4199d41276421d1f7228298df67dd9e2c5c134c2ee8cdf3ec27801e2"),
        _iwslt("tst2012.vi", "01004078b3f36b0c46e81b65fc6851230b3c823405c76d1d82ef3b786b512ff0"),
        _iwslt("tst2013.en", "3860ce60bc5b85d96cc2d3d580cf1bc9d62440e939c1b964676d3607c4e8f1df"),
        _iwslt("tst2013.vi", "29af16842808da2812b8fd4d47fc05d082ba870e60ab7755090ad04b380994cd"),
    ),
    source="the data set's loader on the Hugging Face hub",
)
MINC2500 = DataSet(
    name="minc-2500",
    summary="57,500 photographs of 23 materials",
    licence="none stated by the host; S. Bell et al., Material recognition in the wild, CVPR 2015",
    files=(
        RemoteFile(
            "minc-2500.tar.gz",
            ("http://opensurfaces.cs.cornell.edu/static/minc/minc-2500.tar.gz",),
            "sha1:bcccbb3b1ab396ef540f024a5ba23eff54f7fe31",
        ),
    ),
    source="a public preparation script (prepare_minc)",
)
SPEECH_COMMANDS = DataSet(
    name="speech-commands",
    summary="105,829 spoken words of one second, version 0.02",
    licence="CC BY 4.0, Google",
    files=(
        RemoteFile(
            "speech_commands_v0.02.tar.gz",
            ("http://download.tensorflow.org/data/speech_commands_v0.02.tar.gz",),
            "sha256:af14739ee7dc311471de98f5f9d2c9191b18aedfe957f4a6ff791c709868ff58",
        ),
        RemoteFile(
            "speech_commands_test_set_v0.02.tar.gz",
            ("http://download.tensorflow.org/data/speech_commands_test_set_v0.02.tar.gz",),
            "sha256:cc2a00c1147c2254e9be3fa0f779d8c17421dc349b86366567a8edfa9acd51df",
        ),
    ),
    source="tensorflow-datasets",
)
DATA_SETS = (CIFAR10, MNIST, FASHION_MNIST, SQUAD, IWSLT15, MINC2500, SPEECH_COMMANDS)


@dataclass(frozen=True)
class Packaged:
    """A data set that some installed package brings."""

    name: str
    summary: str
    licence: str
    get: str
    present: Callable[[], bool]


def is_module_installed(module: str) -> bool:
    """Return whether a module can be found, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # of the package that it would be in
        return False


def _shipped(name: str, summary: str, licence: str) -> Packaged:
    return Packaged(name, summary, licence, "part of Stepscope", lambda: True)


DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
PACKAGED = (
    _shipped("mnist-5k", "5,000 handwritten digits", "CC BY-SA 3.0"),
    _shipped("fashion-mnist-6k", "6,000 pieces of clothing of fashion-mnist", "MIT, Zalando SE"),
    _shipped("tiny-shakespeare", "40,000 lines of Shakespeare, 65 different characters", "public domain"),
    _shipped("squad-1k", "1,190 questions of squad-v1.1, those of XQuAD", "CC BY-SA 4.0"),
    _shipped("tatoeba-en-vi-7k", "6,976 sentences in English and Vietnamese", "CC BY 2.0 FR, Tatoeba"),
    _shipped("spoken-digits-3k", "3,000 digits, spoken by six people", "CC BY-SA 4.0"),
    _shipped("basic-motions", "80 recordings of a watch with six axes", "BSD-3-Clause, as packaged in aeon"),
    Packaged(
        "python-topics",
        "the topics of Python's documentation, half a million characters",
        "PSF-2.0",
        "part of Python",
        lambda: is_module_installed("pydoc_data.topics"),
    ),
    Packaged(
        "fashion-mnist (Debian)",
        "the same as fashion-mnist",
        "MIT, Zalando SE",
        "apt-get install dataset-fashion-mnist",
        DEBIAN_FASHION_MNIST.is_dir,
    ),
    Packaged(
        "atari-breakout",
        "an emulated Atari 2600 with its games",
        "GPL-2.0 (ale-py)",
        "pip install 'stepscope[atari]'",
        lambda: is_module_installed("ale_py"),
    ),
)


def find(name: str) -> DataSet:
    """The data set of this name."""
    by_name = {dataset.name: dataset for dataset in DATA_SETS}
    if name not in by_name:
        raise UnknownName("data set", name, by_name)
    return by_name[name]


__all__ = ["fetch", "listed", "verify"]


def listed() -> list[dict[str, Any]]:
    """Every data set: name, present, summary, licence, and how to get it."""
    downloads = [
        _row(dataset, cache.is_present(dataset), f"stepscope data fetch {dataset.name}") for dataset in DATA_SETS
    ]
    return [*downloads, *(_row(dataset, dataset.present(), dataset.get) for dataset in PACKAGED)]


def fetch(name: str, progress: Callable[[str, int, int | None], None] = lambda name, done, size: None) -> list[Path]:
    """Download a data set and return its files: resumed where it broke off, kept only with the right checksum.

    progress: told the name and how many bytes are here of how many, None where that is not known. Raises UnknownName,
    MissingDependency without the extra `data`, and DataUnavailable where no mirror gives it.
    """
    return cache.fetch(find(name), progress)


def verify(names: Sequence[str] = ()) -> list[dict[str, str]]:
    """A row for each file of these data sets, or of all that have been fetched: data set, file, and its state.

    The state is "ok" where the checksum holds. Raises UnknownName.
    """
    chosen = [find(name) for name in names] or [dataset for dataset in DATA_SETS if _partly_present(dataset)]
    return [
        {"data set": dataset.name, "file": file, "state": state}
        for dataset in chosen
        for file, state in cache.verify(dataset).items()
    ]


def _row(dataset: Any, present: bool, get: str) -> dict[str, Any]:
    return {
        "name": dataset.name,
        "present": present,
        "summary": dataset.summary,
        "licence": dataset.licence,
        "get": get,
    }


def _partly_present(dataset: cache.DataSet) -> bool:
    """Return whether any file of it is here."""
    return any(cache.is_present(replace(dataset, files=(file,))) for file in dataset.files)
