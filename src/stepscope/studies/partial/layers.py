"""The layers of a model as partial training sees them: modules with parameters of their own, in order of definition."""

from __future__ import annotations

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

Layers = dict[str, tuple[str, ...]]


def layers(model: nn.Module) -> Layers:
    """Names of the parameters of each layer by the layer's name; a parameter that layers share counts once."""
    seen: set[int] = set()
    found: Layers = {}
    for name, module in model.named_modules():
        own = []
        for short, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                own.append(f"{name}.{short}" if name else short)
        if own:
            found[name] = tuple(own)
    return found


def parameters_of(model: nn.Module, kinds: type[nn.Module] | tuple[type[nn.Module], ...]) -> Layers:
    """The same for layers of some kinds alone."""
    modules = dict(model.named_modules())
    return {name: own for name, own in layers(model).items() if isinstance(modules[name], kinds)}


def convolutions(model: nn.Module) -> Layers:
    """The layers that have filters: convolutions whose weight has a filter in each row."""
    modules = dict(model.named_modules())
    return {name: own for name, own in parameters_of(model, _ConvNd).items() if not _transposed(modules[name])}


def batch_norms(model: nn.Module) -> Layers:
    return parameters_of(model, _BatchNorm)


def biases(model: nn.Module) -> tuple[str, ...]:
    """Biases of layers that also have a weight of more than one dimension: not the shifts of a normalisation."""
    named = dict(model.named_parameters())
    deep = [own for own in layers(model).values() if any(named[name].dim() > 1 for name in own)]
    return tuple(name for own in deep for name in own if name.rpartition(".")[2].startswith("bias"))


def _transposed(module: nn.Module) -> bool:
    return bool(getattr(module, "transposed", False))
