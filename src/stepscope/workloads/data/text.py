"""English text as windows of numbers: Shakespeare, the topics of Python's own documentation, or a file of the user's.

Shakespeare ships inside the package. The topics (`pydoc_data.topics`, what `help("LAMBDA")` shows) come with every
Python; they differ from one version of it to the next, hence the content hash.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import Dataset

from stepscope.errors import DataUnavailable, UsageError
from stepscope.workloads.data import catalogue, packaged, synthetic
from stepscope.workloads.data.source import Batch, DataFacts, DataKind, Source, Splits, is_always_present

Unit = Literal["characters", "words"]
_TEST_SHARE = 0.1  # the end of the text
_WORD = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True)
class WindowForm:
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
    present: Callable[[], bool] = is_always_present
    fetch: str | None = None


class WindowSet(Dataset[Batch]):
    """(tokens [L], the tokens that follow each [L]); of the last one only, a single number, where asked for."""

    def __init__(self, tokens: Tensor, windows: WindowForm) -> None:
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


def sources(windows: WindowForm) -> tuple[Source, ...]:
    """The texts that a language model can be trained on."""
    real = tuple(
        Source(corpus.name, corpus.kind, functools.partial(_load, corpus, windows), corpus.present, corpus.fetch)
        for corpus in (SHAKESPEARE, TOPICS)
    )
    return (*real, synthetic.source(functools.partial(_synthetic, windows)))


def user_text(windows: WindowForm, path: Path) -> Splits:
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
    frequent_units = sorted(unit for unit, _ in sorted(counted.items(), key=lambda item: (-item[1], item[0]))[:room])
    return {unit: number for number, unit in enumerate(frequent_units, start=reserved)}


def _load(corpus: Corpus, windows: WindowForm) -> Splits:
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


def _synthetic(windows: WindowForm, size: int, randomness: torch.Generator) -> Batch:
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
    read=functools.partial(packaged.load_text, "shakespeare.txt.gz", _SHAKESPEARE_SHA256),
)
TOPICS = Corpus(
    name="python-topics",
    kind="real-subset",
    licence="PSF-2.0",
    origin=f"pydoc_data.topics of Python {platform.python_version()}",
    read=_topics,
    present=functools.partial(catalogue.is_module_installed, "pydoc_data.topics"),
)
