"""The autoencoder of MLPerf Tiny: it learns how a machine sounds, to hear when it does not.

References
  Y. Koizumi et al., "Description and discussion on DCASE2020 challenge task 2", 2020, arXiv:2006.05822 (baseline).
  C. Banbury et al., "MLPerf Tiny benchmark", NeurIPS 2021, arXiv:2106.07597 (target: area under curve 0.85).
"""

from __future__ import annotations

import functools
import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads.contract import Batch, Published, Workload
from stepscope.workloads.data import synthetic

FEATURES = 640  # 5 frames of 128 mel bands
WIDTHS = (FEATURES, 128, 128, 128, 128, 8, 128, 128, 128, 128)
_MOTIFS = (
    6  # what the made-up spectra are mixed from: fewer than the narrowest layer, so that there is something to learn
)


class Autoencoder(nn.Module):
    """Spectra [B, 640] by way of 8 numbers to spectra [B, 640]."""

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for width, out in itertools.pairwise(WIDTHS):
            parts += [nn.Linear(width, out), nn.BatchNorm1d(out), nn.ReLU()]
        self.layers = nn.Sequential(*parts, nn.Linear(WIDTHS[-1], FEATURES))

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error of what comes back."""
    return functional.mse_loss(model(batch[0]), batch[0])


def example(samples: int) -> Batch:
    """Empty spectra."""
    return (torch.zeros(samples, FEATURES),)


def _made_up(size: int, randomness: torch.Generator) -> Batch:
    normal = functools.partial(torch.randn, generator=randomness)
    motifs, shares = normal(_MOTIFS, FEATURES), normal(size, _MOTIFS)
    return (shares @ motifs / _MOTIFS**0.5 + 0.1 * normal(size, FEATURES),)


WORKLOADS = (
    Workload(
        name="autoencoder-640",
        domain="sensors",
        summary="Anomaly detection of MLPerf Tiny: linear layers only, bound by launching ops and by the optimizer",
        dominant_layer="linear",
        input_shape=(FEATURES,),
        default_batch=128,
        default_optimizer="adam",
        references=("Banbury et al., MLPerf Tiny, NeurIPS 2021, arXiv:2106.07597", "https://github.com/mlcommons/tiny"),
        build=Autoencoder,
        sources=(synthetic.source(_made_up),),
        example=example,
        loss=loss,
        loss_name="mean squared error",
        tiers=("smoke", "edge"),
        published=(
            Published("area under the curve on ToyADMOS", "0.85", "MLPerf Tiny", "the target of its closed division"),
        ),
    ),
)
