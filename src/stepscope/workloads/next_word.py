"""The next-word LSTM: the kind of model that phones have trained for keyboards, federated and at scale.

References
  A. Hard et al., "Federated learning for mobile keyboard prediction", 2018, arXiv:1811.03604 (there with coupled gates
    and shared embeddings, 1.4 million parameters).
  S. Reddi et al., "Adaptive federated optimization", ICLR 2021, arXiv:2003.00295, table of the Stack Overflow model:
    embedding 96, LSTM 670, 10,004 words, 20 words a sentence.
"""

from __future__ import annotations

from torch import Tensor, nn

from stepscope.workloads._language import language_model
from stepscope.workloads.data.text import Windows

EMBEDDING, HIDDEN = 96, 670


class NextWord(nn.Module):
    """Words [B, T] to scores of the word after each [B, T, V]."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, EMBEDDING)
        self.lstm = nn.LSTM(EMBEDDING, HIDDEN, batch_first=True)
        self.narrow = nn.Linear(HIDDEN, EMBEDDING)
        self.fc = nn.Linear(EMBEDDING, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(tokens))  # [B, T, 670]
        scores: Tensor = self.fc(self.narrow(states))  # [B, T, 96] -> [B, T, V]
        return scores


WINDOWS = Windows("words", vocabulary=10_004, length=20)
WORKLOADS = (
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
)
