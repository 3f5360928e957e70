"""Single operators of random sizes, each with a parameter before it, so that its input has a gradient: a seed, a case.

Drawn without a look at the rules that predict their memory: convolutions of one to three dimensions (strided, dilated,
grouped, transposed, channels innermost), recurrent networks, attention, products, pooling, tables, norms and losses.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.footprint.jobs import job_of
from stepscope.record.dry import Job

_INNER: dict[int, Any] = {2: torch.channels_last, 3: torch.channels_last_3d}


class Scaled(nn.Module):
    """An operator of inputs that are the first input times a parameter."""

    def __init__(self, operator: Callable[..., Any], modules: nn.Module | None = None) -> None:
        super().__init__()
        self.scale, self.inner, self.operator = nn.Parameter(torch.ones(1)), modules, operator

    def forward(self, x: Tensor, *beside: Tensor) -> Tensor:
        out = self.operator(x * self.scale, *beside)
        return torch.as_tensor(out[0] if isinstance(out, tuple) else out)


class OfItself(nn.Module):
    """A module that takes its input several times."""

    def __init__(self, inner: nn.Module, times: int, **options: Any) -> None:
        super().__init__()
        self.inner, self.times, self.options = inner, times, options

    def forward(self, x: Tensor) -> Any:
        return self.inner(*[x] * self.times, **self.options)


class Table(nn.Module):
    """A table of rows by numbers: nothing comes before it."""

    def __init__(self, table: nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, numbers: Tensor) -> Tensor:
        return torch.as_tensor(self.table(numbers))


Drawn = tuple[str, nn.Module, Callable[[int], tuple[Tensor, ...]], int]


def _size(rng: random.Random, low: int, high: int) -> int:
    return int(low * (high / low) ** rng.random() + 0.5)


def _convolution(rng: random.Random) -> Drawn:
    dims = rng.choice((1, 2, 2, 2, 3))
    side = {1: _size(rng, 64, 1024), 2: _size(rng, 8, 56), 3: _size(rng, 6, 14)}[dims]
    kernel, stride = rng.choice((1, 2, 3, 3, 5)), rng.choice((1, 1, 2))
    dilation = rng.choice((1, 1, 1, 2))
    groups = rng.choice((1, 1, 1, 4, 0))
    inputs = 4 * _size(rng, 1, 48 if dims < 3 else 16)
    groups = groups or inputs
    outputs = inputs if groups == inputs else 4 * _size(rng, 1, 48 if dims < 3 else 16)
    transposed = rng.random() < 0.15
    kind = getattr(nn, f"Conv{'Transpose' if transposed else ''}{dims}d")
    padding = dilation * (kernel // 2)
    model = kind(inputs, outputs, kernel, stride, padding, groups=groups, dilation=dilation, bias=rng.random() < 0.5)
    inner = dims > 1 and rng.random() < 0.25
    batch = _size(rng, 1, 24)

    def make(samples: int) -> tuple[Tensor, ...]:
        x = torch.rand(samples, inputs, *(side,) * dims)
        return (x.to(memory_format=_INNER[dims]) if inner else x,)

    words = f"{kind.__name__} {inputs}-{outputs} k{kernel} s{stride} d{dilation} g{groups} side {side}"
    return f"{words}{' channels innermost' if inner else ''}", Scaled(model, model), make, batch


def _recurrent(rng: random.Random) -> Drawn:
    kind = rng.choice((nn.LSTM, nn.GRU, nn.RNN))
    inputs, width, length = _size(rng, 8, 192), _size(rng, 8, 256), _size(rng, 4, 80)
    options: dict[str, Any] = {
        "num_layers": rng.choice((1, 1, 2, 3)), "bidirectional": rng.random() < 0.4,
        "batch_first": rng.random() < 0.5, "bias": rng.random() < 0.8,
    }  # fmt: skip
    if kind is nn.LSTM and rng.random() < 0.25:
        options["proj_size"] = max(1, width // 2)
    model = kind(inputs, width, **options)
    first = options["batch_first"]

    def make(samples: int) -> tuple[Tensor, ...]:
        return (torch.rand(*((samples, length) if first else (length, samples)), inputs),)

    said = " ".join(f"{name}={value}" for name, value in options.items())
    return f"{kind.__name__} {inputs}-{width} of {length} {said}", Scaled(model, model), make, _size(rng, 1, 48)


def _attention(rng: random.Random) -> Drawn:
    heads, depth = rng.choice((1, 2, 4, 8)), 8 * _size(rng, 1, 12)
    length, batch = _size(rng, 8, 320), _size(rng, 1, 12)
    kind = rng.choice(("plain", "causal", "mask", "module", "module with weights", "encoder layer"))
    if kind in ("plain", "causal", "mask"):
        mask = torch.rand(length, length) > 0.2 if kind == "mask" else None

        def attend(x: Tensor) -> Tensor:
            return functional.scaled_dot_product_attention(x, x, x, mask, is_causal=kind == "causal")

        words = f"attention {kind} {heads} x {depth} of {length}"
        return words, Scaled(attend), lambda n: (torch.rand(n, heads, length, depth),), batch
    width = heads * depth
    if kind == "encoder layer":
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, batch_first=True)
        model: nn.Module = Scaled(layer, layer)
    else:
        inner = nn.MultiheadAttention(width, heads, batch_first=True)
        attention = OfItself(inner, 3, need_weights=kind == "module with weights")
        model = Scaled(attention, attention)
    return f"attention {kind} {heads} x {depth} of {length}", model, lambda n: (torch.rand(n, length, width),), batch


def _product(rng: random.Random) -> Drawn:
    a, b, c, batch = _size(rng, 16, 512), _size(rng, 16, 512), _size(rng, 16, 512), _size(rng, 1, 64)
    kind = rng.choice(("linear", "matmul", "bmm", "einsum", "bilinear", "cdist", "baddbmm"))
    if kind == "linear":
        layer = nn.Linear(a, b, bias=rng.random() < 0.6)
        return f"linear {a}-{b} of {c}", Scaled(layer, layer), lambda n: (torch.rand(n, c, a),), batch
    if kind == "bilinear":
        pair = OfItself(nn.Bilinear(a // 8 + 1, a // 8 + 1, b // 8 + 1), 2)
        return f"bilinear {a}-{b}", Scaled(pair, pair), lambda n: (torch.rand(n, a // 8 + 1),), batch
    if kind == "cdist":
        return f"cdist {a} x {b}", Scaled(lambda x: torch.cdist(x, x.detach())), lambda n: (torch.rand(n, a, b),), 4
    calls: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "matmul": torch.matmul,
        "bmm": torch.bmm,
        "einsum": lambda x, y: torch.einsum("nij,njk->nki", x, y),
        "baddbmm": lambda x, y: torch.baddbmm(x[..., :1], x, y),
    }
    few = max(1, batch // 4)
    return f"{kind} {a} {b} {c}", Scaled(calls[kind]), lambda n: (torch.rand(n, a, b), torch.rand(n, b, c)), few


def _pooling(rng: random.Random) -> Drawn:
    dims, channels = rng.choice((1, 2, 3)), _size(rng, 1, 96)
    side = {1: _size(rng, 64, 2048), 2: _size(rng, 12, 64), 3: _size(rng, 8, 18)}[dims]
    kernel, stride = rng.choice((2, 3)), rng.choice((1, 2))
    kinds = [
        f"MaxPool{dims}d",
        f"AvgPool{dims}d",
        f"AdaptiveAvgPool{dims}d",
        f"AdaptiveMaxPool{dims}d",
        f"LPPool{dims}d",
    ]
    kind = rng.choice(kinds)
    args = (rng.choice((1, 3, 5)),) if "Adaptive" in kind else (2, kernel, stride) if "LP" in kind else (kernel, stride)
    layer = getattr(nn, kind)(*args)
    words = f"{kind} {args} of {channels} side {side}"
    return words, Scaled(layer), lambda n: (torch.rand(n, channels, *(side,) * dims),), _size(rng, 1, 16)


def _table(rng: random.Random) -> Drawn:
    rows, width, length = _size(rng, 100, 40_000), _size(rng, 4, 256), _size(rng, 1, 100)
    if rng.random() < 0.5:
        table: nn.Module = nn.Embedding(rows, width, padding_idx=0 if rng.random() < 0.3 else None)
    else:
        table = nn.EmbeddingBag(rows, width, mode=rng.choice(("sum", "mean", "max")))
    words = f"{type(table).__name__} {rows} x {width} of {length} {getattr(table, 'mode', '')}"
    return words, Table(table), lambda n: (torch.randint(1, rows, (n, length)),), _size(rng, 1, 96)


def _norm(rng: random.Random) -> Drawn:
    channels, side, batch = 4 * _size(rng, 1, 48), _size(rng, 4, 48), _size(rng, 2, 24)
    layers: dict[str, Callable[[], nn.Module]] = {
        "BatchNorm2d": lambda: nn.BatchNorm2d(channels),
        "GroupNorm": lambda: nn.GroupNorm(4, channels),
        "InstanceNorm2d": lambda: nn.InstanceNorm2d(channels, affine=True),
        "LayerNorm": lambda: nn.LayerNorm(side),
        "RMSNorm": lambda: nn.RMSNorm(side),
        "LocalResponseNorm": lambda: nn.LocalResponseNorm(5),
        "PReLU": lambda: nn.PReLU(channels),
        "GLU": lambda: nn.GLU(1),
        "Softmax": lambda: nn.Softmax(1),
        "Dropout": lambda: nn.Dropout(0.3),
        "PixelShuffle": lambda: nn.PixelShuffle(2),
        "Unfold": lambda: nn.Unfold(3, padding=1),
    }
    kind = rng.choice(list(layers))
    layer = layers[kind]()
    inner = rng.random() < 0.25

    def make(samples: int) -> tuple[Tensor, ...]:
        x = torch.rand(samples, channels, side, side)
        return (x.to(memory_format=torch.channels_last) if inner else x,)

    words = f"{kind} {channels} side {side}{' channels innermost' if inner else ''}"
    return words, Scaled(layer, layer), make, batch


def _other(rng: random.Random) -> Drawn:
    rows, width, batch = _size(rng, 8, 256), _size(rng, 16, 512), _size(rng, 2, 32)
    shape: tuple[int, ...] = (rows, width)
    calls: dict[str, Callable[[Tensor], Any]] = {
        "log_softmax": lambda x: functional.log_softmax(x, -1),
        "cross entropy": lambda x: functional.cross_entropy(x.flatten(0, 1), x.detach().flatten(0, 1).argmax(1)),
        "sort": lambda x: x.sort(-1)[0],
        "topk": lambda x: x.topk(4, -1)[0],
        "cumsum": lambda x: x.cumsum(1),
        "std": lambda x: x.std(-1),
        "logsumexp": lambda x: x.logsumexp(1),
        "fft": lambda x: torch.fft.rfft(x).abs(),
        "gelu chain": lambda x: functional.silu(functional.gelu(x)) * x.tanh(),
        "cat": lambda x: torch.cat((x, x.sin(), x.flip(1)), -1),
        "gather": lambda x: x.gather(1, x.detach().argsort(1)),
        "where": lambda x: torch.where(x > 0.5, x, x.square()),
        "norm": lambda x: functional.normalize(x, dim=-1),
        "roll": lambda x: x.roll(3, 1).transpose(1, 2).contiguous(),
        "pad": lambda x: functional.pad(x, (2, 2, 1, 1), mode="constant"),
        "prod": lambda x: x.prod(-1),
        "max": lambda x: x.max(1)[0],
        "interpolate": lambda x: functional.interpolate(x[:, None], scale_factor=2, mode="bilinear"),
        "cosine": lambda x: functional.cosine_similarity(x, x.flip(0), -1),
        "bf16": lambda x: (x.bfloat16() * 2).relu().float(),
    }
    kind = rng.choice(list(calls))
    return f"{kind} {rows} x {width}", Scaled(calls[kind]), lambda n: (torch.rand(n, *shape),), batch


_FAMILIES = (
    (_convolution, 34), (_recurrent, 12), (_attention, 11), (_product, 11), (_pooling, 9), (_table, 6), (_norm, 9),
    (_other, 8),
)  # fmt: skip


def drawn(seed: int) -> tuple[str, Job, int]:
    """Return the case of a seed: its name, its training, and the batch."""
    rng = random.Random(seed)
    family = rng.choices([make for make, _ in _FAMILIES], [share for _, share in _FAMILIES])[0]
    name, model, make_batch, batch = family(rng)

    def loss(model: nn.Module, inputs: tuple[Tensor, ...]) -> Tensor:
        return torch.as_tensor(model(*inputs)).float().square().mean()

    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    return name, job_of(model, optimizer, make_batch, loss, name), batch
