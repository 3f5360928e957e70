"""A recurrent network whose cell is called for each time step; `--fused` makes one call of the whole sequence."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--fused", action="store_true")
parser.add_argument("--steps", type=int, default=120)
options = parser.parse_args()


class Cells(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(16, 32)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        state = None
        for sample in sequence.unbind(1):
            state = self.cell(sample, state)
        return state[0]


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 32, batch_first=True)

    def forward(self, sequence: torch.Tensor) -> torch.Tensor:
        return self.lstm(sequence)[1][0][0]


torch.manual_seed(0)
model = nn.Sequential(Fused() if options.fused else Cells(), nn.Linear(32, 4))
optimizer = torch.optim.Adam(model.parameters())
sequence, labels = torch.randn(16, 50, 16), torch.randint(4, (16,))
for _ in range(options.steps):
    loss = nn.functional.cross_entropy(model(sequence), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
