"""Sentences with their translations, English to Vietnamese, a sentence a line, words already apart.

IWSLT15, TED talks, is fetched. 6,976 sentences of Tatoeba, which are shorter, ship inside the package: every tenth
tests. The vocabularies have the sizes of the published ones and are made from the training sentences: the most
frequent words.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepscope.errors import DataUnavailable
from stepscope.workloads.data import cache, catalogue, packaged, synthetic
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


def numbered_words(lines: list[str], numbers: dict[str, int], words: int) -> Tensor:
    """Sentences [N, LENGTH] of word numbers, padded; what is in no vocabulary has the last number."""
    rows = [[numbers.get(word, words - 1) for word in line.split()[:LENGTH]] for line in lines]
    return torch.tensor([row + [PADDING] * (LENGTH - len(row)) for row in rows], dtype=torch.int16).view(-1, LENGTH)


def target_words(lines: list[str], numbers: dict[str, int], words: int) -> Tensor:
    """Sentences [N, LENGTH + 1] between a begin and an end."""
    rows = [[BEGIN, *(numbers.get(word, words - 1) for word in line.split()[: LENGTH - 1]), END] for line in lines]
    size = LENGTH + 1
    return torch.tensor([row + [PADDING] * (size - len(row)) for row in rows], dtype=torch.int16).view(-1, size)


def _load_iwslt() -> Splits:
    dataset = catalogue.IWSLT15
    texts = {file.name: cache.read(dataset, file.name) for file in dataset.files}
    lines = {name: content.decode("utf-8").splitlines() for name, content in texts.items()}
    parts = [(lines[f"{part}.en"], lines[f"{part}.vi"]) for part in ("train", "tst2013")]
    for part, (english, vietnamese) in zip(("train", "tst2013"), parts, strict=True):
        if len(english) != len(vietnamese):
            text = f"{part} of {dataset.name} has {len(english)} sentences in English and {len(vietnamese)} translated"
            raise DataUnavailable(text, f"stepscope data fetch {dataset.name}")
    facts = DataFacts(
        name=dataset.name,
        kind="real-full",
        sha256=hashlib.sha256(b"".join(texts[name] for name in sorted(texts))).hexdigest(),
        licence=dataset.licence,
        origin=dataset.files[0].urls[0].rpartition("/")[0],
        train_size=len(parts[0][0]),
        test_size=len(parts[1][0]),
    )
    return _splits_of_pairs(parts, facts)


_TATOEBA = "tatoeba-en-vi-7k"
_TATOEBA_SHA256 = "7145b1c4e7fc1c8da46ab791d96ffe9a370be29839a67f783897170d1f40f0e1"
_TESTED_EVERY = 10  # sentence: they are sorted by length


def _load_tatoeba() -> Splits:
    rows = [line.split("\t")[:2] for line in packaged.load_text("sentences.tsv.gz", _TATOEBA_SHA256).splitlines()]
    tested = [number % _TESTED_EVERY == _TESTED_EVERY - 1 for number in range(len(rows))]
    parts = []
    for test in (False, True):
        chosen = [row for row, here in zip(rows, tested, strict=True) if here is test]
        parts.append(([english for english, _ in chosen], [vietnamese for _, vietnamese in chosen]))
    facts = DataFacts(
        name=_TATOEBA,
        kind="real-subset",
        sha256=_TATOEBA_SHA256,
        licence="CC BY 2.0 FR, the authors of https://tatoeba.org",
        origin="sentences of Tatoeba, as https://www.manythings.org/anki pairs them",
        train_size=len(parts[0][0]),
        test_size=len(parts[1][0]),
    )
    return _splits_of_pairs(parts, facts)


def _splits_of_pairs(parts: Sequence[tuple[list[str], list[str]]], facts: DataFacts) -> Splits:
    """Training and test sentences, English and Vietnamese, as numbers of the words of the training ones."""
    english, vietnamese = (
        vocabulary_of([word for line in lines for word in line.split()], size, RESERVED)
        for lines, size in zip(parts[0], (SOURCE_WORDS, TARGET_WORDS), strict=True)
    )
    train, test = (
        Pairs(numbered_words(source, english, SOURCE_WORDS), target_words(target, vietnamese, TARGET_WORDS))
        for source, target in parts
    )
    return Splits(train, test, facts)


def _synthetic_iwslt(size: int, randomness: torch.Generator) -> Batch:
    source, target = (
        torch.randint(RESERVED, words, (size, LENGTH), generator=randomness) for words in (SOURCE_WORDS, TARGET_WORDS)
    )
    written = torch.cat([torch.full((size, 1), BEGIN), target[:, :-1]], dim=1)
    return source, written, target


SOURCES = (
    Source(
        catalogue.IWSLT15.name,
        "real-full",
        _load_iwslt,
        functools.partial(cache.is_present, catalogue.IWSLT15),
        catalogue.IWSLT15.name,
    ),
    Source(_TATOEBA, "real-subset", _load_tatoeba),
    synthetic.source(_synthetic_iwslt),
)
