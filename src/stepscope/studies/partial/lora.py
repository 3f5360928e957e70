"""LoRA: beside a frozen layer, two small ones in a row of rank r are trained, and their output is added to its own.

References
  E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022 (arXiv 2106.09685): B is 0 at first.
  For a convolution the first of the two has its kernel and r filters, the second is a 1x1 convolution.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

RANK = 4
SCALE = 1.0  # alpha / r
_CONVOLUTIONS: dict[type[nn.Module], type[Any]] = {nn.Conv1d: nn.Conv1d, nn.Conv2d: nn.Conv2d, nn.Conv3d: nn.Conv3d}


class Adapted(nn.Module):
    """A layer with its adapter."""

    def __init__(self, layer: nn.Module, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.layer, self.down, self.up = layer, down, up

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + SCALE * self.up(self.down(x))
        return out


def adaptable(model: nn.Module) -> list[str]:
    """Layers that an adapter can stand beside: plain linear layers and convolutions without groups; not the last."""
    found = [name for name, module in model.named_modules() if name and _fits(module)]
    return found[:-1]


def adapt(model: nn.Module, rank: int = RANK) -> None:
    """Put an adapter beside each of them."""
    for name in adaptable(model):
        parent, _, short = name.rpartition(".")
        owner, layer = model.get_submodule(parent), model.get_submodule(name)
        setattr(owner, short, Adapted(layer, *_adapter(layer, rank)))


def adapters(model: nn.Module) -> Iterator[str]:
    """Names of the adapters' parameters."""
    for name, module in model.named_modules():
        if isinstance(module, Adapted):
            yield from (f"{name}.{part}" for part, _ in module.named_parameters() if not part.startswith("layer."))


def _fits(module: nn.Module) -> bool:
    """Exactly these types: a subclass may be read by its owner as something else than a call."""
    return type(module) is nn.Linear or (type(module) in _CONVOLUTIONS and getattr(module, "groups", 1) == 1)


def _adapter(layer: Any, rank: int) -> tuple[nn.Module, nn.Module]:
    place = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    if isinstance(layer, nn.Linear):
        down: Any = nn.Linear(layer.in_features, rank, bias=False, **place)
        up: Any = nn.Linear(rank, layer.out_features, bias=False, **place)
    else:
        kind = _CONVOLUTIONS[type(layer)]
        shape = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
        down = kind(layer.in_channels, rank, layer.kernel_size, bias=False, **shape, **place)
        up = kind(rank, layer.out_channels, 1, bias=False, **place)
    nn.init.zeros_(up.weight)
    return down, up
