"""The ways to train a part of a model. Each is data: what it asks of a model, and what it trains in which step."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from stepscope.studies.partial import lora
from stepscope.studies.partial.choice import Choice
from stepscope.studies.partial.layers import batch_norms, biases, convolutions, layers

ALL = "all"
Plan = Callable[[int], Choice]  # of the number of a step, from 0


@dataclass(frozen=True)
class Terms:
    """What a plan depends on: the fraction, the steps of the whole training and between two draws, and the seed.

    gradients: those of one batch for all parameters, by name; computed only where they are asked for.
    """

    fraction: float
    steps: int
    draw_every: int
    seed: int
    gradients: Callable[[], dict[str, Tensor]]


@dataclass(frozen=True)
class Way:
    """fractional: has a fraction; drawn: chooses anew; missing: why a model cannot be trained so, null if it can."""

    name: str
    trains: str
    saves: str
    plan: Callable[[nn.Module, Terms], Plan]
    missing: Callable[[nn.Module], str | None] = lambda model: None
    setup: Callable[[nn.Module], None] = lambda model: None
    fractional: bool = False
    drawn: bool = False


def _names(model: nn.Module) -> frozenset[str]:
    return frozenset(name for name, _ in model.named_parameters())


def _always(trained: Iterable[str]) -> Plan:
    choice = Choice(frozenset(trained))
    return lambda step: choice


def _count(fraction: float, of: int) -> int:
    """How many of so many: rounded down as in the second paper's code, but never none."""
    return max(1, math.floor(fraction * of + 1e-9))


def _layers(model: nn.Module, terms: Terms) -> Plan:
    groups = layers(model)

    def plan(step: int) -> Choice:
        draw = random.Random(f"{terms.seed}:layers:{step // terms.draw_every}")
        chosen = draw.sample(list(groups), _count(terms.fraction, len(groups)))
        return Choice(frozenset(name for layer in chosen for name in groups[layer]))

    return plan


def _drawn_filters(model: nn.Module, terms: Terms, number: int) -> dict[str, set[int]]:
    """Of each convolution the filters that draw `number` freezes."""
    draw = random.Random(f"{terms.seed}:filters:{number}")
    frozen = {}
    for layer in convolutions(model):
        count = len(model.get_submodule(layer).get_parameter("weight"))
        frozen[layer] = set(range(count)) - set(draw.sample(range(count), _count(terms.fraction, count)))
    return frozen


def _without(model: nn.Module, frozen: dict[str, set[int]]) -> Choice:
    """Everything but these filters; a convolution that has none left needs no gradient at all."""
    own, named = convolutions(model), dict(model.named_parameters())
    gone, held = set[str](), {}
    for layer, rows in frozen.items():
        for name in own[layer]:
            if len(rows) == len(named[name]):
                gone.add(name)
            elif rows:
                held[name] = tuple(sorted(rows))
    return Choice(_names(model) - gone, held)


def _filters(model: nn.Module, terms: Terms) -> Plan:
    return lambda step: _without(model, _drawn_filters(model, terms, step // terms.draw_every))


def _cumulative(model: nn.Module, terms: Terms) -> Plan:
    """Every draw freezes more: what was frozen once stays so."""
    frozen: list[dict[str, set[int]]] = []

    def plan(step: int) -> Choice:
        number = step // terms.draw_every
        while len(frozen) <= number:
            drawn = _drawn_filters(model, terms, len(frozen))
            before = frozen[-1] if frozen else {layer: set[int]() for layer in drawn}
            frozen.append({layer: before[layer] | rows for layer, rows in drawn.items()})
        return _without(model, frozen[number])

    return plan


def _last(model: nn.Module, terms: Terms) -> Plan:
    return _always(list(layers(model).values())[-1])


def _bias(model: nn.Module, terms: Terms) -> Plan:
    return _always(biases(model))


def _batch_norm(model: nn.Module, terms: Terms) -> Plan:
    return _always(name for own in batch_norms(model).values() for name in own)


def _lora(model: nn.Module, terms: Terms) -> Plan:
    return _always([*lora.adapters(model), *list(layers(model).values())[-1]])


def _sparse(model: nn.Module, terms: Terms) -> Plan:
    """Weights by their squared gradient in one batch over their number of elements, until the fraction is spent.

    After J. Lin et al., "On-Device Training Under 256KB Memory", NeurIPS 2022: there the contribution of each tensor is
    measured by training it alone; biases after the first trained weight are updated too, since they cost no memory.
    """
    named, groups = dict(model.named_parameters()), layers(model)
    last = list(groups.values())[-1]
    gradients = terms.gradients()
    worth = {name: float(gradient.square().mean()) for name, gradient in gradients.items() if gradient.dim() > 1}
    budget = terms.fraction * sum(parameter.numel() for parameter in named.values())
    chosen = set(last)
    for name in sorted(worth, key=lambda name: -worth[name]):
        if sum(named[each].numel() for each in {*chosen, name}) <= budget:
            chosen.add(name)
    order = list(named)
    first = min(order.index(name) for name in chosen)
    return _always({*chosen, *(name for name in biases(model) if order.index(name) > first)})


def _gradual(model: nn.Module, terms: Terms) -> Plan:
    """The last layer first, then one more at equal distances, until all are trained in the last stretch.

    After J. Howard and S. Ruder, "Universal Language Model Fine-tuning for Text Classification", ACL 2018.
    """
    groups = list(layers(model).values())

    def plan(step: int) -> Choice:
        count = 1 + min(step * len(groups) // max(terms.steps, 1), len(groups) - 1)
        return Choice(frozenset(name for own in groups[-count:] for name in own))

    return plan


def _no_filters(model: nn.Module) -> str | None:
    return None if convolutions(model) else "it has no convolution, so no filters"


def _no_biases(model: nn.Module) -> str | None:
    return None if biases(model) else "none of its layers has a bias"


def _no_batch_norm(model: nn.Module) -> str | None:
    return None if any(batch_norms(model).values()) else "it has no batch normalisation with parameters"


def _no_place(model: nn.Module) -> str | None:
    return None if lora.adaptable(model) else "it has no linear layer or convolution that an adapter fits beside"


_INPUTS = "weight gradients of frozen layers, and everything before the first trained one"
WAYS = {
    way.name: way
    for way in (
        Way(ALL, "everything", "nothing", lambda model, terms: _always(_names(model))),
        Way("layers", "layers drawn anew", _INPUTS, _layers, fractional=True, drawn=True),
        Way(
            "filters",
            "filters of each convolution drawn anew, other layers whole",
            "nothing: the gradient of a weight is one operation, and a mask comes after it",
            _filters,
            _no_filters,
            fractional=True,
            drawn=True,
        ),
        Way(
            "cumulative",
            "as filters, but what was frozen once stays frozen: what the second paper's code does",
            "like filters at first; once all filters of a layer are frozen, its weight gradient",
            _cumulative,
            _no_filters,
            fractional=True,
            drawn=True,
        ),
        Way("last", "the last layer", "all backward work below the last layer", _last),
        Way("bias", "biases of layers with weights", "weight gradients; not the input gradients", _bias, _no_biases),
        Way(
            "batch-norm",
            "scale and shift of batch normalisation",
            "weight gradients of all other layers",
            _batch_norm,
            _no_batch_norm,
        ),
        Way(
            "lora",
            f"adapters of rank {lora.RANK} beside frozen layers, and the last layer",
            "weight gradients of frozen layers; the adapters add work of their own",
            _lora,
            _no_place,
            lora.adapt,
        ),
        Way(
            "sparse",
            "the last layer, and whole weights by their gradients until the fraction of all numbers is spent",
            _INPUTS,
            _sparse,
            fractional=True,
        ),
        Way("gradual", "the last layer first, then one more at equal distances", f"early on: {_INPUTS}", _gradual),
    )
}
