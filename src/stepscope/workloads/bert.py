"""BERT that answers questions: the base model, and a ladder of smaller ones to find what a device can train.

References
  J. Devlin et al., "BERT", NAACL 2019, arXiv:1810.04805 (base; SQuAD v1.1, sequences of 384).
  I. Turc et al., "Well-read students learn better", 2019, arXiv:1908.08962 (tiny, mini, small).
  X. Jiao et al., "TinyBERT", 2020, arXiv:1909.10351; V. Sanh et al., "DistilBERT", 2019, arXiv:1910.01108.
Weights are random and tokens are words: right for time, energy and memory, and no judge of the model's quality.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads.contract import Batch, Published, Workload, rates
from stepscope.workloads.data import text

VOCABULARY, POSITIONS = text.VOCABULARY, 512


@dataclass(frozen=True)
class Variant:
    """Layers, channels, heads, channels within the two-layer network, and whether question and text are marked."""

    layers: int
    width: int
    heads: int
    inner: int
    types: bool = True


TINY = Variant(layers=2, width=128, heads=2, inner=512)
MINI = Variant(layers=4, width=256, heads=4, inner=1024)
SMALL = Variant(layers=4, width=512, heads=8, inner=2048)
TINYBERT4 = Variant(layers=4, width=312, heads=12, inner=1200)
DISTIL = Variant(layers=6, width=768, heads=12, inner=3072, types=False)
BASE = Variant(layers=12, width=768, heads=12, inner=3072)
_EPS, _DROPOUT = 1e-12, 0.1


class Layer(nn.Module):
    """Attention to the whole sequence and a two-layer network, each normalised after adding: [B, T, C] to [B, T, C]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        width = variant.width
        self.heads = variant.heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.norm1 = nn.LayerNorm(width, eps=_EPS)
        self.mlp = nn.Sequential(nn.Linear(width, variant.inner), nn.GELU(), nn.Linear(variant.inner, width))
        self.norm2 = nn.LayerNorm(width, eps=_EPS)
        self.drop = nn.Dropout(_DROPOUT)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        x = self.norm1(x + self.drop(self._attended(x, seen)))
        y: Tensor = self.norm2(x + self.drop(self.mlp(x)))
        return y

    def _attended(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (
            each(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in (self.q, self.k, self.v)
        )  # [B, heads, T, C/heads]
        dropout = _DROPOUT if self.training else 0.0
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout)
        out: Tensor = self.out(y.transpose(1, 2).flatten(2))
        return out


class BertQA(nn.Module):
    """Tokens and types [B, T] and a mask of what is no padding to scores of start and end [B, T, 2]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        width = variant.width
        self.words = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(POSITIONS, width)
        self.types = nn.Embedding(2, width) if variant.types else None
        self.norm = nn.LayerNorm(width, eps=_EPS)
        self.drop = nn.Dropout(_DROPOUT)
        self.layers = nn.ModuleList(Layer(variant) for _ in range(variant.layers))
        self.answer = nn.Linear(width, 2)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, types: Tensor, mask: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions.weight[: tokens.shape[1]]  # [B, T, C]
        if self.types is not None:
            x = x + self.types(types)
        x = self.drop(self.norm(x))
        seen = mask[:, None, None, :]  # [B, 1, 1, T]
        for layer in self.layers:
            x = layer(x, seen)
        scores: Tensor = self.answer(x)  # [B, T, 2]
        return scores


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean cross entropy of where the answer starts and where it ends."""
    tokens, types, mask, start, end = batch
    scores = model(tokens, types, mask)
    both = functional.cross_entropy(scores[..., 0], start) + functional.cross_entropy(scores[..., 1], end)
    return both / 2


def correct(model: nn.Module, batch: Batch) -> Tensor:
    """Return how many answers have both ends right."""
    tokens, types, mask, start, end = batch
    found = model(tokens, types, mask).masked_fill(~mask[..., None], float("-inf")).argmax(1)  # [B, 2]
    right: Tensor = ((found[:, 0] == start) & (found[:, 1] == end)).sum()
    return right


def example(length: int, samples: int) -> Batch:
    """A batch of one token, without padding, whose answer is the first."""
    tokens, first = torch.zeros(samples, length, dtype=torch.long), torch.zeros(samples, dtype=torch.long)
    return tokens, tokens.clone(), torch.ones(samples, length, dtype=torch.bool), first, first.clone()


def _workload(name: str, variant: Variant, length: int, summary: str, **more: object) -> Workload:
    fields: dict[str, object] = {"default_batch": 8, "tiers": ("edge",), **more}
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
        sources=text.squad_sources(length),
        build=functools.partial(BertQA, variant),
        example=functools.partial(example, length),
        loss=loss,
        correct=correct,
        hyperparameters=rates(sgd=0.02, momentum=0.005, adam=1e-4, rmsprop=2e-5),
        **fields,  # type: ignore[arg-type]
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
)
