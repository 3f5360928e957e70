"""SQuAD v1.1 as BERT takes it: [CLS] question [SEP] paragraph [SEP], and where the answer starts and ends.

Tokens are whole words and signs, numbered by how often they occur; BERT's own word pieces need a file that is not part
of the data set. The vocabulary has the size of BERT's and is made from the training questions. Questions whose answer
lies past the length are excluded, in training and in testing, and counted. A tenth of its development set, 1,190
questions on 48 articles, ships inside the package: the last ten articles test.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepscope.errors import DataUnavailable
from stepscope.workloads.data import cache, catalogue, packaged, synthetic
from stepscope.workloads.data.source import Batch, DataFacts, Source, Splits
from stepscope.workloads.data.text import vocabulary_of

VOCABULARY = 30_522  # of BERT
PADDING, CLS, SEP, RESERVED = 0, 1, 2, 3
_MOST_QUESTION = 64  # tokens, as in BERT's own code
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Question:
    """Tokens of question and paragraph; the answer is paragraph[start : end + 1]."""

    question: list[str]
    paragraph: list[str]
    start: int
    end: int


class EncodedQuestions(Dataset[Batch]):
    """(tokens [T], types [T], mask [T], start, end) of each question."""

    def __init__(self, rows: Tensor, bounds: Tensor) -> None:
        self._rows, self._bounds = rows, bounds  # [N, T] int16; [N, 4]: second part's begin, length, start, end

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Batch:
        second, length, start, end = self._bounds[index]
        places = torch.arange(self._rows.shape[1])
        mask = places < length
        return self._rows[index].long(), ((places >= second) & mask).long(), mask, start, end


def sources(length: int) -> tuple[Source, ...]:
    """SQuAD where it has been fetched, else the questions of it that ship inside the package."""
    present = functools.partial(cache.is_present, catalogue.SQUAD)
    real = Source(
        catalogue.SQUAD.name, "real-full", functools.partial(_load_squad, length), present, catalogue.SQUAD.name
    )
    part = Source(_XQUAD, "real-subset", functools.partial(_load_xquad, length))
    return (real, part, synthetic.source(functools.partial(_synthetic_squad, length), size=256))


def questions(content: bytes) -> Iterator[Question]:
    """The questions of one file, each with its first answer."""
    try:
        for article in json.loads(content)["data"]:
            for paragraph in article["paragraphs"]:
                yield from _questions_of_paragraph(paragraph)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        hint = f"stepscope data fetch {catalogue.SQUAD.name}"
        raise DataUnavailable(f"a file of SQuAD is not as published ({error!r})", hint) from error


def encoded_questions(questions: list[Question], numbers: dict[str, int], length: int) -> EncodedQuestions:
    """The questions whose answer lies within `length` tokens."""
    rows, bounds = [], []
    for question in questions:
        first = [CLS, *(_number(word, numbers) for word in question.question[:_MOST_QUESTION]), SEP]
        room = length - len(first) - 1
        if question.end < room:
            tokens = [*first, *(_number(word, numbers) for word in question.paragraph[:room]), SEP]
            rows.append(tokens + [PADDING] * (length - len(tokens)))
            bounds.append((len(first), len(tokens), len(first) + question.start, len(first) + question.end))
    return EncodedQuestions(torch.tensor(rows, dtype=torch.int16).view(-1, length), torch.tensor(bounds).view(-1, 4))


def _questions_of_paragraph(paragraph: dict[str, Any]) -> Iterator[Question]:
    tokens = list(_TOKEN.finditer(paragraph["context"]))
    words = [match[0].lower() for match in tokens]
    for question in paragraph["qas"]:
        answer = question["answers"][0]
        begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        inside = [index for index, match in enumerate(tokens) if match.start() < end and match.end() > begin]
        if inside:
            yield Question(_TOKEN.findall(question["question"].lower()), words, inside[0], inside[-1])


def _number(word: str, numbers: dict[str, int]) -> int:
    return numbers.get(word, VOCABULARY - 1)


def _load_squad(length: int) -> Splits:
    dataset = catalogue.SQUAD
    train, test = (list(questions(cache.read(dataset, file.name))) for file in dataset.files)
    facts = DataFacts(
        name=dataset.name,
        kind="real-full",
        sha256=dataset.files[0].checksum.partition(":")[2],  # `read` has just compared it
        licence=dataset.licence,
        origin=dataset.files[0].urls[0],
        train_size=len(train),
        test_size=len(test),
    )
    return _splits_of_questions(train, test, facts, length)


_XQUAD = "squad-1k"
_XQUAD_SHA256 = "10fe2e001d661754fad24ff3525051448a6eb81b54c41e0dee089c173387bdbf"


def _load_xquad(length: int) -> Splits:
    articles = json.loads(packaged.load_text("questions.json.gz", _XQUAD_SHA256))
    train, test = (list(questions(json.dumps(articles[part]).encode())) for part in ("train", "test"))
    facts = DataFacts(
        name=_XQUAD,
        kind="real-subset",
        sha256=_XQUAD_SHA256,
        licence="CC BY-SA 4.0",
        origin="the 1,190 questions of SQuAD v1.1 that XQuAD took (https://github.com/google-deepmind/xquad)",
        train_size=len(train),
        test_size=len(test),
    )
    return _splits_of_questions(train, test, facts, length)


def _splits_of_questions(train: list[Question], test: list[Question], facts: DataFacts, length: int) -> Splits:
    """Questions as numbers; of the words that occur most in training."""
    words = [word for question in train for word in (*question.question, *question.paragraph)]
    numbers = vocabulary_of(words, VOCABULARY, reserved=RESERVED)
    learnt, tested = (encoded_questions(questions, numbers, length) for questions in (train, test))
    text = f"{facts.name}, words, {length} tokens, without {len(train) - len(learnt)} longer ones"
    return Splits(learnt, tested, replace(facts, name=text, train_size=len(learnt), test_size=len(tested)))


def _synthetic_squad(length: int, size: int, randomness: torch.Generator) -> Batch:
    tokens = torch.randint(RESERVED, VOCABULARY, (size, length), generator=randomness)
    types = (torch.arange(length) >= length // 4).long().expand(size, -1).contiguous()
    start, end = torch.randint(length // 4, length, (2, size), generator=randomness).sort(dim=0).values
    return tokens, types, torch.ones(size, length, dtype=torch.bool), start, end
