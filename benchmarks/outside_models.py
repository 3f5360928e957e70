"""Trainings that are no workloads of the suite: small random transformers, and modules as users write them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW

from stepscope.footprint.jobs import job_of
from stepscope.record.dry import Job

_WORDS, _LENGTH, _CLASSES = 8000, 128, 10


def _tokens(samples: int) -> Tensor:
    return torch.randint(_WORDS, (samples, _LENGTH))


def _labels(samples: int) -> Tensor:
    return torch.randint(_CLASSES, (samples,))


def bert() -> Job:
    """BertForSequenceClassification, 4 layers of 256, its own loss; AdamW."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=_WORDS, hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024,
    )  # fmt: skip
    config.num_labels = _CLASSES
    model = BertForSequenceClassification(config)
    return job_of(model, AdamW(model.parameters()), lambda n: {"input_ids": _tokens(n), "labels": _labels(n)})


def gpt2() -> Job:
    """GPT2LMHeadModel, 4 layers of 256, its own loss; Adam."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(vocab_size=_WORDS, n_positions=_LENGTH, n_embd=256, n_layer=4, n_head=4)
    config.use_cache = False
    model = GPT2LMHeadModel(config)

    def batch(samples: int) -> dict[str, Tensor]:
        tokens = _tokens(samples)
        return {"input_ids": tokens, "labels": tokens}

    return job_of(model, Adam(model.parameters()), batch)


def vit() -> Job:
    """ViTForImageClassification on 96 x 96, 6 layers of 192, its own loss; AdamW."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        image_size=96, patch_size=8, hidden_size=192, num_hidden_layers=6, num_attention_heads=3,
        intermediate_size=768,
    )  # fmt: skip
    config.num_labels = _CLASSES
    model = ViTForImageClassification(config)

    def batch(samples: int) -> dict[str, Tensor]:
        return {"pixel_values": torch.rand(samples, 3, 96, 96), "labels": _labels(samples)}

    return job_of(model, AdamW(model.parameters()), batch)


def t5() -> Job:
    """T5ForConditionalGeneration, 3 + 3 layers of 256, its own loss; SGD with momentum."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(vocab_size=_WORDS, d_model=256, d_kv=64, d_ff=1024, num_layers=3, num_heads=4)
    config.use_cache, config.decoder_start_token_id = False, 0
    model = T5ForConditionalGeneration(config)

    def batch(samples: int) -> dict[str, Tensor]:
        return {"input_ids": _tokens(samples), "labels": _tokens(samples)[:, :32].contiguous()}

    return job_of(model, SGD(model.parameters(), lr=0.1, momentum=0.9), batch)


class Tagger(nn.Module):
    """A tag for each word by two layers of LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, 128)
        self.lstm = nn.LSTM(128, 192, 2, batch_first=True, bidirectional=True)
        self.tags = nn.Linear(384, 40)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.as_tensor(self.tags(self.lstm(self.words(tokens))[0])).flatten(0, 1)


def tagger() -> Job:
    """A user's bidirectional LSTM; Adam."""
    model = Tagger()

    def batch(samples: int) -> tuple[Tensor, Tensor]:
        return _tokens(samples), torch.randint(40, (samples * _LENGTH,))

    return job_of(model, Adam(model.parameters()), batch, nn.CrossEntropyLoss())


class WrittenAttention(nn.Module):
    """Attention as users write it, with its scores as a tensor and a mask."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.view(*x.shape[:2], self.heads, -1).transpose(1, 2)
            for part in torch.as_tensor(self.qkv(x)).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        weights = functional.dropout(scores.masked_fill(~mask, float("-inf")).softmax(-1), 0.1)
        return torch.as_tensor(self.out((weights @ v).transpose(1, 2).flatten(2)))


class WrittenBlock(nn.Module):
    """Attention and two layers, each added to what came in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = WrittenAttention(width, 4)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first(x))
        return x + torch.as_tensor(self.mlp(self.second(x)))


def attention() -> Job:
    """A user's own attention; AdamW."""
    model = nn.Sequential(nn.Embedding(_WORDS, 192), *[WrittenBlock(192) for _ in range(4)], nn.Linear(192, 200))
    return job_of(model, AdamW(model.parameters()), lambda n: (_tokens(n), _tokens(n) % 200), _of_each_word)


def _of_each_word(outputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())


class _Swish(torch.autograd.Function):
    """x sigmoid(x) that keeps its input alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        s = torch.sigmoid(x)
        return torch.as_tensor(gradient * (s * (1 + x * (1 - s))))


class Swish(nn.Module):
    """A user's activation with a backward pass of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(_Swish.apply(x))  # type: ignore[no-untyped-call]


def custom_function() -> Job:
    """A user's network of convolutions with a custom autograd function; SGD with momentum."""
    sizes = ((3, 32, 1), (32, 64, 2), (64, 96, 1), (96, 128, 2))
    layers = [
        nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), Swish()) for i, o, stride in sizes
    ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, _CLASSES))
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    return job_of(model, optimizer, lambda n: (torch.rand(n, 3, 48, 48), _labels(n)), nn.CrossEntropyLoss())


class Unet(nn.Module):
    """Down twice and up twice by transposed convolutions, with what was there on the way down."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(_twice(i, o) for i, o in ((1, 24), (24, 48), (48, 96)))
        self.up = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in ((96, 48), (48, 24)))
        self.after = nn.ModuleList(_twice(i, o) for i, o in ((96, 48), (48, 24)))
        self.mask = nn.Conv2d(24, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for level in self.down:
            x = level(functional.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        for up, after, beside in zip(self.up, self.after, (kept[1], kept[0]), strict=True):
            x = after(torch.cat((up(x), beside), 1))
        return torch.as_tensor(self.mask(x))


def _twice(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()
    )


def unet() -> Job:
    """A user's segmentation with transposed convolutions; Adam."""
    model = Unet()

    def batch(samples: int) -> tuple[Tensor, Tensor]:
        return torch.rand(samples, 1, 64, 64), torch.rand(samples, 1, 64, 64)

    return job_of(model, Adam(model.parameters()), batch, nn.BCEWithLogitsLoss())


JOBS: dict[str, Callable[[], Job]] = {
    make.__name__: make for make in (bert, gpt2, vit, t5, tagger, attention, custom_function, unet)
}
