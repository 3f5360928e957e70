"""SmolLM2-135M: a small language model of today, trained in full or by low-rank adapters on a frozen model.

References
  L. Ben Allal et al., "SmolLM2: when smol goes big", 2025, arXiv:2502.02737; a Llama: rotary positions, grouped-query
    attention (9 heads, 3 of keys and values), SwiGLU, RMS norm, embedding and output shared.
  E. Hu et al., "LoRA: low-rank adaptation of large language models", ICLR 2022, arXiv:2106.09685: rank 8 on q and v.
Weights are random and tokens are words: right for time, energy and memory, and no judge of the model's quality.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads.contract import rates
from stepscope.workloads.data.text import Windows
from stepscope.workloads.language import language_model


@dataclass(frozen=True)
class Variant:
    """The shape of the model; `rank` is that of the adapters, 0 trains everything."""

    rank: int = 0
    vocabulary: int = 49_152
    width: int = 576
    inner: int = 1536
    layers: int = 30
    heads: int = 9
    key_heads: int = 3
    rotary_base: float = 100_000.0


class LowRank(nn.Module):
    """A frozen linear layer plus a trained one of low rank, which starts at zero: [.., in] to [.., out]."""

    def __init__(self, inputs: int, outputs: int, rank: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(inputs, outputs, bias=False)
        self.down = nn.Linear(inputs, rank, bias=False)
        self.up = nn.Linear(rank, outputs, bias=False)
        self.scale = 2.0  # alpha / rank with alpha = 2 rank, as is usual
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.frozen(x) + self.scale * self.up(self.down(x))
        return y


class Layer(nn.Module):
    """Attention to what came before and a gated network: [B, T, 576] to [B, T, 576]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        width, size = variant.width, variant.width // variant.heads
        self.heads, self.key_heads, self.size = variant.heads, variant.key_heads, size
        linear = functools.partial(nn.Linear, bias=False)
        adapted = functools.partial(LowRank, rank=variant.rank) if variant.rank else linear
        self.norm1 = nn.RMSNorm(width, eps=1e-5)
        self.q = adapted(width, width)
        self.k = linear(width, variant.key_heads * size)
        self.v = adapted(width, variant.key_heads * size)
        self.out = linear(width, width)
        self.norm2 = nn.RMSNorm(width, eps=1e-5)
        self.gate, self.up, self.down = (
            linear(width, variant.inner), linear(width, variant.inner), linear(variant.inner, width),
        )  # fmt: skip

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self._attended(self.norm1(x), cos, sin)
        y = self.norm2(x)
        z: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return z

    def _attended(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        q = self.q(x).view(samples, tokens, self.heads, self.size).transpose(1, 2)  # [B, 9, T, 64]
        k = self.k(x).view(samples, tokens, self.key_heads, self.size).transpose(1, 2)  # [B, 3, T, 64]
        v = self.v(x).view(samples, tokens, self.key_heads, self.size).transpose(1, 2)
        shared = self.heads // self.key_heads
        k, v = _rotated(k, cos, sin).repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        y = functional.scaled_dot_product_attention(_rotated(q, cos, sin), k, v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).reshape(samples, tokens, width))
        return out


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (i, i + half) turned by the angle of their position: [B, heads, T, 64]."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


class SmolLM2(nn.Module):
    """Tokens [B, T] to scores of what follows each [B, T, V]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        self.size, self.rotary_base = variant.width // variant.heads, variant.rotary_base
        self.embedding = nn.Embedding(variant.vocabulary, variant.width)
        self.layers = nn.ModuleList(Layer(variant) for _ in range(variant.layers))
        self.norm = nn.RMSNorm(variant.width, eps=1e-5)
        for name, parameter in self.named_parameters():
            adapter = variant.rank > 0 and (
                ".q.down." in name or ".q.up." in name or ".v.down." in name or ".v.up." in name
            )
            if parameter.dim() > 1 and not adapter:
                nn.init.normal_(parameter, std=1 / math.sqrt(variant.width))
            parameter.requires_grad_(adapter or variant.rank == 0)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)  # [B, T, 576]
        cos, sin = self._angles(tokens.shape[1], x.device)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return functional.linear(self.norm(x), self.embedding.weight)  # [B, T, V]

    def _angles(self, tokens: int, device: torch.device) -> tuple[Tensor, Tensor]:
        half = torch.arange(0, self.size, 2, device=device) / self.size
        angles = torch.outer(torch.arange(tokens, device=device).float(), self.rotary_base**-half)  # [T, 32]
        return angles.cos(), angles.sin()


WINDOWS = Windows("words", Variant.vocabulary, 128)
_COMMON = functools.partial(
    language_model,
    windows=WINDOWS,
    references=(
        "Ben Allal et al., SmolLM2, 2025, arXiv:2502.02737",
        "Hu et al., LoRA, ICLR 2022, arXiv:2106.09685",
    ),
    dominant_layer="attention",
    default_batch=2,
    default_optimizer="adamw",
    hyperparameters=rates(sgd=0.05, momentum=0.01, adam=1e-4, rmsprop=5e-5),
    tiers=("edge",),
)
WORKLOADS = (
    _COMMON(
        name="smollm2-135m-lora-128",
        build=lambda: SmolLM2(Variant(rank=8)),
        summary="SmolLM2-135M with adapters of rank 8: 0.3 % of the parameters are trained, 68 % of the work is left",
        hyperparameters=rates(sgd=0.5, momentum=0.05, adam=1e-3, rmsprop=5e-4),
        tiers=("smoke", "edge"),
    ),
    _COMMON(
        name="smollm2-135m-full-128",
        build=lambda: SmolLM2(Variant()),
        summary="SmolLM2-135M trained in full: 2.2 GB of weights, gradients and moments",
    ),
)
