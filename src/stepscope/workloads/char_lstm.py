"""Two LSTM layers over characters, as federated learning trains them on Shakespeare.

References
  H. B. McMahan et al., "Communication-efficient learning of deep networks from decentralized data", AISTATS 2017,
    arXiv:1602.05629.
  LEAF, https://github.com/TalwalkarLab/leaf, models/shakespeare: embedding of 8, two LSTMs of 256, 80 characters, the
    81st to be predicted (there one set of biases a gate, in torch two: 2,048 parameters more).
"""

from __future__ import annotations

import functools

from torch import Tensor, nn

from stepscope.workloads._classification import published_2019
from stepscope.workloads._language import language_model
from stepscope.workloads.contract import rates
from stepscope.workloads.data.text import Windows

EMBEDDING, HIDDEN, LAYERS = 8, 256, 2


class CharLSTM(nn.Module):
    """Characters [B, T] to scores of what follows each [B, T, V], or of what follows the last [B, V]."""

    def __init__(self, windows: Windows) -> None:
        super().__init__()
        self.last_only = windows.last_only
        self.embedding = nn.Embedding(windows.vocabulary, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, LAYERS, batch_first=True)
        self.fc = nn.Linear(HIDDEN, windows.vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))  # [B, T, 256]
        scores: Tensor = self.fc(states[:, -1] if self.last_only else states)
        return scores


LEAF = Windows("characters", vocabulary=80, length=80, last_only=True)
EVERY = Windows("characters", vocabulary=65, length=80)
_COMMON = functools.partial(
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
WORKLOADS = (
    _COMMON(
        name="char-lstm-80",
        build=lambda: CharLSTM(LEAF),
        windows=LEAF,
        summary="Two LSTMs that predict the character after 80: 160 steps in a row, bound by launching them",
        default_batch=10,
        tiers=("smoke", "paper-2019"),
    ),
    _COMMON(
        name="char-lstm-all-80",
        build=lambda: CharLSTM(EVERY),
        windows=EVERY,
        summary="The same with a prediction after every character, as language models learn today",
        default_batch=64,
        tiers=("edge",),
    ),
)
