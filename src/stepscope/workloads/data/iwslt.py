"""IWSLT15, English to Vietnamese: TED talks, a sentence a line, words already apart.

The vocabularies have the sizes of the published ones and are made from the training sentences: the most frequent words.
"""

from __future__ import annotations

import functools
import hashlib

import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepscope.errors import DataUnavailable
from stepscope.workloads.data import cache, catalogue, synthetic
from stepscope.workloads.data.source import Batch, DataFacts, Source, Splits
from stepscope.workloads.data.text import vocabulary_of

SOURCE_WORDS, TARGET_WORDS = 17_191, 7_709
LENGTH = 50  # words a sentence; longer ones are cut
PADDING, BEGIN, END, RESERVED = 0, 1, 2, 3


class Pairs(Dataset[Batch]):
    """(source [50], written [50], what follows each written word [50]); sentences are kept as 16-bit numbers."""

    def __init__(self, source: Tensor, target: Tensor) -> None:
        self._source, self._target = source, target  # [N, 50], [N, 51]

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Batch:
        target = self._target[index].long()
        written = target[:-1].masked_fill(target[:-1] == END, PADDING)  # the end is predicted and never read
        return self._source[index].long(), written, target[1:]


def numbered(lines: list[str], numbers: dict[str, int], words: int) -> Tensor:
    """Sentences [N, LENGTH] of word numbers, padded; what is in no vocabulary has the last number."""
    rows = [[numbers.get(word, words - 1) for word in line.split()[:LENGTH]] for line in lines]
    return torch.tensor([row + [PADDING] * (LENGTH - len(row)) for row in rows], dtype=torch.int16).view(-1, LENGTH)


def targets(lines: list[str], numbers: dict[str, int], words: int) -> Tensor:
    """Sentences [N, LENGTH + 1] between a begin and an end."""
    rows = [[BEGIN, *(numbers.get(word, words - 1) for word in line.split()[: LENGTH - 1]), END] for line in lines]
    size = LENGTH + 1
    return torch.tensor([row + [PADDING] * (size - len(row)) for row in rows], dtype=torch.int16).view(-1, size)


def _load() -> Splits:
    dataset = catalogue.IWSLT15
    texts = {file.name: cache.read(dataset, file.name) for file in dataset.files}
    lines = {name: content.decode("utf-8").splitlines() for name, content in texts.items()}
    vocabularies = [
        vocabulary_of([word for line in lines[f"train.{language}"] for word in line.split()], size, RESERVED)
        for language, size in (("en", SOURCE_WORDS), ("vi", TARGET_WORDS))
    ]
    parts = []
    for part in ("train", "tst2013"):
        english, vietnamese = lines[f"{part}.en"], lines[f"{part}.vi"]
        if len(english) != len(vietnamese):
            said = f"{part} of {dataset.name} has {len(english)} sentences in English and {len(vietnamese)} translated"
            raise DataUnavailable(said, f"stepscope data fetch {dataset.name}")
        source = numbered(english, vocabularies[0], SOURCE_WORDS)
        parts.append(Pairs(source, targets(vietnamese, vocabularies[1], TARGET_WORDS)))
    facts = DataFacts(
        name=dataset.name,
        kind="real-full",
        sha256=hashlib.sha256(b"".join(texts[name] for name in sorted(texts))).hexdigest(),
        licence=dataset.licence,
        origin=dataset.files[0].urls[0].rpartition("/")[0],
        train_size=len(parts[0]),
        test_size=len(parts[1]),
    )
    return Splits(parts[0], parts[1], facts)


def _made_up(size: int, randomness: torch.Generator) -> Batch:
    source, target = (
        torch.randint(RESERVED, words, (size, LENGTH), generator=randomness) for words in (SOURCE_WORDS, TARGET_WORDS)
    )
    written = torch.cat([torch.full((size, 1), BEGIN), target[:, :-1]], dim=1)
    return source, written, target


SOURCES = (
    Source(
        catalogue.IWSLT15.name,
        "real-full",
        _load,
        functools.partial(cache.present, catalogue.IWSLT15),
        catalogue.IWSLT15.name,
    ),
    synthetic.source(_made_up),
)
