"""A small diffusion model: a U-Net that finds the noise in a picture; it has taken the place of DCGAN.

References
  J. Ho, A. Jain, P. Abbeel, "Denoising diffusion probabilistic models", NeurIPS 2020, arXiv:2006.11239.
  The cosine schedule: A. Nichol, P. Dhariwal, 2021, arXiv:2102.09672.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import C32
from stepscope.workloads._generation import generator
from stepscope.workloads.contract import Batch, Workload

GROUPS, TIME = 8, 128  # of group norm; channels of the embedded time


class Residual(nn.Module):
    """Two 3 x 3 convolutions that know the time: [B, C, H, W] and [B, 128] to [B, out, H, W]."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(GROUPS, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time = nn.Linear(TIME, out)
        self.norm2, self.conv2 = nn.GroupNorm(GROUPS, out), nn.Conv2d(out, out, 3, padding=1)
        self.shortcut = nn.Conv2d(channels, out, 1) if channels != out else nn.Sequential()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.conv1(functional.silu(self.norm1(x))) + self.time(time)[:, :, None, None]
        y = self.conv2(functional.silu(self.norm2(y)))
        z: Tensor = y + self.shortcut(x)
        return z


class Attention(nn.Module):
    """Every pixel looks at every other, in one head: [B, C, H, W] to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, channels)
        self.qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, dim=-1)  # [B, H W, C]
        y = functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        z: Tensor = x + self.out(y.transpose(1, 2).reshape(x.shape))
        return z


class UNet(nn.Module):
    """Noisy pictures [B, 3, 32, 32] and times [B] in 0..1 to their noise [B, 3, 32, 32]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        wide = 2 * width
        self.time = nn.Sequential(nn.Linear(TIME, TIME), nn.SiLU(), nn.Linear(TIME, TIME), nn.SiLU())
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Residual(width, width), Residual(width, wide), Residual(wide, wide)])
        self.halve = nn.ModuleList([nn.Conv2d(c, c, 3, stride=2, padding=1) for c in (width, wide)])
        self.middle, self.attention = Residual(wide, wide), Attention(wide)
        self.up = nn.ModuleList([Residual(2 * wide, wide), Residual(2 * wide, width), Residual(2 * width, width)])
        self.widen = nn.ModuleList([nn.Conv2d(c, c, 3, padding=1) for c in (wide, width)])
        self.norm, self.out = nn.GroupNorm(GROUPS, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        time = self.time(_embedded(times))  # [B, 128]
        x, kept = self.stem(x), []
        for number, block in enumerate(self.down):
            x = block(x, time)
            kept.append(x)  # [B, w, 32, 32], [B, 2w, 16, 16], [B, 2w, 8, 8]
            if number < len(self.halve):
                x = self.halve[number](x)
        x = self.attention(self.middle(x, time))  # [B, 2w, 8, 8]
        for number, block in enumerate(self.up):
            x = block(torch.cat([x, kept.pop()], dim=1), time)
            if number < len(self.widen):
                x = self.widen[number](functional.interpolate(x, scale_factor=2.0))
        noise: Tensor = self.out(functional.silu(self.norm(x)))
        return noise


def _embedded(times: Tensor) -> Tensor:
    """Sines and cosines of growing frequency: [B] to [B, 128]."""
    frequencies = torch.exp(torch.arange(TIME // 2, device=times.device) * (-math.log(10_000) / (TIME // 2)))
    angles = 1000 * times[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error of the noise found, at random times."""
    images = batch[0]
    times, noise = torch.rand(len(images), device=images.device), torch.randn_like(images)
    angle = (0.5 * math.pi * times)[:, None, None, None]
    return functional.mse_loss(model(angle.cos() * images + angle.sin() * noise, times), noise)


def _workload(width: int, **more: object) -> Workload:
    return generator(
        f"diffusion-unet{width}-c32",
        functools.partial(UNet, width),
        C32,
        loss,
        summary=f"Diffusion at 32 x 32 with a U-Net of {width} channels: convolutions, group norm and some attention",
        dominant_layer="convolution",
        default_batch=16,
        references=("Ho, Jain, Abbeel, Denoising diffusion probabilistic models, NeurIPS 2020, arXiv:2006.11239",),
        loss_name="mean squared error",
        **more,
    )


WORKLOADS = (_workload(32, tiers=("smoke", "edge")), _workload(64, tiers=("edge",)))
