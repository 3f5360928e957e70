"""A small GPT over characters: what has taken the place of recurrent networks, on the same text.

References
  A. Radford et al., "Language models are unsupervised multitask learners", 2019 (GPT-2): norm before, GELU.
  https://github.com/karpathy/nanoGPT: no biases, output and embedding share their weights; sizes of its two
    configurations for characters (README, "on a laptop" and config/train_shakespeare_char.py).
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._language import language_model
from stepscope.workloads.contract import rates
from stepscope.workloads.data.text import Windows

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
        x = x + self.drop(self._attended(self.norm1(x)))
        y: Tensor = x + self.drop(self.mlp(self.norm2(x)))
        return y

    def _attended(self, x: Tensor) -> Tensor:
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


_COMMON = functools.partial(
    language_model,
    references=("https://github.com/karpathy/nanoGPT",),
    dominant_layer="attention",
    default_optimizer="adamw",
    tiers=("edge",),
)
WORKLOADS = (
    _COMMON(
        name="char-gpt-64",
        build=lambda: GPT(SMALL),
        windows=Windows("characters", VOCABULARY, SMALL.context),
        summary="GPT over 64 characters: 4 layers of 128, the size for a laptop",
        default_batch=12,
        tiers=("smoke", "edge"),
    ),
    _COMMON(
        name="char-gpt-256",
        build=lambda: GPT(LARGE),
        windows=Windows("characters", VOCABULARY, LARGE.context),
        summary="GPT over 256 characters: 6 layers of 384, 10.7 million parameters",
        default_batch=8,
        hyperparameters=rates(sgd=0.1, momentum=0.02, adam=3e-4, rmsprop=1e-4),  # without a warm-up, 1e-3 is too much
    ),
)
