"""Networks that learn to make pictures: DCGAN, and the diffusion model that has taken its place.

Base of the networks that learn to make images: pictures without their labels, and Adam.

DCGAN: a generator and a discriminator of strided convolutions, each with an optimizer of its own.

References
  A. Radford, L. Metz, S. Chintala, "Unsupervised representation learning with deep convolutional generative adversarial
    networks", ICLR 2016, arXiv:1511.06434; sizes of https://github.com/pytorch/examples/tree/main/dcgan.

A small diffusion model: a U-Net that finds the noise in a picture; it has taken the place of DCGAN.

References
  J. Ho, A. Jain, P. Abbeel, "Denoising diffusion probabilistic models", NeurIPS 2020, arXiv:2006.11239.
  The cosine schedule: A. Nichol, P. Dhariwal, 2021, arXiv:2102.09672.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads import _classification
from stepscope.workloads._classification import C32, COLOUR, published_2019
from stepscope.workloads.contract import Batch, Training, Workload, rates
from stepscope.workloads.data import pictures
from stepscope.workloads.data.pictures import Shape


def generator_workload(
    name: str,
    build: Callable[[], nn.Module],
    shape: Shape,
    loss: Callable[[nn.Module, Batch], Tensor],
    **more: object,
) -> Workload:
    """A workload that learns to make images of one size, of pixels from -1 to 1; `more` are further fields of it."""
    return Workload(
        name=name,
        domain="image generation",
        build=build,
        input_shape=shape,
        default_optimizer="adam",
        sources=pictures.sources(COLOUR, shape, classes=10, symmetric=True),
        example=_classification.example_maker(shape),
        loss=loss,
        **more,  # type: ignore[arg-type]
    )


NOISE = 100


@dataclass(frozen=True)
class Variant:
    """Side of the image, and channels of the generator from its smallest map on (the discriminator's in reverse)."""

    side: int
    widths: tuple[int, ...]


class DCGAN(nn.Module):
    """`generator`: noise [B, 100, 1, 1] to images [B, 3, side, side]; `discriminator`: images to scores [B]."""

    def __init__(self, variant: Variant) -> None:
        super().__init__()
        widths = variant.widths
        generator_layers: list[nn.Module] = [nn.ConvTranspose2d(NOISE, widths[0], 4, bias=False), *_norm(widths[0])]
        for channels, out in itertools.pairwise(widths):
            generator_layers += [nn.ConvTranspose2d(channels, out, 4, stride=2, padding=1, bias=False), *_norm(out)]
        generator_layers += [nn.ConvTranspose2d(widths[-1], 3, 4, stride=2, padding=1, bias=False), nn.Tanh()]
        discriminator_layers: list[nn.Module] = [
            nn.Conv2d(3, widths[-1], 4, stride=2, padding=1, bias=False),
            nn.LeakyReLU(0.2),
        ]
        for channels, out in itertools.pairwise(widths[::-1]):
            discriminator_layers += [nn.Conv2d(channels, out, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(out)]
            discriminator_layers.append(nn.LeakyReLU(0.2))
        discriminator_layers += [nn.Conv2d(widths[0], 1, 4, bias=False), nn.Flatten(0)]
        self.generator, self.discriminator = nn.Sequential(*generator_layers), nn.Sequential(*discriminator_layers)
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)):
                nn.init.normal_(module.weight, std=0.02)
            elif isinstance(module, nn.BatchNorm2d):
                nn.init.normal_(module.weight, mean=1.0, std=0.02)

    def forward(self, noise: Tensor) -> Tensor:
        images: Tensor = self.generator(noise)
        return images


def _norm(channels: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(channels), nn.ReLU()


def _adversarial_loss(scores: Tensor, real: bool) -> Tensor:
    return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


def _discriminator_loss(model: DCGAN, images: Tensor, fakes: Tensor) -> Tensor:
    return _adversarial_loss(model.discriminator(images), real=True) + _adversarial_loss(
        model.discriminator(fakes.detach()), real=False
    )


def _noise(images: Tensor) -> Tensor:
    return torch.randn(len(images), NOISE, 1, 1, device=images.device)


def dcgan_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Both losses in one graph, with all the work of a step: for counting. `step` trains with one after the other."""
    assert isinstance(model, DCGAN)
    fakes = model(_noise(batch[0]))
    return _discriminator_loss(model, batch[0], fakes) + _adversarial_loss(model.discriminator(fakes), real=True)


def step(training: Training, batch: Batch) -> Tensor:
    """An update of the discriminator on real and made images, then one of the generator; the sum of both losses."""
    model, (of_generator, of_discriminator) = training.model, training.optimizers
    assert isinstance(model, DCGAN)
    of_discriminator.zero_grad()
    fakes = model(_noise(batch[0]))
    discriminator_loss = _discriminator_loss(model, batch[0], fakes)
    discriminator_loss.backward()  # type: ignore[no-untyped-call]
    of_discriminator.step()
    of_generator.zero_grad()
    generator_loss = _adversarial_loss(model.discriminator(fakes), real=True)
    generator_loss.backward()  # type: ignore[no-untyped-call]
    of_generator.step()
    return discriminator_loss.detach() + generator_loss.detach()


def groups(model: nn.Module) -> tuple[Iterable[nn.Parameter], ...]:
    """The parameters of the generator and of the discriminator."""
    assert isinstance(model, DCGAN)
    return model.generator.parameters(), model.discriminator.parameters()


def _dcgan_workload(variant: Variant, **more: object) -> Workload:
    return generator_workload(
        f"dcgan-{variant.side}",
        functools.partial(DCGAN, variant),
        (3, variant.side, variant.side),
        dcgan_loss,
        summary=f"DCGAN at {variant.side} x {variant.side}: transposed convolutions, two optimizers in turn",
        dominant_layer="transposed convolution",
        default_batch=32,
        references=("Radford, Metz, Chintala, Unsupervised representation learning, ICLR 2016, arXiv:1511.06434",),
        loss_name="binary cross entropy of both",
        step=step,
        groups=groups,
        hyperparameters={
            **rates(sgd=0.01, momentum=0.002, adam=2e-4, rmsprop=5e-5),
            "adam": {"lr": 2e-4, "betas": (0.5, 0.999)},
        },
        published=published_2019(
            "30M", "the row of DenseNet40 repeated", "1M", "the row of DenseNet40 repeated (true at 32: 1.73M)"
        ),
        **more,
    )


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
        time = self.time(_embed_time(times))  # [B, 128]
        x, skips = self.stem(x), []
        for number, block in enumerate(self.down):
            x = block(x, time)
            skips.append(x)  # [B, w, 32, 32], [B, 2w, 16, 16], [B, 2w, 8, 8]
            if number < len(self.halve):
                x = self.halve[number](x)
        x = self.attention(self.middle(x, time))  # [B, 2w, 8, 8]
        for number, block in enumerate(self.up):
            x = block(torch.cat([x, skips.pop()], dim=1), time)
            if number < len(self.widen):
                x = self.widen[number](functional.interpolate(x, scale_factor=2.0))
        noise: Tensor = self.out(functional.silu(self.norm(x)))
        return noise


def _embed_time(times: Tensor) -> Tensor:
    """Sines and cosines of growing frequency: [B] to [B, 128]."""
    frequencies = torch.exp(torch.arange(TIME // 2, device=times.device) * (-math.log(10_000) / (TIME // 2)))
    angles = 1000 * times[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def diffusion_loss(model: nn.Module, batch: Batch) -> Tensor:
    """Mean squared error of the noise found, at random times."""
    images = batch[0]
    times, noise = torch.rand(len(images), device=images.device), torch.randn_like(images)
    angle = (0.5 * math.pi * times)[:, None, None, None]
    return functional.mse_loss(model(angle.cos() * images + angle.sin() * noise, times), noise)


def _diffusion_workload(width: int, **more: object) -> Workload:
    return generator_workload(
        f"diffusion-unet{width}-c32",
        functools.partial(UNet, width),
        C32,
        diffusion_loss,
        summary=f"Diffusion at 32 x 32 with a U-Net of {width} channels: convolutions, group norm and some attention",
        dominant_layer="convolution",
        default_batch=16,
        references=("Ho, Jain, Abbeel, Denoising diffusion probabilistic models, NeurIPS 2020, arXiv:2006.11239",),
        loss_name="mean squared error",
        **more,
    )


WORKLOADS = (
    _dcgan_workload(Variant(32, (256, 128, 64)), tiers=("smoke", "paper-2019")),
    _dcgan_workload(Variant(64, (512, 256, 128, 64)), tiers=("paper-2019",)),
    _diffusion_workload(32, tiers=("smoke", "edge")),
    _diffusion_workload(64, tiers=("edge",)),
)
