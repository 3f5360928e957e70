"""Networks for sequences and patches after papers, written by hand without a look at the rules of `fit`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Built = tuple[nn.Module, Callable[[int], Any], Any]  # model, maker of batches, loss
_CROSS = nn.CrossEntropyLoss()


class Mamba(nn.Module):
    """A selective state space as a loop over the sequence, with a causal depthwise convolution (Gu and Dao, 2023)."""

    def __init__(self, width: int = 96, state: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(500, width)
        self.into = nn.Linear(width, 2 * width)
        self.conv = nn.Conv1d(width, width, 4, padding=3, groups=width)
        self.select = nn.Linear(width, width + 2 * state)
        self.a = nn.Parameter(torch.log(torch.arange(1.0, state + 1)).repeat(width, 1))
        self.d = nn.Parameter(torch.ones(width))
        self.out, self.head, self.state = nn.Linear(width, width), nn.Linear(width, 500), state

    def forward(self, tokens: Tensor) -> Any:
        x, gate = self.into(self.embed(tokens)).chunk(2, -1)
        x = functional.silu(self.conv(x.transpose(1, 2))[..., : tokens.shape[1]].transpose(1, 2))
        delta, b, c = self.select(x).split([x.shape[-1], self.state, self.state], -1)
        delta = functional.softplus(delta)
        decay = torch.exp(delta[..., None] * -torch.exp(self.a))
        drive = delta[..., None] * b[:, :, None] * x[..., None]
        h, found = torch.zeros_like(drive[:, 0]), []
        for at in range(tokens.shape[1]):
            h = decay[:, at] * h + drive[:, at]
            found.append((h * c[:, at, None]).sum(-1))
        y = torch.stack(found, 1) + self.d * x
        return self.head(self.out(y * functional.silu(gate)))


def mamba() -> Built:
    def batch(n: int) -> Any:
        return torch.randint(500, (n, 48)), torch.randint(500, (n, 48))

    return Mamba(), batch, lambda model, b: functional.cross_entropy(model(b[0]).flatten(0, 1), b[1].flatten())


class Experts(nn.Module):
    """Top-2 routing with a fixed capacity by one-hot products (GShard, Lepikhin et al., 2020)."""

    def __init__(self, width: int = 64, experts: int = 8) -> None:
        super().__init__()
        self.gate = nn.Linear(width, experts)
        self.up = nn.Parameter(torch.randn(experts, width, 4 * width) / 8)
        self.down = nn.Parameter(torch.randn(experts, 4 * width, width) / 16)

    def forward(self, x: Tensor) -> Any:
        flat = x.flatten(0, 1)
        capacity = flat.shape[0] // 2
        weight, chosen = self.gate(flat).softmax(-1).topk(2)
        marks = functional.one_hot(chosen, self.gate.out_features)
        place = (marks.flatten(0, 1).cumsum(0).view_as(marks) * marks).sum(-1).clamp(max=capacity) - 1
        slots = functional.one_hot(place, capacity).to(x.dtype)
        combine = torch.einsum("tk,tke,tkc->tec", weight, marks.to(x.dtype), slots)
        inner = torch.einsum("tec,td->ecd", (combine > 0).to(x.dtype), flat)
        out = torch.bmm(functional.gelu(torch.bmm(inner, self.up)), self.down)
        return x + torch.einsum("tec,ecd->td", combine, out).view_as(x)


def experts() -> Built:
    model = nn.Sequential(nn.Linear(32, 64), Experts(), nn.LayerNorm(64), Experts(), nn.Linear(64, 8))

    def batch(n: int) -> Any:
        return torch.randn(n, 32, 32), torch.randn(n, 32, 8)

    return model, batch, nn.MSELoss()


class WaveNet(nn.Module):
    """Gated causal convolutions of growing dilation, skips summed (van den Oord et al., 2016)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.into = nn.Conv1d(1, width, 1)
        self.dilated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**k) for k in range(8))
        self.mix = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(8))
        self.out = nn.Sequential(nn.ReLU(), nn.Conv1d(width, 64, 1), nn.ReLU(), nn.Conv1d(64, 128, 1))

    def forward(self, x: Tensor) -> Any:
        x, skips = self.into(x), torch.zeros(())
        dilated: Any
        for dilated, mix in zip(self.dilated, self.mix, strict=True):
            a, b = dilated(functional.pad(x, (dilated.dilation[0], 0))).chunk(2, 1)
            kept, skip = mix(torch.tanh(a) * torch.sigmoid(b)).chunk(2, 1)
            x, skips = x + kept, skips + skip
        return self.out(skips)


def wavenet() -> Built:
    return WaveNet(), lambda n: (torch.randn(n, 1, 1600), torch.randint(128, (n, 1600))), _CROSS


class Perceiver(nn.Module):
    """Latents read a long input by cross attention, twice with the same weights (Jaegle et al., 2021)."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(32, width))
        self.read = nn.MultiheadAttention(width, 1, kdim=11, vdim=11, batch_first=True)
        self.think = nn.TransformerEncoderLayer(width, 4, 2 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Any:
        h = self.latents.expand(len(x), -1, -1)
        for _ in range(2):
            h = h + self.read(h, x, x, need_weights=False)[0]
            h = self.think(self.think(h))
        return self.head(h.mean(1))


def perceiver() -> Built:
    return Perceiver(), lambda n: (torch.randn(n, 1024, 11), torch.randint(10, (n,))), _CROSS


class Conformer(nn.Module):
    """Half feed-forward, attention, gated depthwise convolution, half feed-forward (Gulati et al., 2020)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()

        def feed() -> nn.Sequential:
            return nn.Sequential(
                nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.SiLU(), nn.Linear(4 * width, width)
            )

        self.one, self.two, self.norm, self.last = feed(), feed(), nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend = nn.MultiheadAttention(width, 4, dropout=0.1, batch_first=True)
        self.conv = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1), nn.GLU(1), nn.Conv1d(width, width, 15, padding=7, groups=width),
            nn.BatchNorm1d(width), nn.SiLU(), nn.Conv1d(width, width, 1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Any:
        x = x + self.one(x) / 2
        y = self.norm(x)
        x = x + self.attend(y, y, y)[0]
        x = x + self.conv(x.transpose(1, 2)).transpose(1, 2)
        return self.last(x + self.two(x) / 2)


def conformer() -> Built:
    def loss(model: nn.Module, batch: Any) -> Any:
        said = model(batch[0]).log_softmax(-1).transpose(0, 1)
        lengths = torch.full((said.shape[1],), said.shape[0])
        return functional.ctc_loss(said, batch[1], lengths, torch.full((said.shape[1],), batch[1].shape[1]))

    model = nn.Sequential(nn.Linear(40, 64), Conformer(), Conformer(), nn.Linear(64, 30))
    return model, lambda n: (torch.randn(n, 120, 40), torch.randint(1, 30, (n, 20))), loss


class RWKV(nn.Module):
    """Time mixing by a decaying sum, in logarithms, and channel mixing by a squared ReLU (Peng et al., 2023)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.rand(3, width))
        self.k, self.v, self.r, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.decay, self.first = nn.Parameter(torch.randn(width)), nn.Parameter(torch.randn(width))
        self.up, self.down = nn.Linear(width, 3 * width, bias=False), nn.Linear(3 * width, width, bias=False)
        self.norm, self.second = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Any:
        y = self.norm(x)
        before = functional.pad(y, (0, 0, 1, -1))
        k, v, r = (f(y * m + before * (1 - m)) for f, m in zip((self.k, self.v, self.r), self.mix, strict=True))
        a = b = torch.zeros_like(k[:, 0])
        most, found, decay = torch.full_like(a, -1e38), [], -torch.exp(self.decay)
        for at in range(x.shape[1]):
            q = torch.maximum(most, self.first + k[:, at])
            e, f = torch.exp(most - q), torch.exp(self.first + k[:, at] - q)
            found.append((e * a + f * v[:, at]) / (e * b + f))
            q = torch.maximum(most + decay, k[:, at])
            e, f = torch.exp(most + decay - q), torch.exp(k[:, at] - q)
            a, b, most = e * a + f * v[:, at], e * b + f, q
        x = x + self.o(r.sigmoid() * torch.stack(found, 1))
        return x + self.down(functional.relu(self.up(self.second(x))).square())


def rwkv() -> Built:
    model = nn.Sequential(nn.Embedding(300, 64), RWKV(), RWKV(), nn.LayerNorm(64), nn.Linear(64, 300))

    def batch(n: int) -> Any:
        return torch.randint(300, (n, 40)), torch.randint(300, (n, 40))

    return model, batch, lambda net, b: functional.cross_entropy(net(b[0]).flatten(0, 1), b[1].flatten())


class Decaying(nn.Module):
    """GRU cells whose inputs and states decay with the time since a value was seen (GRU-D, Che et al., 2018)."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.cell, self.head = nn.GRUCell(2 * 17, width), nn.Linear(width, 1)
        self.of_input, self.of_state = nn.Parameter(torch.rand(17)), nn.Linear(17, width)

    def forward(self, x: Tensor, seen: Tensor, since: Tensor) -> Any:
        h, last, mean = torch.zeros(len(x), self.cell.hidden_size), torch.zeros_like(x[:, 0]), x.mean(1)
        for at in range(x.shape[1]):
            decay = torch.exp(-functional.relu(since[:, at] * self.of_input))
            last = torch.where(seen[:, at], x[:, at], last)
            value = torch.where(seen[:, at], x[:, at], decay * last + (1 - decay) * mean)
            h = h * torch.exp(-functional.relu(self.of_state(since[:, at])))
            h = self.cell(torch.cat([value, seen[:, at].to(x.dtype)], 1), h)
        return self.head(h)[:, 0]


def decaying() -> Built:
    return (
        Decaying(),
        lambda n: (torch.randn(n, 48, 17), torch.rand(n, 48, 17) > 0.6, torch.rand(n, 48, 17), torch.rand(n).round()),
        lambda model, b: functional.binary_cross_entropy_with_logits(model(*b[:3]), b[3]),
    )


def pictures(side: int, classes: int = 10, channels: int = 3) -> Callable[[int], Any]:
    return lambda n: (torch.randn(n, channels, side, side), torch.randint(classes, (n,)))


class Windows(nn.Module):
    """Shifted windows with a relative bias, and merging (Swin, Liu et al., 2021)."""

    def __init__(self, width: int, shift: int, side: int = 6, heads: int = 3) -> None:
        super().__init__()
        self.shift, self.side, self.heads = shift, side, heads
        self.norm, self.qkv, self.out = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias = nn.Parameter(torch.zeros((2 * side - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")).flatten(1)
        apart = at[:, :, None] - at[:, None] + side - 1
        self.register_buffer("index", apart[0] * (2 * side - 1) + apart[1])
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Any:
        n, h, w, c = x.shape
        s = self.side
        index: Any = self.index
        y = torch.roll(self.norm(x), (-self.shift, -self.shift), (1, 2)) if self.shift else self.norm(x)
        y = y.view(n, h // s, s, w // s, s, c).transpose(2, 3).reshape(-1, s * s, c)
        q, k, v = self.qkv(y).view(-1, s * s, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        score = q @ k.transpose(-1, -2) / math.sqrt(c // self.heads) + self.bias[index].permute(2, 0, 1)
        y = self.out((score.softmax(-1) @ v).transpose(1, 2).reshape(-1, s * s, c))
        y = y.view(n, h // s, w // s, s, s, c).transpose(2, 3).reshape(n, h, w, c)
        x = x + (torch.roll(y, (self.shift, self.shift), (1, 2)) if self.shift else y)
        return x + self.mlp(x)


def swin() -> Built:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.merge = nn.Conv2d(3, 48, 4, 4), nn.Linear(192, 96)
            self.one = nn.Sequential(Windows(48, 0), Windows(48, 3))
            self.two = nn.Sequential(Windows(96, 0), Windows(96, 3))
            self.head = nn.Linear(96, 10)

        def forward(self, x: Tensor) -> Any:
            x = self.one(self.stem(x).permute(0, 2, 3, 1))
            x = torch.cat([x[:, a::2, b::2] for a in (0, 1) for b in (0, 1)], -1)
            return self.head(self.two(self.merge(x)).mean((1, 2)))

    return Net(), pictures(96), _CROSS


class Dropping(nn.Module):
    """A vision transformer that keeps half of its tokens by score after two blocks (as EViT, Liang et al., 2022)."""

    def __init__(self, width: int = 96) -> None:
        super().__init__()
        self.stem, self.mark = nn.Conv2d(3, width, 8, 8), nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, 145, width) / 50)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 3, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
            for _ in "1234"
        )
        self.score, self.head = nn.Linear(width, 1), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Any:
        x = self.stem(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.mark.expand(len(x), -1, -1), x], 1) + self.place
        for number, block in enumerate(self.blocks):
            if number == 2:
                kept = self.score(x[:, 1:])[..., 0].topk(72, 1)[1]
                x = torch.cat([x[:, :1], x[:, 1:].gather(1, kept[..., None].expand(-1, -1, x.shape[-1]))], 1)
            x = block(x)
        return self.head(x[:, 0])


def dropping() -> Built:
    return Dropping(), pictures(96), _CROSS
