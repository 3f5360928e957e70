"""The data files that ship inside the package, made from what their authors published.

    python -m benchmarks.shipped_data --fashion-mnist FOLDER --shakespeare input.txt --xquad xquad.en.json
        --tatoeba vie.txt --fsdd FOLDER --basic-motions FOLDER

Each option is optional and makes one file in `stepscope/workloads/data/files`; origin, changes and licence of each
stand in LICENCES.txt there. What is printed, file by file, is the hash that the reader compares. Nothing is drawn at
random: the same sources give the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import re
import wave
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stepscope.workloads.data import packaged, signals
from stepscope.workloads.data.pictures import idx_tensor

_TRAIN_EACH, _TEST_EACH = 500, 100  # pictures of a class
_ARTICLES_TESTED = 10  # the last ones, of 48: no paragraph is on both sides
_EVERY_TESTED = 10  # sentence
_LOST = re.compile(r"\+|\s-")
_SIGNS = re.compile(r"\w+(?:['’]\w+)*|[^\w\s]")


def clothing(folder: Path) -> dict[str, Any]:
    """The first 500 training and 100 test pictures of each class of Fashion-MNIST, class by class."""

    def part(name: str, each: int) -> tuple[Any, Any]:
        read = [
            idx_tensor(gzip.decompress((folder / f"{name}-{kind}-ubyte.gz").read_bytes()), name)
            for kind in ("images-idx3", "labels-idx1")
        ]
        chosen = torch.cat([torch.nonzero(read[1] == label).flatten()[:each] for label in range(10)])
        return read[0][chosen].numpy(), read[1][chosen].numpy()

    train, test = part("train", _TRAIN_EACH), part("t10k", _TEST_EACH)
    return dict(zip(packaged.PICTURES, (*train, *test), strict=True))


def questions(file: Path) -> str:
    """The English questions of XQuAD in the form of SQuAD, without what is not read."""
    articles = json.loads(file.read_text(encoding="utf-8"))["data"]
    kept = [
        {"title": article.get("title", ""), "paragraphs": [
            {"context": paragraph["context"], "qas": [
                {"question": asked["question"], "answers": [
                    {key: asked["answers"][0][key] for key in ("answer_start", "text")}
                ]}
                for asked in paragraph["qas"]
            ]}
            for paragraph in article["paragraphs"]
        ]}
        for article in articles
    ]  # fmt: skip
    cut = len(kept) - _ARTICLES_TESTED
    return json.dumps({"train": {"data": kept[:cut]}, "test": {"data": kept[cut:]}}, ensure_ascii=False, indent=0)


def sentences(file: Path) -> str:
    """Lines of "English <tab> Vietnamese <tab> numbers of both sentences", words apart; each sentence once.

    Excludes those whose hyphens and apostrophes the source has lost: they are "+" and " -" there.
    """
    seen: set[str] = set()

    def rows() -> Iterator[str]:
        for line in file.read_text(encoding="utf-8").splitlines():
            english, vietnamese, credit = line.split("\t")
            english, vietnamese = (text.replace("\u200b", "") for text in (english, vietnamese))
            if {english, vietnamese} & seen or _LOST.search(english) or _LOST.search(vietnamese):
                continue
            seen.update((english, vietnamese))
            numbers = " ".join(re.findall(r"#(\d+)", credit))
            yield "\t".join((" ".join(_SIGNS.findall(english)), " ".join(_SIGNS.findall(vietnamese)), numbers))

    return "\n".join(rows()) + "\n"


def spoken(folder: Path) -> dict[str, Any]:
    """Cepstral coefficients of all recordings of the Free Spoken Digit Dataset, 8 bits each, and their scale.

    Takes 8 kHz to 16 kHz by repeating each sample: the mel bands end at 4 kHz, which 8 kHz just holds, and the images
    of the spectrum lie above.
    """
    files = sorted(folder.glob("*.wav"), key=lambda file: (file.stem.split("_")[1], file.stem))
    sounds = torch.stack([_second(file) for file in files])
    features = torch.cat([signals.cepstra(part) for part in torch.split(sounds, 200)])  # [N, 49, 10]
    scale = features.abs().amax(dim=(0, 1)) / 127  # a coefficient
    return {
        "features": (features / scale).round().to(torch.int8).numpy(),
        "scale": scale.numpy(),
        "labels": np.array([int(file.stem.split("_")[0]) for file in files], dtype=np.uint8),
        "test": np.array([int(file.stem.split("_")[2]) < 5 for file in files]),  # as its authors divide it
    }


def _second(file: Path) -> torch.Tensor:
    with wave.open(io.BytesIO(file.read_bytes())) as opened:
        if (opened.getframerate(), opened.getsampwidth(), opened.getnchannels()) != (8_000, 2, 1):
            raise SystemExit(f"{file}: not 16 bits of one channel at 8 kHz")
        samples = np.frombuffer(opened.readframes(opened.getnframes()), dtype="<i2").astype(np.float32) / 32768
    doubled = torch.from_numpy(samples).repeat_interleave(2)[: signals.RATE]
    return torch.nn.functional.pad(doubled, (0, signals.RATE - len(doubled)))


def motions(folder: Path) -> dict[str, Any]:
    """The 80 recordings of BasicMotions as numbers of 32 bits."""
    parts = [_recordings((folder / f"BasicMotions_{part}.ts").read_text()) for part in ("TRAIN", "TEST")]
    return dict(zip(packaged.MOTIONS, (*parts[0], *parts[1]), strict=True))


def _recordings(content: str) -> tuple[Any, Any]:
    """Recordings [N, 6, 100] and classes [N]; a line each, with ":" between the axes and before the class."""
    rows = [line for line in content.splitlines() if line.strip() and not line.startswith(("@", "#"))]
    parts = [row.split(":") for row in rows]
    values = np.array([[axis.split(",") for axis in part[:-1]] for part in parts], dtype=np.float32)
    return values, np.array([signals.MOTION_CLASSES.index(part[-1].strip()) for part in parts], dtype=np.uint8)


def _write_text(name: str, content: str) -> None:
    path = packaged.FOLDER / name
    path.write_bytes(gzip.compress(content.encode("utf-8"), 9, mtime=0))
    print(f"{name}: {path.stat().st_size} bytes, {packaged.text_sha256(content)}")


def _write_arrays(name: str, arrays: dict[str, Any]) -> None:
    path = packaged.FOLDER / name
    np.savez_compressed(path, **arrays)
    print(f"{name}: {path.stat().st_size} bytes, {packaged.arrays_sha256(arrays.values())}")


def main(arguments: Iterable[str] | None = None) -> None:
    """Make the files whose sources are given."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    for option in ("fashion-mnist", "shakespeare", "xquad", "tatoeba", "fsdd", "basic-motions"):
        parser.add_argument(f"--{option}", type=Path)
    given = parser.parse_args(None if arguments is None else list(arguments))
    if given.fashion_mnist:
        _write_arrays("clothing.npz", clothing(given.fashion_mnist))
    if given.shakespeare:
        _write_text("shakespeare.txt.gz", given.shakespeare.read_text(encoding="ascii"))
    if given.xquad:
        _write_text("questions.json.gz", questions(given.xquad))
    if given.tatoeba:
        _write_text("sentences.tsv.gz", sentences(given.tatoeba))
    if given.fsdd:
        _write_arrays("spoken-digits.npz", spoken(given.fsdd))
    if given.basic_motions:
        _write_arrays("motions.npz", motions(given.basic_motions))


if __name__ == "__main__":
    main()
