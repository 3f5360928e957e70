"""Twelve small networks as sequences of blocks: what the planted causes train, and what the truth of time takes apart.

A network is an `nn.Sequential` of blocks, so that a timer can stand between any two of them. `width` scales the number
of channels and `batch` the samples, so that no threshold can be tuned to one size.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES, WORDS, LENGTH = 10, 500, 32
Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Network:
    """A model of blocks, and `batch(samples)`, which makes inputs with their labels."""

    model: nn.Sequential
    batch: Callable[[int], Batch]
    samples: int

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the cross entropy of outputs (N, classes) or (N, classes, ...)."""
        return functional.cross_entropy(output, target)


class Residual(nn.Module):
    """x + f(x), through a projection where the shape changes."""

    def __init__(self, inner: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.shortcut = inner, shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.shortcut(x) + self.inner(x))


class Recurrent(nn.Module):
    """An LSTM that passes its outputs on, (N, L, features)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return torch.as_tensor(self.lstm(x)[0])


class Attention(nn.Module):
    """Causal attention as users write it, on (N, L, features)."""

    def __init__(self, features: int, heads: int = 4) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(features, 3 * features), nn.Linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return torch.as_tensor(self.out(mixed.transpose(1, 2).flatten(2)))


class LastWord(nn.Module):
    """The features at the end of each sequence, (N, features)."""

    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


class Transposed(nn.Module):
    """(N, L, features) to (N, features, L), for convolutions over words."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Down(nn.Module):
    """Halve the picture on top of the stack and keep what it was."""

    def __init__(self, convolutions: nn.Module) -> None:
        super().__init__()
        self.convolutions = convolutions

    def forward(self, stack: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        *below, x = stack
        x = self.convolutions(x)
        return (*below, x, functional.max_pool2d(x, 2))


class Up(nn.Module):
    """Double the picture on top of the stack and join it with the one below."""

    def __init__(self, inputs: int, convolutions: nn.Module) -> None:
        super().__init__()
        self.upsample, self.convolutions = nn.ConvTranspose2d(inputs, inputs // 2, 2, 2), convolutions

    def forward(self, stack: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        *below, beside, x = stack
        return (*below, self.convolutions(torch.cat((beside, self.upsample(x)), 1)))


class Pack(nn.Module):
    """A stack of one picture."""

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        return (x,)


class Mask(nn.Module):
    """Classes of each pixel from the top of the stack."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.classes = nn.Conv2d(inputs, CLASSES, 1)

    def forward(self, stack: tuple[Tensor, ...]) -> Tensor:
        return torch.as_tensor(self.classes(stack[-1]))


def _pictures(channels: int, size: int) -> Callable[[int], Batch]:
    return lambda n: (torch.rand(n, channels, size, size), torch.randint(CLASSES, (n,)))


def _vectors(features: int, classes: int = CLASSES) -> Callable[[int], Batch]:
    return lambda n: (torch.randn(n, features), torch.randint(classes, (n,)))


def _words(n: int) -> Batch:
    return torch.randint(WORDS, (n, LENGTH)), torch.randint(CLASSES, (n,))


def _head(features: int) -> nn.Module:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, CLASSES))


def _normed(inputs: int, outputs: int, stride: int = 1, groups: int = 1, kernel: int = 3) -> list[nn.Module]:
    padding = kernel // 2
    return [
        nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False), nn.BatchNorm2d(outputs)
    ]  # fmt: skip


def lenet(width: float) -> Sequence[nn.Module]:
    """Two convolutions with pooling, three linear layers."""
    a, b, c = int(6 * width), int(16 * width), int(120 * width)
    return [
        nn.Sequential(nn.Conv2d(1, a, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.Conv2d(a, b, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        nn.Sequential(nn.Linear(b * 25, c), nn.ReLU(), nn.Linear(c, c), nn.ReLU()),
        nn.Linear(c, CLASSES),
    ]


def resnet(width: float) -> Sequence[nn.Module]:
    """Residual blocks with batch norm."""
    a = int(16 * width)
    blocks: list[nn.Module] = [nn.Sequential(*_normed(3, a), nn.ReLU())]
    for inputs, outputs, stride in ((a, a, 1), (a, 2 * a, 2), (2 * a, 4 * a, 2)):
        inner = nn.Sequential(*_normed(inputs, outputs, stride), nn.ReLU(), *_normed(outputs, outputs))
        shortcut = nn.Sequential(*_normed(inputs, outputs, stride, kernel=1))
        blocks.append(nn.Sequential(Residual(inner, shortcut), nn.ReLU()))
    return [*blocks, _head(4 * a)]


def depthwise(width: float) -> Sequence[nn.Module]:
    """Inverted bottlenecks with depthwise convolutions, as MobileNet has them."""
    a = int(8 * width)
    blocks: list[nn.Module] = [nn.Sequential(*_normed(3, a, 2), nn.ReLU6())]
    for inputs, outputs, stride in ((a, a, 1), (a, 2 * a, 2), (2 * a, 2 * a, 1), (2 * a, 4 * a, 2)):
        wide = 4 * inputs
        inner = nn.Sequential(
            *_normed(inputs, wide, kernel=1), nn.ReLU6(), *_normed(wide, wide, stride, wide), nn.ReLU6(),
            *_normed(wide, outputs, kernel=1),
        )  # fmt: skip
        blocks.append(Residual(inner) if inputs == outputs and stride == 1 else inner)
    return [*blocks, _head(4 * a)]


def group_norm(width: float) -> Sequence[nn.Module]:
    """Convolutions with group norm and SiLU."""
    a = int(16 * width) // 4 * 4
    blocks = [
        nn.Sequential(nn.Conv2d(inputs, outputs, 3, stride, 1), nn.GroupNorm(4, outputs), nn.SiLU())
        for inputs, outputs, stride in ((3, a, 1), (a, 2 * a, 2), (2 * a, 2 * a, 1), (2 * a, 4 * a, 2))
    ]
    return [*blocks, _head(4 * a)]


def vgg(width: float) -> Sequence[nn.Module]:
    """Plain convolutions, two to a block, then wide linear layers."""
    a = int(24 * width)
    blocks = [
        nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d(2),
        )
        for inputs, outputs in ((3, a), (a, 2 * a), (2 * a, 4 * a))
    ]  # fmt: skip
    ending = nn.Sequential(nn.Flatten(), nn.Linear(4 * a * 16, 256), nn.ReLU(), nn.Linear(256, CLASSES))
    return [*blocks, ending]


def unet(width: float) -> Sequence[nn.Module]:
    """Down twice and up twice, with what was there on the way down."""
    a = int(8 * width)

    def twice(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, padding=1), nn.ReLU()
        )

    class Bottom(nn.Module):
        """Convolutions on the smallest picture."""

        def __init__(self) -> None:
            super().__init__()
            self.convolutions = twice(2 * a, 4 * a)

        def forward(self, stack: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (*stack[:-1], self.convolutions(stack[-1]))

    return [
        nn.Sequential(Pack(), Down(twice(1, a))), Down(twice(a, 2 * a)), Bottom(), Up(4 * a, twice(4 * a, 2 * a)),
        Up(2 * a, twice(2 * a, a)), Mask(a),
    ]  # fmt: skip


def mlp(width: float) -> Sequence[nn.Module]:
    """Linear layers with layer norm and dropout."""
    a = int(256 * width)
    sizes = ((256, a), (a, a), (a, a))
    blocks = [nn.Sequential(nn.Linear(i, o), nn.LayerNorm(o), nn.GELU(), nn.Dropout(0.1)) for i, o in sizes]
    return [*blocks, nn.Linear(a, CLASSES)]


def dispatch(width: float) -> Sequence[nn.Module]:
    """64 x (Linear 32 -> 32, ReLU): almost nothing but dispatch; eight pairs to a block."""
    sizes = [32, *[int(32 * width)] * 63, 32]
    pairs = [nn.Sequential(nn.Linear(i, o), nn.ReLU()) for i, o in itertools.pairwise(sizes)]
    return [nn.Sequential(*itertools.chain.from_iterable(pairs[first : first + 8])) for first in range(0, 64, 8)]


def lstm(width: float) -> Sequence[nn.Module]:
    """An embedding, two LSTMs and a linear layer on the last word."""
    a = int(64 * width)
    return [
        nn.Embedding(WORDS, a), Recurrent(a, a), Recurrent(a, a), nn.Sequential(LastWord(), nn.Linear(a, CLASSES))
    ]  # fmt: skip


def text_convolution(width: float) -> Sequence[nn.Module]:
    """An embedding with convolutions over words."""
    a = int(64 * width)
    blocks = [
        nn.Sequential(nn.Conv1d(inputs, 2 * a, 5, padding=2), nn.BatchNorm1d(2 * a), nn.ReLU())
        for inputs in (a, 2 * a, 2 * a)
    ]
    ending = nn.Sequential(nn.AdaptiveMaxPool1d(1), nn.Flatten(), nn.Linear(2 * a, CLASSES))
    return [nn.Sequential(nn.Embedding(WORDS, a), Transposed()), *blocks, ending]


def encoder(width: float) -> Sequence[nn.Module]:
    """An embedding and torch's own transformer encoder layers."""
    a = int(64 * width) // 4 * 4
    layers = [nn.TransformerEncoderLayer(a, 4, 4 * a, batch_first=True) for _ in range(3)]
    return [nn.Embedding(WORDS, a), *layers, nn.Sequential(LastWord(), nn.Linear(a, CLASSES))]


def gpt(width: float) -> Sequence[nn.Module]:
    """An embedding and pre-norm blocks with attention written by hand."""
    a = int(64 * width) // 4 * 4
    blocks = [
        nn.Sequential(
            Residual(nn.Sequential(nn.LayerNorm(a), Attention(a))),
            Residual(nn.Sequential(nn.LayerNorm(a), nn.Linear(a, 4 * a), nn.GELU(), nn.Linear(4 * a, a))),
        )
        for _ in range(3)
    ]
    return [nn.Embedding(WORDS, a), *blocks, nn.Sequential(nn.LayerNorm(a), LastWord(), nn.Linear(a, CLASSES))]


def _masks(n: int) -> Batch:
    return torch.rand(n, 1, 32, 32), torch.randint(CLASSES, (n, 32, 32))


# Blocks, batches and samples a step of each network at width 1.
NETWORKS: dict[str, tuple[Callable[[float], Sequence[nn.Module]], Callable[[int], Batch], int]] = {
    "lenet": (lenet, _pictures(1, 28), 32),
    "resnet": (resnet, _pictures(3, 32), 8),
    "depthwise": (depthwise, _pictures(3, 48), 8),
    "group-norm": (group_norm, _pictures(3, 32), 16),
    "vgg": (vgg, _pictures(3, 32), 8),
    "unet": (unet, _masks, 8),
    "mlp": (mlp, _vectors(256), 128),
    "dispatch": (dispatch, _vectors(32, 32), 8),
    "lstm": (lstm, _words, 32),
    "text-convolution": (text_convolution, _words, 32),
    "encoder": (encoder, _words, 16),
    "gpt": (gpt, _words, 16),
}


def network(name: str, width: float = 1.0, batch: float = 1.0) -> Network:
    """Return a network by its name, `width` times as wide, with `batch` times the samples."""
    blocks, batches, samples = NETWORKS[name]
    return Network(nn.Sequential(*blocks(width)), batches, max(2, round(samples * batch)))
