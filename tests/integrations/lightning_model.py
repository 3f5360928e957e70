"""A Lightning module that pickle finds by its name; import it once Lightning is known to be there."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import nn


class Classifier(LightningModule):
    """Small, with a training step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """The loss of a batch."""
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """One with state."""
        return torch.optim.Adam(self.parameters())
