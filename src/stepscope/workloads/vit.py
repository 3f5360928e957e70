"""Vision transformer, tiny: attention over patches, no batch norm, so that small batches add up to large ones exactly.

References
  A. Dosovitskiy et al., "An image is worth 16x16 words", ICLR 2021, arXiv:2010.11929.
  The tiny size: H. Touvron et al., "Training data-efficient image transformers", ICML 2021, arXiv:2012.12877.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import C32, C224, classifier
from stepscope.workloads.contract import rates

REFERENCES = (
    "Dosovitskiy et al., An image is worth 16x16 words, ICLR 2021, arXiv:2010.11929",
    "Touvron et al., Training data-efficient image transformers, ICML 2021, arXiv:2012.12877",
)


@dataclass(frozen=True)
class Variant:
    """Side of the image and of a patch in pixels, classes; the sizes of the tiny model."""

    image: int
    patch: int
    classes: int
    width: int = 192
    depth: int = 12
    heads: int = 3


class Block(nn.Module):
    """Attention and a two-layer network, each normalised before and added after: [B, T, C] to [B, T, C]."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self._attend(self.norm1(x))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y

    def _attend(self, x: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        q, k, v = self.qkv(x).view(samples, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # [B, heads, T, C/heads]
        y = functional.scaled_dot_product_attention(q, k, v)
        out: Tensor = self.out(y.transpose(1, 2).reshape(samples, tokens, width))
        return out


class ViT(nn.Module):
    """Images [B, 3, side, side] to scores [B, classes]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        width, patches = variant.width, (variant.image // variant.patch) ** 2
        self.patches = nn.Conv2d(3, width, variant.patch, stride=variant.patch)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(torch.zeros(1, patches + 1, width))
        self.blocks = nn.Sequential(*(Block(width, variant.heads) for _ in range(variant.depth)))
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.fc = nn.Linear(width, variant.classes)
        for parameter in (self.cls, self.positions):
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)  # [B, patches, C]
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], dim=1) + self.positions  # [B, patches + 1, C]
        scores: Tensor = self.fc(self.norm(self.blocks(x))[:, 0])  # [B, classes]
        return scores


_COMMON = functools.partial(
    classifier,
    references=REFERENCES,
    dominant_layer="attention",
    tiers=("edge",),
    default_optimizer="adamw",
    hyperparameters={
        **rates(sgd=0.02, momentum=0.005, adam=3e-4, rmsprop=1e-4),
        "adamw": {"lr": 3e-4, "weight_decay": 0.05},
    },
)
WORKLOADS = (
    _COMMON(
        name="vit-tiny-c32",
        build=lambda: ViT(Variant(image=32, patch=4, classes=10)),
        shape=C32,
        classes=10,
        summary="Vision transformer, tiny, at 32 x 32 in patches of 4: 65 tokens an image",
        tiers=("smoke", "edge"),
    ),
    _COMMON(
        name="vit-tiny-224",
        build=lambda: ViT(Variant(image=224, patch=16, classes=1000)),
        shape=C224,
        classes=1000,
        summary="Vision transformer, tiny, at 224 x 224 in patches of 16: 197 tokens an image",
        default_batch=8,
    ),
)
