"""Translation with attention: a bidirectional LSTM reads, two LSTMs write, and each word looks back at what was read.

References
  M.-T. Luong, H. Pham, C. Manning, "Effective approaches to attention-based neural machine translation", EMNLP 2015,
    arXiv:1508.04025: scaled "general" attention, the attended state is fed to the next step.
  https://github.com/tensorflow/nmt, nmt/standard_hparams/iwslt15.json: 512 units, English to Vietnamese.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import published_2019
from stepscope.workloads.contract import Batch, Workload, rates
from stepscope.workloads.data import text
from stepscope.workloads.data.text import IWSLT_PADDING, LENGTH

UNITS = 512


class Translator(nn.Module):
    """Source [B, S] and the words written so far [B, T] to scores of the next word [B, T, V]."""

    def __init__(self, source_words: int, target_words: int) -> None:
        super().__init__()
        self.source = nn.Embedding(source_words, UNITS, padding_idx=IWSLT_PADDING)
        self.target = nn.Embedding(target_words, UNITS, padding_idx=IWSLT_PADDING)
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
        padding = source == IWSLT_PADDING
        carried = [(h[0], c[0]), (h[1], c[1])]
        looked = torch.zeros_like(h[0])  # what was attended to, [B, 512]
        outputs = []
        for word in self.drop(self.target(written)).unbind(dim=1):
            x = torch.cat([word, looked], dim=1)  # [B, 1024]
            for number, cell in enumerate(self.cells):
                carried[number] = cell(x, carried[number])
                x = self.drop(carried[number][0])
            looked = self._look(x, memory, padding)
            outputs.append(looked)
        scores: Tensor = self.out(torch.stack(outputs, dim=1))  # [B, T, V]
        return scores

    def _look(self, state: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """The state [B, 512] together with the part of the memory [B, S, 512] that it asks for: [B, 512]."""
        scores = self.scale * torch.bmm(memory, state[:, :, None]).squeeze(2)  # [B, S]
        weights = scores.masked_fill(padding, -1e9).softmax(dim=1)
        context = torch.bmm(weights[:, None], memory).squeeze(1)  # [B, 512]
        return torch.tanh(self.attended(torch.cat([context, state], dim=1)))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy over the words that are no padding."""
    source, written, follows = batch
    return functional.cross_entropy(model(source, written).flatten(0, 1), follows.flatten(), ignore_index=IWSLT_PADDING)


def correct(model: nn.Module, batch: Batch) -> Tensor:
    """Right words after right words, each counted as its share of a sentence."""
    source, written, follows = batch
    real = follows != IWSLT_PADDING
    right = (model(source, written).argmax(-1) == follows) & real
    total: Tensor = (right.sum(1) / real.sum(1).clamp(min=1)).sum()
    return total


def example(samples: int) -> Batch:
    """Sentences of one word over and over, without padding."""
    words = torch.ones(samples, LENGTH, dtype=torch.long)
    return words, words.clone(), words.clone()


WORKLOADS = (
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
        sources=text.TRANSLATION_SOURCES,
        build=functools.partial(Translator, text.SOURCE_WORDS, text.TARGET_WORDS),
        example=example,
        loss=loss,
        correct=correct,
        hyperparameters=rates(sgd=1.0, momentum=0.1, adam=1e-3, rmsprop=5e-4),
        tiers=("smoke", "paper-2019"),
        published=published_2019(
            "28G",
            "not matched by any variant (true: 724M multiply-adds for 50 + 50 words)",
            "348M",
            "likely 384M with digits exchanged: Sutskever's network of 2014 (true for this one: 27.2M)",
        ),
    ),
)
