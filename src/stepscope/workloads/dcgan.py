"""DCGAN: a generator and a discriminator of strided convolutions, each with an optimizer of its own.

References
  A. Radford, L. Metz, S. Chintala, "Unsupervised representation learning with deep convolutional generative adversarial
    networks", ICLR 2016, arXiv:1511.06434; sizes of https://github.com/pytorch/examples/tree/main/dcgan.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from stepscope.workloads._classification import published_2019
from stepscope.workloads._generation import generator
from stepscope.workloads.contract import Batch, Training, Workload, rates

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
        made: list[nn.Module] = [nn.ConvTranspose2d(NOISE, widths[0], 4, bias=False), *_norm(widths[0])]
        for channels, out in itertools.pairwise(widths):
            made += [nn.ConvTranspose2d(channels, out, 4, stride=2, padding=1, bias=False), *_norm(out)]
        made += [nn.ConvTranspose2d(widths[-1], 3, 4, stride=2, padding=1, bias=False), nn.Tanh()]
        seen: list[nn.Module] = [nn.Conv2d(3, widths[-1], 4, stride=2, padding=1, bias=False), nn.LeakyReLU(0.2)]
        for channels, out in itertools.pairwise(widths[::-1]):
            seen += [nn.Conv2d(channels, out, 4, stride=2, padding=1, bias=False), nn.BatchNorm2d(out)]
            seen.append(nn.LeakyReLU(0.2))
        seen += [nn.Conv2d(widths[0], 1, 4, bias=False), nn.Flatten(0)]
        self.generator, self.discriminator = nn.Sequential(*made), nn.Sequential(*seen)
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


def _judged(scores: Tensor, real: bool) -> Tensor:
    return functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, float(real)))


def _discriminator_loss(model: DCGAN, images: Tensor, made: Tensor) -> Tensor:
    return _judged(model.discriminator(images), real=True) + _judged(model.discriminator(made.detach()), real=False)


def _noise(images: Tensor) -> Tensor:
    return torch.randn(len(images), NOISE, 1, 1, device=images.device)


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """Both losses in one graph, with all the work of a step: for counting. `step` trains with one after the other."""
    assert isinstance(model, DCGAN)
    made = model(_noise(batch[0]))
    return _discriminator_loss(model, batch[0], made) + _judged(model.discriminator(made), real=True)


def step(training: Training, batch: Batch) -> Tensor:
    """An update of the discriminator on real and made images, then one of the generator; the sum of both losses."""
    model, (of_generator, of_discriminator) = training.model, training.optimizers
    assert isinstance(model, DCGAN)
    of_discriminator.zero_grad()
    made = model(_noise(batch[0]))
    against = _discriminator_loss(model, batch[0], made)
    against.backward()  # type: ignore[no-untyped-call]
    of_discriminator.step()
    of_generator.zero_grad()
    fooled = _judged(model.discriminator(made), real=True)
    fooled.backward()  # type: ignore[no-untyped-call]
    of_generator.step()
    return against.detach() + fooled.detach()


def groups(model: nn.Module) -> tuple[Iterable[nn.Parameter], ...]:
    """The parameters of the generator and of the discriminator."""
    assert isinstance(model, DCGAN)
    return model.generator.parameters(), model.discriminator.parameters()


def _workload(variant: Variant, **more: object) -> Workload:
    return generator(
        f"dcgan-{variant.side}",
        functools.partial(DCGAN, variant),
        (3, variant.side, variant.side),
        loss,
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


WORKLOADS = (
    _workload(Variant(32, (256, 128, 64)), tiers=("smoke", "paper-2019")),
    _workload(Variant(64, (512, 256, 128, 64)), tiers=("paper-2019",)),
)
