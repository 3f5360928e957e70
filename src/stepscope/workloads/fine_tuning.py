"""Language models that devices fine-tune: BERT for questions, SmolLM2 in full or by adapters.

BERT that answers questions: the base model, and a ladder of smaller ones to find what a device can train.

References
  J. Devlin et al., "BERT", NAACL 2019, arXiv:1810.04805 (base; SQuAD v1.1, sequences of 384).
  I. Turc et al., "Well-read students learn better", 2019, arXiv:1908.08962 (tiny, mini, small).
  X. Jiao et al., "TinyBERT", 2020, arXiv:1909.10351; V. Sanh et al., "DistilBERT", 2019, arXiv:1910.01108.
Weights are random and tokens are words: right for time, energy and memory, and no judge of the model's quality.

SmolLM2-135M: a small language model of today, trained in full or by low-rank adapters on a frozen model.

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

from stepscope.workloads.contract import Batch, Published, Tier, Workload, rates
from stepscope.workloads.data import questions
from stepscope.workloads.data.text import WindowForm
from stepscope.workloads.language import language_model

VOCABULARY, POSITIONS = questions.VOCABULARY, 512


@dataclass(frozen=True)
class BertVariant:
    """Layers, channels, heads, channels within the two-layer network, and whether question and text are marked."""

    layers: int
    width: int
    heads: int
    inner: int
    types: bool = True


TINY = BertVariant(layers=2, width=128, heads=2, inner=512)
MINI = BertVariant(layers=4, width=256, heads=4, inner=1024)
SMALL = BertVariant(layers=4, width=512, heads=8, inner=2048)
TINYBERT4 = BertVariant(layers=4, width=312, heads=12, inner=1200)
DISTIL = BertVariant(layers=6, width=768, heads=12, inner=3072, types=False)
BASE = BertVariant(layers=12, width=768, heads=12, inner=3072)
_EPS, _DROPOUT = 1e-12, 0.1


class BertLayer(nn.Module):
    """Attention to the whole sequence and a two-layer network, each normalised after adding: [B, T, C] to [B, T, C]."""

    def __init__(self, variant: BertVariant) -> None:
        super().__init__()
        width = variant.width
        self.heads = variant.heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1 = nn.LayerNorm(width, eps=_EPS)
        self.mlp = nn.Sequential(nn.Linear(width, variant.inner), nn.GELU(), nn.Linear(variant.inner, width))
        self.norm2 = nn.LayerNorm(width, eps=_EPS)
        self.drop = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.norm1(x + self.drop(self._attend(x, mask)))
        y: Tensor = self.norm2(x + self.drop(self.mlp(x)))
        return y

    def _attend(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for projection in (self.q, self.k, self.v)
        )  # [B, heads, T, C/heads]
        dropout = _DROPOUT if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class BertQA(nn.Module):
    """Tokens and types [B, T] and a mask of what is no padding to scores of start and end [B, T, 2]."""

    def __init__(self, variant: BertVariant) -> None:
        super().__init__()
        width = variant.width
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.types = nn.Embedding(2, width) if variant.types else None
        self.norm = nn.LayerNorm(width, eps=_EPS)
        self.drop = nn.Dropout(_DROPOUT)
        self.layers = nn.ModuleList(BertLayer(variant) for _ in range(variant.layers))
        self.answer = nn.Linear(width, 2)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]]  # [B, T, C]
        if self.types is not None:
            x = x + self.types(types)
        x = self.drop(self.norm(x))
        attention_mask = mask[:, None, None, :]  # [B, 1, 1, T]
        for layer in self.layers:
            x = layer(x, attention_mask)
        scores: Tensor = self.answer(x)  # [B, T, 2]
        return scores


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy of where the answer starts and where it ends."""
    tokens, types, mask, start, end = batch
    scores = model(tokens, types, mask)
    both = functional.cross_entropy(scores[..., 0], start) + functional.cross_entropy(scores[..., 1], end)
    return both / 2


def count_correct(model: nn.Module, batch: Batch) -> Tensor:
    """Return how many answers have both ends right."""
    tokens, types, mask, start, end = batch
    ends = model(tokens, types, mask).masked_fill(~mask[..., None], float("-inf")).argmax(1)  # [B, 2]
    right: Tensor = ((ends[:, 0] == start) & (ends[:, 1] == end)).sum()
    return right


def example(length: int, samples: int) -> Batch:
    """A batch of one token, without padding, whose answer is the first."""
    tokens, first = torch.zeros(samples, length, dtype=torch.long), torch.zeros(samples, dtype=torch.long)
    return tokens, tokens.clone(), torch.ones(samples, length, dtype=torch.bool), first, first.clone()


def _workload(
    name: str, variant: BertVariant, length: int, summary: str, default_batch: int = 8,
    tiers: tuple[Tier, ...] = ("edge",), published: tuple[Published, ...] = (),
) -> Workload:  # fmt: skip
    return Workload(
        name=name,
        domain="question answering",
        summary=summary,
        dominant_layer="attention",
        input_shape=(length,),
        default_optimizer="adamw",
        references=(
            "Devlin et al., BERT, NAACL 2019, arXiv:1810.04805",
            "Turc et al., Well-read students learn better, 2019, arXiv:1908.08962",
        ),
        sources=questions.sources(length),
        build=functools.partial(BertQA, variant),
        example=functools.partial(example, length),
        loss=loss,
        correct=count_correct,
        hyperparameters=rates(sgd=0.02, momentum=0.005, adam=1e-4, rmsprop=2e-5),
        default_batch=default_batch,
        tiers=tiers,
        published=published,
    )


@dataclass(frozen=True)
class SmolVariant:
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


class SmolLayer(nn.Module):
    """Attention to what came before and a gated network: [B, T, 576] to [B, T, 576]."""

    def __init__(self, variant: SmolVariant) -> None:
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
        x = x + self._attend(self.norm1(x), cos, sin)
        y = self.norm2(x)
        z: Tensor = x + self.down(functional.silu(self.gate(y)) * self.up(y))
        return z

    def _attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        samples, tokens, width = x.shape
        q = self.q(x).view(samples, tokens, self.heads, self.size).transpose(1, 2)  # [B, 9, T, 64]
        k = self.k(x).view(samples, tokens, self.key_heads, self.size).transpose(1, 2)  # [B, 3, T, 64]
        v = self.v(x).view(samples, tokens, self.key_heads, self.size).transpose(1, 2)
        shared = self.heads // self.key_heads
        k, v = _rotate_by_position(k, cos, sin).repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        y = functional.scaled_dot_product_attention(_rotate_by_position(q, cos, sin), k, v, is_causal=True)
        out: Tensor = self.out(y.transpose(1, 2).reshape(samples, tokens, width))
        return out


def _rotate_by_position(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Pairs (i, i + half) turned by the angle of their position: [B, heads, T, 64]."""
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)


class SmolLM2(nn.Module):
    """Tokens [B, T] to scores of what follows each [B, T, V]."""

    def __init__(self, variant: SmolVariant) -> None:
        super().__init__()
        self.size, self.rotary_base = variant.width // variant.heads, variant.rotary_base
        self.embedding = nn.Embedding(variant.vocabulary, variant.width)
        self.layers = nn.ModuleList(SmolLayer(variant) for _ in range(variant.layers))
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


WINDOWS = WindowForm("words", SmolVariant.vocabulary, 128)
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
    _workload(
        "bert-tiny-128",
        TINY,
        128,
        "BERT tiny: 2 layers of 128, nine parameters of ten are in the embedding",
        tiers=("smoke", "edge"),
    ),
    _workload("bert-mini-128", MINI, 128, "BERT mini: 4 layers of 256"),
    _workload("bert-small-128", SMALL, 128, "BERT small: 4 layers of 512"),
    _workload("tinybert4-128", TINYBERT4, 128, "TinyBERT: 4 layers of 312"),
    _workload("distilbert-128", DISTIL, 128, "DistilBERT: 6 layers of 768", default_batch=4),
    _workload("bert-base-128", BASE, 128, "BERT base at 128 tokens", default_batch=2),
    _workload(
        "bert-base-384",
        BASE,
        384,
        "BERT base at 384 tokens, as for SQuAD; the paper of 2019 could not train it on its board",
        default_batch=2,
        tiers=("paper-2019",),
        published=(
            Published("parameters", "110M", "model table of the paper of 2019", "109.48M with the pooler, unused here"),
        ),
    ),
    _COMMON(
        name="smollm2-135m-lora-128",
        build=lambda: SmolLM2(SmolVariant(rank=8)),
        summary="SmolLM2-135M with adapters of rank 8: 0.3 % of the parameters are trained, 68 % of the work is left",
        hyperparameters=rates(sgd=0.5, momentum=0.05, adam=1e-3, rmsprop=5e-4),
        tiers=("smoke", "edge"),
    ),
    _COMMON(
        name="smollm2-135m-full-128",
        build=lambda: SmolLM2(SmolVariant()),
        summary="SmolLM2-135M trained in full: 2.2 GB of weights, gradients and moments",
    ),
)
