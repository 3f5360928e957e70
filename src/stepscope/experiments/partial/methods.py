"""The ways to train a part of a model: the parameters that each trains in which step, and how the rest is frozen."""

from __future__ import annotations

import contextlib
import functools
import math
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

# What is frozen needs no gradient, so autograd computes none and keeps nothing for it. Where only some filters of a
# weight are trained, the gradient of all of them is computed all the same: the others' is set to 0 before the update,
# and what momentum or weight decay make of them is undone.


@dataclass(frozen=True)
class TrainedParameters:
    """Parameters that are trained, by name; of those in `frozen_filters`, the filters of these numbers are not."""

    trained: frozenset[str]
    frozen_filters: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def share(self, model: nn.Module) -> float:
        """Part of the model's numbers that this trains, 0 to 1."""
        named = dict(model.named_parameters())
        trained = sum(named[name].numel() for name in self.trained)
        frozen = sum(len(rows) * named[name][0].numel() for name, rows in self.frozen_filters.items())
        return (trained - frozen) / sum(parameter.numel() for parameter in named.values())


def freeze(model: nn.Module, choice: TrainedParameters) -> None:
    """Require gradients of the trained parameters only; drop the gradients of the others."""
    for name, parameter in model.named_parameters():
        is_trained = name in choice.trained
        if parameter.requires_grad != is_trained:
            parameter.requires_grad_(is_trained)
        if not is_trained:
            parameter.grad = None


@contextlib.contextmanager
def freeze_filters(model: nn.Module, optimizers: tuple[Optimizer, ...], choice: TrainedParameters) -> Iterator[None]:
    """The frozen filters stay as they are in every update that is made inside."""
    if not choice.frozen_filters:
        yield
        return
    named = dict(model.named_parameters())
    pairs = [(named[name], torch.tensor(rows)) for name, rows in choice.frozen_filters.items()]
    owner = {id(p): optimizer for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    handles = []
    for optimizer in optimizers:
        own = [(p, rows.to(p.device)) for p, rows in pairs if owner.get(id(p)) is optimizer]
        handles += _register_filter_hooks(optimizer, own)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _register_filter_hooks(
    optimizer: Optimizer, own: list[tuple[nn.Parameter, Tensor]]
) -> list[torch.utils.hooks.RemovableHandle]:
    values_before: list[tuple[nn.Parameter, Tensor, Tensor]] = []

    def before(*_: object) -> None:
        for parameter, rows in own:
            if parameter.grad is not None:
                parameter.grad.index_fill_(0, rows, 0)
            values_before.append((parameter, rows, parameter.detach().index_select(0, rows)))

    def after(*_: object) -> None:
        for parameter, rows, values in values_before:
            parameter.detach().index_copy_(0, rows, values)
        values_before.clear()

    return [optimizer.register_step_pre_hook(before), optimizer.register_step_post_hook(after)]


# References
#   E. J. Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", ICLR 2022 (arXiv 2106.09685): B is 0 at
#   first.
#   For a convolution the first of the two has its kernel and r filters, the second is a 1x1 convolution.

LORA_RANK = 4
LORA_SCALE = 1.0  # alpha / r
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class LoraLayer(nn.Module):
    """A layer with its adapter."""

    def __init__(self, layer: nn.Module, down: nn.Module, up: nn.Module) -> None:
        super().__init__()
        self.layer, self.down, self.up = layer, down, up

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + LORA_SCALE * self.up(self.down(x))
        return out


def adaptable_layers(model: nn.Module) -> list[str]:
    """Layers that an adapter can stand beside: plain linear layers and convolutions without groups; not the last."""
    layers = [name for name, module in model.named_modules() if name and _is_exact_layer_type(module)]
    return layers[:-1]


def add_adapters(model: nn.Module, rank: int = LORA_RANK) -> None:
    """Put an adapter beside each of them."""
    for name in adaptable_layers(model):
        parent, _, short = name.rpartition(".")
        owner, layer = model.get_submodule(parent), model.get_submodule(name)
        setattr(owner, short, LoraLayer(layer, *_adapter(layer, rank)))


def adapter_parameters(model: nn.Module) -> Iterator[str]:
    """Names of the adapters' parameters."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLayer):
            yield from (f"{name}.{part}" for part, _ in module.named_parameters() if not part.startswith("layer."))


def _is_exact_layer_type(module: nn.Module) -> bool:
    """Exactly these types: a subclass may be read by its owner as something else than a call."""
    return type(module) is nn.Linear or (type(module) in _CONVOLUTIONS and getattr(module, "groups", 1) == 1)


def _adapter(layer: Any, rank: int) -> tuple[nn.Module, nn.Module]:
    place = {"device": layer.weight.device, "dtype": layer.weight.dtype}
    if isinstance(layer, nn.Linear):
        down: Any = nn.Linear(layer.in_features, rank, bias=False, **place)
        up: Any = nn.Linear(rank, layer.out_features, bias=False, **place)
    else:
        kind = type(layer)
        shape = {name: getattr(layer, name) for name in ("stride", "padding", "dilation", "padding_mode")}
        down = kind(layer.in_channels, rank, layer.kernel_size, bias=False, **shape, **place)
        up = kind(rank, layer.out_channels, 1, bias=False, **place)
    nn.init.zeros_(up.weight)
    return down, up


FreezingSchedule = Callable[[int], TrainedParameters]  # of the number of a step, from 0


@dataclass(frozen=True)
class ScheduleSettings:
    """Parameters of a schedule: the fraction, the steps of the whole training and between two draws, and the seed.

    gradients: those of one batch for all parameters, by name; computed only where they are asked for.
    """

    fraction: float
    steps: int
    draw_every: int
    seed: int
    gradients: Callable[[], dict[str, Tensor]]


@dataclass(frozen=True)
class TrainingMethod:
    """A way to train a part of a model. needs: layers that it takes, and what is said of a model without them."""

    name: str
    trains: str
    saves: str
    schedule: Callable[[nn.Module, ScheduleSettings], FreezingSchedule]
    needs: tuple[Callable[[nn.Module], Collection[str]], str] | None = None
    setup: Callable[[nn.Module], None] = lambda model: None

    def missing(self, model: nn.Module) -> str | None:
        """Return why a model cannot be trained so; None if it can."""
        return None if self.needs is None or self.needs[0](model) else self.needs[1]


def _parameter_names(model: nn.Module) -> frozenset[str]:
    return frozenset(name for name, _ in model.named_parameters())


def _constant_schedule(trained: Iterable[str]) -> FreezingSchedule:
    choice = TrainedParameters(frozenset(trained))
    return lambda step: choice


def _schedule_of_draws(terms: ScheduleSettings, choose: Callable[[int], TrainedParameters]) -> FreezingSchedule:
    """Return the schedule that chooses by the number of the draw, once while that stays."""
    latest = functools.lru_cache(maxsize=1)(choose)
    return lambda step: latest(step // terms.draw_every)


def _share_count(fraction: float, of: int) -> int:
    """Return this share of so many: rounded down as in the second paper's code, but never none."""
    return max(1, math.floor(fraction * of + 1e-9))


def _random_layer_schedule(model: nn.Module, terms: ScheduleSettings) -> FreezingSchedule:
    groups = parameters_by_layer(model)

    def choose(number: int) -> TrainedParameters:
        draw = random.Random(f"{terms.seed}:layers:{number}")
        chosen = draw.sample(list(groups), _share_count(terms.fraction, len(groups)))
        return TrainedParameters(frozenset(name for layer in chosen for name in groups[layer]))

    return _schedule_of_draws(terms, choose)


def _drawn_filters(model: nn.Module, terms: ScheduleSettings, number: int) -> dict[str, set[int]]:
    draw = random.Random(f"{terms.seed}:filters:{number}")
    frozen = {}
    for layer in convolution_parameters(model):
        count = len(model.get_submodule(layer).get_parameter("weight"))
        frozen[layer] = set(range(count)) - set(draw.sample(range(count), _share_count(terms.fraction, count)))
    return frozen


def _choice_without_filters(model: nn.Module, frozen: dict[str, set[int]]) -> TrainedParameters:
    """Everything but these filters; a convolution that has none left needs no gradient at all."""
    own, named = convolution_parameters(model), dict(model.named_parameters())
    untrained, frozen_filters = set[str](), {}
    for layer, rows in frozen.items():
        for name in own[layer]:
            if len(rows) == len(named[name]):
                untrained.add(name)
            elif rows:
                frozen_filters[name] = tuple(sorted(rows))
    return TrainedParameters(_parameter_names(model) - untrained, frozen_filters)


def _cumulative_filter_schedule(model: nn.Module, terms: ScheduleSettings) -> FreezingSchedule:
    """Every draw freezes more: what was frozen once stays so. Steps in order cost a draw each; going back begins anew.

    Once every filter that can be is frozen, nothing is drawn any more.
    """
    sizes = {layer: len(model.get_submodule(layer).get_parameter("weight")) for layer in convolution_parameters(model)}
    most = {layer: size if _share_count(terms.fraction, size) < size else 0 for layer, size in sizes.items()}
    frozen = {layer: set[int]() for layer in sizes}
    draws, choice = 0, _choice_without_filters(model, frozen)

    def choose(number: int) -> TrainedParameters:
        nonlocal frozen, draws, choice
        if number + 1 < draws:
            frozen, draws = {layer: set[int]() for layer in sizes}, 0
        before = frozen
        while draws <= number and any(len(rows) < most[layer] for layer, rows in frozen.items()):
            frozen = {layer: frozen[layer] | rows for layer, rows in _drawn_filters(model, terms, draws).items()}
            draws += 1
        if frozen is not before:
            choice = _choice_without_filters(model, frozen)
        return choice

    return _schedule_of_draws(terms, choose)


def _sparse_update_schedule(model: nn.Module, terms: ScheduleSettings) -> FreezingSchedule:
    """Weights by their squared gradient in one batch over their number of elements, until the fraction is spent.

    After J. Lin et al., "On-Device Training Under 256KB Memory", NeurIPS 2022: there the contribution of each tensor is
    measured by training it alone; biases after the first trained weight are updated too, since they cost no memory.
    """
    named, gradients = dict(model.named_parameters()), terms.gradients()
    worth = {name: float(gradient.square().mean()) for name, gradient in gradients.items() if gradient.dim() > 1}
    budget = terms.fraction * sum(parameter.numel() for parameter in named.values())
    chosen = set(last_layer(model))
    for name in sorted(worth, key=lambda name: -worth[name]):
        if sum(named[other].numel() for other in {*chosen, name}) <= budget:
            chosen.add(name)
    order = list(named)
    first = min(order.index(name) for name in chosen)
    return _constant_schedule({*chosen, *(name for name in biases(model) if order.index(name) > first)})


def _gradual_unfreezing_schedule(model: nn.Module, terms: ScheduleSettings) -> FreezingSchedule:
    """The last layer first, then one more at equal distances, until all are trained in the last stretch.

    After J. Howard and S. Ruder, "Universal Language Model Fine-tuning for Text Classification", ACL 2018.
    """
    groups = list(parameters_by_layer(model).values())

    def schedule(step: int) -> TrainedParameters:
        count = 1 + min(step * len(groups) // max(terms.steps, 1), len(groups) - 1)
        return TrainedParameters(frozenset(name for own in groups[-count:] for name in own))

    return schedule


Layers = dict[str, tuple[str, ...]]


def parameters_by_layer(model: nn.Module, kinds: type[nn.Module] = nn.Module) -> Layers:
    """Return the names of the parameters of each layer of a kind by the layer's name; shared ones count once."""
    counted: set[int] = set()
    layers: Layers = {}
    for name, module in model.named_modules():
        own = []
        for short, parameter in module.named_parameters(recurse=False):
            if id(parameter) not in counted:
                counted.add(id(parameter))
                own.append(f"{name}.{short}" if name else short)
        if own and isinstance(module, kinds):
            layers[name] = tuple(own)
    return layers


def last_layer(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the parameters of the last layer that has any."""
    return [(), *parameters_by_layer(model).values()][-1]


def convolution_parameters(model: nn.Module) -> Layers:
    """Return the parameters of layers that have filters: convolutions whose weight has a filter in each row."""
    convolutions = parameters_by_layer(model, _ConvNd)
    return {name: own for name, own in convolutions.items() if not model.get_submodule(name).transposed}


def batch_norm_parameters(model: nn.Module) -> tuple[str, ...]:
    return tuple(name for own in parameters_by_layer(model, _BatchNorm).values() for name in own)


def biases(model: nn.Module) -> tuple[str, ...]:
    """Biases of layers that also have a weight of more than one dimension: not the shifts of a normalisation."""
    named = dict(model.named_parameters())
    deep = [own for own in parameters_by_layer(model).values() if any(named[name].dim() > 1 for name in own)]
    return tuple(name for own in deep for name in own if name.rpartition(".")[2].startswith("bias"))


_INPUTS = "weight gradients of frozen layers, and everything before the first trained one"
_FILTERS = (convolution_parameters, "it has no convolution, so no filters")
WAYS = {
    way.name: way
    for way in (
        TrainingMethod(
            "all", "everything", "nothing", lambda model, terms: _constant_schedule(_parameter_names(model))
        ),
        TrainingMethod("layers", "layers drawn anew", _INPUTS, _random_layer_schedule),
        TrainingMethod(
            "filters",
            "filters of each convolution drawn anew, other layers whole",
            "nothing: the gradient of a weight is one operator, and a mask comes after it",
            lambda model, terms: _schedule_of_draws(
                terms, lambda number: _choice_without_filters(model, _drawn_filters(model, terms, number))
            ),
            _FILTERS,
        ),
        TrainingMethod(
            "cumulative",
            "as filters, but what was frozen once stays frozen: what the second paper's code does",
            "like filters at first; once all filters of a layer are frozen, its weight gradient",
            _cumulative_filter_schedule,
            _FILTERS,
        ),
        TrainingMethod(
            "last",
            "the last layer",
            "all backward work below the last layer",
            lambda model, terms: _constant_schedule(last_layer(model)),
        ),
        TrainingMethod(
            "bias",
            "biases of layers with weights",
            "weight gradients; not the input gradients",
            lambda model, terms: _constant_schedule(biases(model)),
            (biases, "none of its layers has a bias"),
        ),
        TrainingMethod(
            "batch-norm",
            "scale and shift of batch normalisation",
            "weight gradients of all other layers",
            lambda model, terms: _constant_schedule(batch_norm_parameters(model)),
            (batch_norm_parameters, "it has no batch normalisation with parameters"),
        ),
        TrainingMethod(
            "lora",
            f"adapters of rank {LORA_RANK} beside frozen layers, and the last layer",
            "weight gradients of frozen layers; the adapters add work of their own",
            lambda model, terms: _constant_schedule([*adapter_parameters(model), *last_layer(model)]),
            (adaptable_layers, "it has no linear layer or convolution that an adapter fits beside"),
            add_adapters,
        ),
        TrainingMethod(
            "sparse",
            "the last layer, and whole weights by their gradients until the fraction of all numbers is spent",
            _INPUTS,
            _sparse_update_schedule,
        ),
        TrainingMethod(
            "gradual",
            "the last layer first, then one more at equal distances",
            f"early on: {_INPUTS}",
            _gradual_unfreezing_schedule,
        ),
    )
}
