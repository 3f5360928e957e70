"""Small language models: a character LSTM, a next-word LSTM, a small GPT.

Base of the language models: batches are tokens [B, T] and the tokens that follow [B, T]; scores [B, T, V].

Two LSTM layers over characters, as federated learning trains them on Shakespeare.

References
  H. B. McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
    arXiv:1602.05629.
  LEAF, https://github.com/TalwalkarLab/leaf, models/shakespeare: embedding of 8, two LSTMs of 256, 80 characters, the
    81st to be predicted (there one set of biases a gate, in torch two: 2,048 parameters more).

The next-word LSTM: the kind of model that phones have trained for keyboards, federated and at scale.

References
  A. Hard et al., "Federated learning for mobile keyboard prediction", 2018, arXiv:1811.03604 (there with coupled gates
    and shared embeddings, 1.4 million parameters).
  S. Reddi et al., "Adaptive federated optimization", ICLR 2021, arXiv:2003.00295, table of the Stack Overflow model:
    embedding 96, LSTM 670, 10,004 words, 20 words a sentence.

A small GPT over characters: what has taken the place of recurrent networks, on the same text.

References
  A. Radford et al., "Language models are unsupervised multitask learners", 2019 (GPT-2): norm before, GELU.
  https://github.com/karpathy/nanoGPT: no biases, output and embedding share their weights; sizes of its two
    configurations for characters (README, "on a laptop" and config/train_shakespeare_char.py).

Translation with attention: a bidirectional LSTM reads, two LSTMs write, and each word looks back at what was read.

References
  M.-T. Luong, H. Pham, C. Manning, "Effective approaches to attention-based neural machine translation", EMNLP 2015,
    arXiv:1508.04025: scaled "general" attention, the attended state is fed to the next step.
  https://github.com/tensorflow/nmt, nmt/standard_hparams/iwslt15.json: 512 units, English to Vietnamese.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import published_2019
from stepscope.workloads.contract import Batch, Workload, rates
from stepscope.workloads.data import text, translation
from stepscope.workloads.data.text import WindowForm
from stepscope.workloads.data.translation import LENGTH, PADDING


def language_model(
    name: str,
    build: Callable[[], nn.Module],
    windows: WindowForm,
    summary: str,
    references: tuple[str, ...],
    **more: object,
) -> Workload:
    """A workload that predicts the token after each, or after the last; `more` are further fields, or replace these."""
    fields: dict[str, object] = {
        "domain": "language",
        "default_batch": 16,
        "default_optimizer": "adam",
        "sources": text.sources(windows),
        "own_data": functools.partial(text.user_text, windows),
        "example": functools.partial(example, windows),
        **more,
    }
    return Workload(
        name=name, build=build, input_shape=(windows.length,), summary=summary, references=references,
        loss=loss, correct=count_correct, **fields,  # type: ignore[arg-type]
    )  # fmt: skip


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy over all predicted tokens."""
    tokens, follows = batch
    scores = model(tokens)
    return functional.cross_entropy(scores.flatten(0, -2), follows.flatten())


def count_correct(model: nn.Module, batch: Batch) -> Tensor:
    """Right tokens, each counted as its share of a sample."""
    tokens, follows = batch
    right = (model(tokens).argmax(-1) == follows).float()
    total: Tensor = right.sum() if right.dim() == 1 else right.mean(dim=1).sum()
    return total


def example(windows: WindowForm, samples: int) -> Batch:
    """A batch of tokens that are all 0."""
    tokens = torch.zeros(samples, windows.length, dtype=torch.long)
    return tokens, torch.zeros(samples, dtype=torch.long) if windows.last_only else tokens.clone()


CHAR_LSTM_EMBEDDING, CHAR_LSTM_HIDDEN, LAYERS = 8, 256, 2


class CharLSTM(nn.Module):
    """Characters [B, T] to scores of what follows each [B, T, V], or of what follows the last [B, V]."""

    def __init__(self, windows: WindowForm) -> None:
        super().__init__()
        self.last_only = windows.last_only
        self.embedding = nn.Embedding(windows.vocabulary, CHAR_LSTM_EMBEDDING)
        self.lstm = nn.LSTM(CHAR_LSTM_EMBEDDING, CHAR_LSTM_HIDDEN, LAYERS, batch_first=True)
        self.fc = nn.Linear(CHAR_LSTM_HIDDEN, windows.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))  # [B, T, 256]
        scores: Tensor = self.fc(states[:, -1] if self.last_only else states)
        return scores


LEAF = WindowForm("characters", vocabulary=80, length=80, last_only=True)
EVERY = WindowForm("characters", vocabulary=65, length=80)
_CHAR_LSTM_COMMON = functools.partial(
    language_model,
    dominant_layer="LSTM",
    references=(
        "McMahan et al., Communication-efficient learning of deep networks, AISTATS 2017, arXiv:1602.05629",
        "https://github.com/TalwalkarLab/leaf",
    ),
    published=published_2019(
        "23M", "not matched (true: 63.6M multiply-adds for 80 characters)", "1M", "right to one digit: 0.82M"
    ),
    hyperparameters=rates(sgd=0.8, momentum=0.1, adam=2e-3, rmsprop=1e-3),
)


NEXT_WORD_EMBEDDING, NEXT_WORD_HIDDEN = 96, 670


class NextWord(nn.Module):
    """Words [B, T] to scores of the word after each [B, T, V]."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, NEXT_WORD_EMBEDDING)
        self.lstm = nn.LSTM(NEXT_WORD_EMBEDDING, NEXT_WORD_HIDDEN, batch_first=True)
        self.narrow = nn.Linear(NEXT_WORD_HIDDEN, NEXT_WORD_EMBEDDING)
        self.fc = nn.Linear(NEXT_WORD_EMBEDDING, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))  # [B, T, 670]
        scores: Tensor = self.fc(self.narrow(states))  # [B, T, 96] -> [B, T, V]
        return scores


WINDOWS = WindowForm("words", vocabulary=10_004, length=20)


VOCABULARY = 65


@dataclass(frozen=True)
class Variant:
    """Layers, heads, channels, and tokens that are seen at once."""

    layers: int
    heads: int
    width: int
    context: int
    dropout: float


SMALL = Variant(layers=4, heads=4, width=128, context=64, dropout=0.0)
LARGE = Variant(layers=6, heads=6, width=384, context=256, dropout=0.2)


class Block(nn.Module):
    """Attention to what came before, then a two-layer network: [B, T, C] to [B, T, C]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        width = variant.width
        self.heads, self.dropout = variant.heads, variant.dropout
        self.norm1 = nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.norm2 = nn.LayerNorm(width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )
        self.drop = nn.Dropout(variant.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self._attend(self.norm1(x)))
        y: Tensor = x + self.drop(self.mlp(self.norm2(x)))
        return y

    def _attend(self, x: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        q, k, v = self.qkv(x).view(samples, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # [B, heads, T, C/heads]
        dropout = self.dropout if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).reshape(samples, tokens, width))
        return out


class GPT(nn.Module):
    """Characters [B, T] to scores of what follows each [B, T, V]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, variant.width)
        self.positions = nn.Parameter(torch.zeros(variant.context, variant.width))
        self.drop = nn.Dropout(variant.dropout)
        self.blocks = nn.Sequential(*(Block(variant) for _ in range(variant.layers)))
        self.norm = nn.LayerNorm(variant.width, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:  # what adds to the residual starts smaller, the more layers there are
                adds = name.endswith(("out.weight", "mlp.2.weight"))
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * variant.layers) if adds else 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.drop(self.embedding(tokens) + self.positions[: tokens.shape[1]])  # [B, T, C]
        return functional.linear(self.norm(self.blocks(x)), self.embedding.weight)  # [B, T, V]


_CHAR_GPT_COMMON = functools.partial(
    language_model,
    references=("https://github.com/karpathy/nanoGPT",),
    dominant_layer="attention",
    default_optimizer="adamw",
    tiers=("edge",),
)


UNITS = 512


class Translator(nn.Module):
    """Source [B, S] and the words written so far [B, T] to scores of the next word [B, T, V]."""

    def __init__(self, source_words: int, target_words: int) -> None:
        super().__init__()
        self.source = nn.Embedding(source_words, UNITS, padding_idx=PADDING)
        self.target = nn.Embedding(target_words, UNITS, padding_idx=PADDING)
        self.encoder = nn.LSTM(UNITS, UNITS, bidirectional=True, batch_first=True)
        self.memory = nn.Linear(2 * UNITS, UNITS, bias=False)
        self.cells = nn.ModuleList([nn.LSTMCell(2 * UNITS, UNITS), nn.LSTMCell(UNITS, UNITS)])
        self.scale = nn.Parameter(torch.ones(()))
        self.attended = nn.Linear(2 * UNITS, UNITS, bias=False)
        self.out = nn.Linear(UNITS, target_words, bias=False)
        self.drop = nn.Dropout(0.2)

    def forward(self, source: Tensor, written: Tensor) -> Tensor:
        states, (h, c) = self.encoder(self.drop(self.source(source)))  # [B, S, 1024]; [2, B, 512]
        memory = self.memory(states)  # [B, S, 512]
        padding = source == PADDING
        # Read to the right, padding of dozens of words has wiped out all that the sentence left: the state that the
        # first cell starts from is the one at the last word. The cell's own content there is not to be had, so none.
        last = (~padding).sum(dim=1, keepdim=True).clamp(min=1) - 1  # [B, 1]
        at_last_word = states[:, :, :UNITS].gather(1, last[:, :, None].expand(-1, -1, UNITS)).squeeze(1)  # [B, 512]
        carried = [(at_last_word, torch.zeros_like(c[0])), (h[1], c[1])]
        looked = torch.zeros_like(h[0])  # what was attended to, [B, 512]
        outputs = []
        for word in self.drop(self.target(written)).unbind(dim=1):
            x = torch.cat([word, looked], dim=1)  # [B, 1024]
            for number, cell in enumerate(self.cells):
                carried[number] = cell(x, carried[number])
                x = self.drop(carried[number][0])
            looked = self._attend(x, memory, padding)
            outputs.append(looked)
        scores: Tensor = self.out(torch.stack(outputs, dim=1))  # [B, T, V]
        return scores

    def _attend(self, state: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """The state [B, 512] together with the part of the memory [B, S, 512] that it asks for: [B, 512]."""
        scores = self.scale * torch.bmm(memory, state[:, :, None]).squeeze(2)  # [B, S]
        weights = scores.masked_fill(padding, -1e9).softmax(dim=1)
        context = torch.bmm(weights[:, None], memory).squeeze(1)  # [B, 512]
        return torch.tanh(self.attended(torch.cat([context, state], dim=1)))


def translation_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy over the words that are no padding."""
    source, written, follows = batch
    return functional.cross_entropy(model(source, written).flatten(0, 1), follows.flatten(), ignore_index=PADDING)


def translation_correct(model: nn.Module, batch: Batch) -> Tensor:
    """Right words after right words, each counted as its share of a sentence."""
    source, written, follows = batch
    real = follows != PADDING
    right = (model(source, written).argmax(-1) == follows) & real
    total: Tensor = (right.sum(1) / real.sum(1).clamp(min=1)).sum()
    return total


def translation_example(samples: int) -> Batch:
    """Sentences of one word over and over, without padding."""
    words = torch.ones(samples, LENGTH, dtype=torch.long)
    return words, words.clone(), words.clone()


WORKLOADS = (
    _CHAR_LSTM_COMMON(
        name="char-lstm-80",
        build=lambda: CharLSTM(LEAF),
        windows=LEAF,
        summary="Two LSTMs that predict the character after 80: 160 steps in a row, bound by launching them",
        default_batch=10,
        tiers=("smoke", "paper-2019"),
    ),
    _CHAR_LSTM_COMMON(
        name="char-lstm-all-80",
        build=lambda: CharLSTM(EVERY),
        windows=EVERY,
        summary="The same with a prediction after every character, as language models learn today",
        default_batch=64,
        tiers=("edge",),
    ),
    language_model(
        name="next-word-lstm-20",
        build=lambda: NextWord(WINDOWS.vocabulary),
        windows=WINDOWS,
        summary="Next-word prediction of a keyboard: half of the work is in embedding and output",
        references=(
            "Hard et al., Federated learning for mobile keyboard prediction, 2018, arXiv:1811.03604",
            "Reddi et al., Adaptive federated optimization, ICLR 2021, arXiv:2003.00295",
        ),
        dominant_layer="LSTM",
        tiers=("smoke", "edge"),
    ),
    _CHAR_GPT_COMMON(
        name="char-gpt-64",
        build=lambda: GPT(SMALL),
        windows=WindowForm("characters", VOCABULARY, SMALL.context),
        summary="GPT over 64 characters: 4 layers of 128, the size for a laptop",
        default_batch=12,
        tiers=("smoke", "edge"),
    ),
    _CHAR_GPT_COMMON(
        name="char-gpt-256",
        build=lambda: GPT(LARGE),
        windows=WindowForm("characters", VOCABULARY, LARGE.context),
        summary="GPT over 256 characters: 6 layers of 384, 10.7 million parameters",
        default_batch=8,
        hyperparameters=rates(sgd=0.1, momentum=0.02, adam=3e-4, rmsprop=1e-4),  # without a warm-up, 1e-3 is too much
    ),
    Workload(
        name="seq2seq-en-vi-50",
        domain="translation",
        summary="Translation with attention, 50 words to 50: steps in a row that no batch can hide",
        dominant_layer="LSTM",
        input_shape=(LENGTH,),
        default_batch=16,
        default_optimizer="sgd",
        references=(
            "Luong, Pham, Manning, Attention-based neural machine translation, EMNLP 2015, arXiv:1508.04025",
            "https://github.com/tensorflow/nmt",
        ),
        sources=translation.SOURCES,
        build=functools.partial(Translator, translation.SOURCE_WORDS, translation.TARGET_WORDS),
        example=translation_example,
        loss=translation_loss,
        correct=translation_correct,
        # The published rate, 1.0, goes with gradients clipped to a norm of 5; without clipping the loss rises to 100.
        hyperparameters=rates(sgd=0.2, momentum=0.02, adam=1e-3, rmsprop=5e-4),
        tiers=("smoke", "paper-2019"),
        published=published_2019(
            "28G",
            "not matched by any variant (true: 724M multiply-adds for 50 + 50 words)",
            "348M",
            "likely 384M with digits exchanged: Sutskever's network of 2014 (true for this one: 27.2M)",
        ),
    ),
)
