"""English text as windows of numbers: Shakespeare, the topics of Python's own documentation, or a file of the user's.

Shakespeare ships inside the package. The topics (`pydoc_data.topics`, what `help("LAMBDA")` shows) come with every
Python; they differ from one version of it to the next, hence the content hash.

SQuAD v1.1 as BERT takes it: [CLS] question [SEP] paragraph [SEP], and where the answer starts and ends.

Tokens are whole words and signs, numbered by how often they occur; BERT's own word pieces need a file that is not part
of the data set. Questions whose answer lies past the length are excluded, in training and in testing, and counted.
A tenth of its development set, 1,190 questions on 48 articles, ships inside the package: the last ten articles test.

IWSLT15, English to Vietnamese: TED talks, a sentence a line, words already apart. 6,976 sentences of Tatoeba,
which are shorter, ship inside the package: every tenth tests.

The vocabularies have the sizes of the published ones and are made from the training sentences: the most frequent words.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepscope.errors import DataUnavailable, UsageError
from stepscope.workloads.data import cache, catalogue, packaged, synthetic
from stepscope.workloads.data.source import Batch, DataFacts, DataKind, Source, Splits, always

Unit = Literal["characters", "words"]
_TEST_SHARE = 0.1  # the end of the text
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Windows:
    """Form of a model's text: unit, size of its vocabulary, tokens a window, and whether it predicts the last token
    only.
    """

    unit: Unit
    vocabulary: int
    length: int
    last_only: bool = False


@dataclass(frozen=True)
class Corpus:
    """A text and what is to be said of it."""

    name: str
    kind: DataKind
    licence: str
    origin: str
    read: Callable[[], str]
    present: Callable[[], bool] = always
    fetch: str | None = None


class WindowSet(Dataset[Batch]):
    """(tokens [L], the tokens that follow each [L]); of the last one only, a single number, where asked for."""

    def __init__(self, tokens: Tensor, windows: Windows) -> None:
        self._tokens, self._windows = tokens, windows
        # Predicting every token uses each once; predicting the last one only takes a window at every quarter.
        self._stride = max(1, windows.length // 4) if windows.last_only else windows.length

    def __len__(self) -> int:
        return max(0, (len(self._tokens) - 1 - self._windows.length) // self._stride + 1)

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < len(self):
            raise IndexError(index)
        start, length = index * self._stride, self._windows.length
        follows = self._tokens[start + 1 : start + length + 1]
        return self._tokens[start : start + length].long(), (follows[-1] if self._windows.last_only else follows).long()


def sources(windows: Windows) -> tuple[Source, ...]:
    """The texts that a language model can be trained on."""
    real = tuple(
        Source(each.name, each.kind, functools.partial(_load, each, windows), each.present, each.fetch)
        for each in (SHAKESPEARE, TOPICS)
    )
    return (*real, synthetic.source(functools.partial(_made_up, windows)))


def own(windows: Windows, path: Path) -> Splits:
    """A text file of the user's, in UTF-8."""
    if not path.is_file():
        raise UsageError(f"'{path}' is no text file", "language models are trained on one file of text")

    def read() -> str:
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise DataUnavailable(f"'{path}' cannot be read ({error})", "give a file of text in UTF-8") from error

    return _load(Corpus(path.name, "real-full", "the user's own", str(path), read), windows)


def split_up(text: str, unit: Unit) -> list[str]:
    """The units of a text: characters, or words and signs in lower case."""
    return list(text) if unit == "characters" else _WORD.findall(text.lower())


def vocabulary_of(units: Sequence[str], size: int, reserved: int = 0) -> dict[str, int]:
    """A number for each of the most frequent units, from `reserved` on; the last one is left for all that are rarer."""
    counted = collections.Counter(units)
    room = size - reserved if len(counted) <= size - reserved else size - reserved - 1
    kept = sorted(unit for unit, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:room])
    return {unit: number for number, unit in enumerate(kept, start=reserved)}


def _load(corpus: Corpus, windows: Windows) -> Splits:
    text = corpus.read()
    units = split_up(text, windows.unit)
    cut = int(len(units) * (1 - _TEST_SHARE))
    numbers = vocabulary_of(units[:cut], windows.vocabulary)
    tokens = torch.tensor([numbers.get(unit, windows.vocabulary - 1) for unit in units], dtype=torch.int32)
    train, test = WindowSet(tokens[:cut], windows), WindowSet(tokens[cut:], windows)
    if len(train) < 1 or len(test) < 1:
        hint = f"it holds {len(units)} {windows.unit}; some {20 * windows.length} are needed"
        raise UsageError(f"the text '{corpus.name}' is too short", hint)
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    facts = DataFacts(corpus.name, corpus.kind, sha256, corpus.licence, corpus.origin, len(train), len(test))
    return Splits(train, test, facts)


def _made_up(windows: Windows, size: int, randomness: torch.Generator) -> Batch:
    tokens = torch.randint(0, windows.vocabulary, (size, windows.length + 1), generator=randomness)
    return tokens[:, :-1].contiguous(), (tokens[:, -1] if windows.last_only else tokens[:, 1:]).contiguous()


_SHAKESPEARE_SHA256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"


def _topics() -> str:
    from pydoc_data import topics

    return "\n".join(topics.topics[name] for name in sorted(topics.topics))


SHAKESPEARE = Corpus(
    name="tiny-shakespeare",
    kind="real-full",
    licence="public domain",
    origin="https://github.com/karpathy/char-rnn",
    read=functools.partial(packaged.text, "shakespeare.txt.gz", _SHAKESPEARE_SHA256),
)
TOPICS = Corpus(
    name="python-topics",
    kind="real-subset",
    licence="PSF-2.0",
    origin=f"pydoc_data.topics of Python {platform.python_version()}",
    read=_topics,
    present=functools.partial(catalogue.installed, "pydoc_data.topics"),
)


VOCABULARY = 30_522  # of BERT
SQUAD_PADDING, CLS, SEP, SQUAD_RESERVED = 0, 1, 2, 3
_MOST_QUESTION = 64  # tokens, as in BERT's own code
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class Question:
    """Tokens of question and paragraph; the answer is paragraph[start : end + 1]."""

    question: list[str]
    paragraph: list[str]
    start: int
    end: int


class Encoded(Dataset[Batch]):
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


def squad_sources(length: int) -> tuple[Source, ...]:
    """SQuAD where it has been fetched, else the questions of it that ship inside the package."""
    present = functools.partial(cache.present, catalogue.SQUAD)
    real = Source(
        catalogue.SQUAD.name, "real-full", functools.partial(_load_squad, length), present, catalogue.SQUAD.name
    )
    part = Source(_XQUAD, "real-subset", functools.partial(_load_xquad, length))
    return (real, part, synthetic.source(functools.partial(_made_up_squad, length), size=256))


def questions(content: bytes) -> Iterator[Question]:
    """The questions of one file, each with its first answer."""
    try:
        paragraphs = [each for article in json.loads(content)["data"] for each in article["paragraphs"]]
        for paragraph in paragraphs:
            yield from _of_paragraph(paragraph)
    except (ValueError, KeyError, TypeError, IndexError) as error:
        hint = f"stepscope data fetch {catalogue.SQUAD.name}"
        raise DataUnavailable(f"a file of SQuAD is not as published ({error!r})", hint) from error


def encoded_questions(questions: list[Question], numbers: dict[str, int], length: int) -> Encoded:
    """The questions whose answer lies within `length` tokens."""
    rows, bounds = [], []
    for each in questions:
        first = [CLS, *(_number(word, numbers) for word in each.question[:_MOST_QUESTION]), SEP]
        room = length - len(first) - 1
        if each.end < room:
            tokens = [*first, *(_number(word, numbers) for word in each.paragraph[:room]), SEP]
            rows.append(tokens + [SQUAD_PADDING] * (length - len(tokens)))
            bounds.append((len(first), len(tokens), len(first) + each.start, len(first) + each.end))
    return Encoded(torch.tensor(rows, dtype=torch.int16).view(-1, length), torch.tensor(bounds).view(-1, 4))


def _of_paragraph(paragraph: dict[str, Any]) -> Iterator[Question]:
    found = list(_TOKEN.finditer(paragraph["context"]))
    words = [match[0].lower() for match in found]
    for question in paragraph["qas"]:
        answer = question["answers"][0]
        begin, end = answer["answer_start"], answer["answer_start"] + len(answer["text"])
        inside = [place for place, match in enumerate(found) if match.start() < end and match.end() > begin]
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
    articles = json.loads(packaged.text("questions.json.gz", _XQUAD_SHA256))
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
    words = [word for each in train for word in (*each.question, *each.paragraph)]
    numbers = vocabulary_of(words, VOCABULARY, reserved=SQUAD_RESERVED)
    learnt, tested = (encoded_questions(questions, numbers, length) for questions in (train, test))
    said = f"{facts.name}, words, {length} tokens, without {len(train) - len(learnt)} longer ones"
    return Splits(learnt, tested, replace(facts, name=said, train_size=len(learnt), test_size=len(tested)))


def _made_up_squad(length: int, size: int, randomness: torch.Generator) -> Batch:
    tokens = torch.randint(SQUAD_RESERVED, VOCABULARY, (size, length), generator=randomness)
    types = (torch.arange(length) >= length // 4).long().expand(size, -1).contiguous()
    start, end = torch.randint(length // 4, length, (2, size), generator=randomness).sort(dim=0).values
    return tokens, types, torch.ones(size, length, dtype=torch.bool), start, end


SOURCE_WORDS, TARGET_WORDS = 17_191, 7_709
LENGTH = 50  # words a sentence; longer ones are cut
IWSLT_PADDING, BEGIN, END, IWSLT_RESERVED = 0, 1, 2, 3


class Pairs(Dataset[Batch]):
    """(source [50], written [50], what follows each written word [50]); sentences are kept as 16-bit numbers."""

    def __init__(self, source: Tensor, target: Tensor) -> None:
        self._source, self._target = source, target  # [N, 50], [N, 51]

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> Batch:
        target = self._target[index].long()
        written = target[:-1].masked_fill(target[:-1] == END, IWSLT_PADDING)  # the end is predicted and never read
        return self._source[index].long(), written, target[1:]


def numbered_words(lines: list[str], numbers: dict[str, int], words: int) -> Tensor:
    """Sentences [N, LENGTH] of word numbers, padded; what is in no vocabulary has the last number."""
    rows = [[numbers.get(word, words - 1) for word in line.split()[:LENGTH]] for line in lines]
    return torch.tensor([row + [IWSLT_PADDING] * (LENGTH - len(row)) for row in rows], dtype=torch.int16).view(
        -1, LENGTH
    )


def target_words(lines: list[str], numbers: dict[str, int], words: int) -> Tensor:
    """Sentences [N, LENGTH + 1] between a begin and an end."""
    rows = [[BEGIN, *(numbers.get(word, words - 1) for word in line.split()[: LENGTH - 1]), END] for line in lines]
    size = LENGTH + 1
    return torch.tensor([row + [IWSLT_PADDING] * (size - len(row)) for row in rows], dtype=torch.int16).view(-1, size)


def _load_iwslt() -> Splits:
    dataset = catalogue.IWSLT15
    texts = {file.name: cache.read(dataset, file.name) for file in dataset.files}
    lines = {name: content.decode("utf-8").splitlines() for name, content in texts.items()}
    parts = [(lines[f"{part}.en"], lines[f"{part}.vi"]) for part in ("train", "tst2013")]
    for part, (english, vietnamese) in zip(("train", "tst2013"), parts, strict=True):
        if len(english) != len(vietnamese):
            said = f"{part} of {dataset.name} has {len(english)} sentences in English and {len(vietnamese)} translated"
            raise DataUnavailable(said, f"stepscope data fetch {dataset.name}")
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
    rows = [line.split("\t")[:2] for line in packaged.text("sentences.tsv.gz", _TATOEBA_SHA256).splitlines()]
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
        vocabulary_of([word for line in lines for word in line.split()], size, IWSLT_RESERVED)
        for lines, size in zip(parts[0], (SOURCE_WORDS, TARGET_WORDS), strict=True)
    )
    train, test = (
        Pairs(numbered_words(source, english, SOURCE_WORDS), target_words(target, vietnamese, TARGET_WORDS))
        for source, target in parts
    )
    return Splits(train, test, facts)


def _made_up_iwslt(size: int, randomness: torch.Generator) -> Batch:
    source, target = (
        torch.randint(IWSLT_RESERVED, words, (size, LENGTH), generator=randomness)
        for words in (SOURCE_WORDS, TARGET_WORDS)
    )
    written = torch.cat([torch.full((size, 1), BEGIN), target[:, :-1]], dim=1)
    return source, written, target


TRANSLATION_SOURCES = (
    Source(
        catalogue.IWSLT15.name,
        "real-full",
        _load_iwslt,
        functools.partial(cache.present, catalogue.IWSLT15),
        catalogue.IWSLT15.name,
    ),
    Source(_TATOEBA, "real-subset", _load_tatoeba),
    synthetic.source(_made_up_iwslt),
)
