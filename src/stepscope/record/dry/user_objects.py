"""Objects of the user that exist already: what a prediction does with them leaves no trace in them."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import types
from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from stepscope.errors import StepscopeError
from stepscope.record.dry import Job, Optimizers
from stepscope.record.dry.fake_numbers import FakeMode


def copy_training(model: nn.Module, optimizers: Optimizers, memo: dict[int, Any]) -> tuple[nn.Module, Optimizers]:
    """Return a copy of both, with what an optimizer holds beside groups and state: torch's copy of it is without."""
    copied: tuple[nn.Module, Optimizers] = copy.deepcopy((model, optimizers), memo)
    for optimizer, new in zip(optimizers, copied[1], strict=True):
        for name, value in vars(optimizer).items():
            if name not in vars(new) and not callable(value):  # a function, as a scheduler's step, is the original's
                setattr(new, name, copy.deepcopy(value, memo))
    return copied


@contextlib.contextmanager
def model_to_train(job: Job) -> Iterator[tuple[nn.Module, Optimizers]]:
    """Give a model and optimizers that real steps may change.

    Of objects that exist this is a copy; or what cannot be copied itself, whose numbers are put back afterwards.
    """
    model, optimizers = job.build()
    if not job.is_built:
        yield model, optimizers
        return
    trained: tuple[nn.Module, Optimizers] | None = None
    with contextlib.suppress(Exception):  # a user's object may hold what cannot be copied: a lock, an open file
        trained = copy_training(model, optimizers, {})
    # a loss may use a layer by itself, which is no part of the copied model: its gradient is the original's
    with _restore_gradients_after(model, optimizers):
        if trained is not None:
            yield trained
        else:
            with _restore_numbers_after(model, optimizers):
                yield model, optimizers


def _all_parameters(model: nn.Module, optimizers: Optimizers) -> list[Tensor]:
    optimized = (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
    return list({id(parameter): parameter for parameter in (*model.parameters(), *optimized)}.values())


@contextlib.contextmanager
def _restore_gradients_after(model: nn.Module, optimizers: Optimizers) -> Iterator[None]:
    before = [(p, p.grad, None if p.grad is None else p.grad.clone()) for p in _all_parameters(model, optimizers)]
    try:
        yield
    finally:
        for parameter, gradient, numbers in before:
            if gradient is not None and numbers is not None:
                gradient.data.copy_(numbers)
            parameter.grad = gradient


@contextlib.contextmanager
def _restore_numbers_after(model: nn.Module, optimizers: Optimizers) -> Iterator[None]:
    """Parameters, buffers and all of the optimizers are afterwards as they were; StepscopeError where they cannot."""
    try:
        tensors = [(t, t.detach().clone()) for t in (*_all_parameters(model, optimizers), *model.buffers())]
        buffers = [(module, dict(module._buffers)) for module in model.modules()]
        states = [{of: copy.deepcopy(state) for of, state in optimizer.state.items()} for optimizer in optimizers]
        groups = [
            (group, copy.deepcopy({name: value for name, value in group.items() if name != "params"}))
            for optimizer in optimizers
            for group in optimizer.param_groups
        ]
    except Exception as error:  # an uninitialized parameter, an optimizer of the user's own
        text = f"no dry run of {type(model).__name__}, and real steps would change it: it can be neither copied nor put"
        raise StepscopeError(f"{text} back ({error})", "give --job module:function, which builds it anew") from error
    try:
        yield
    finally:
        for tensor, numbers in tensors:
            tensor.data.copy_(numbers)
        for module, own in buffers:
            module._buffers.update(own)
        for optimizer, state in zip(optimizers, states, strict=True):
            optimizer.state.clear()
            optimizer.state.update(state)
        for group, values in groups:
            group.update(values)


_DEPTH = 6  # containers within containers, of what a cache keeps


def clear_caches_of_fakes() -> list[str]:
    """Empty the functools caches that keep tensors of dry runs, and return the names of what else keeps some.

    A mask that the user's code made once in a dry run has no numbers, and real steps with it would compute none.
    """
    gc.collect()
    if not _live_fake_tensors():
        return []
    for cache in [thing for thing in gc.get_objects() if type(thing) is functools._lru_cache_wrapper]:
        if cache.cache_info().currsize and _reaches_fake(cache):
            cache.cache_clear()
    gc.collect()
    return _names_of_holders(_live_fake_tensors())


def _live_fake_tensors() -> list[FakeTensor]:
    objects = (thing for thing in gc.get_objects() if issubclass(type(thing), FakeTensor))
    return [tensor for tensor in objects if isinstance(tensor.fake_mode, FakeMode)]


def _reaches_fake(cache: Any) -> bool:
    level, passed = [cache], {id(cache)}
    for _ in range(_DEPTH):
        level = [
            inner for inner in gc.get_referents(*level)
            if not isinstance(inner, _CODE) and id(inner) not in passed and not passed.add(id(inner))  # type: ignore[func-returns-value]
        ]  # fmt: skip
        if any(issubclass(type(inner), FakeTensor) for inner in level):
            return True
    return False


_CODE = (type, types.FunctionType, types.ModuleType, types.CodeType)


def _names_of_holders(fakes: Sequence[FakeTensor]) -> list[str]:
    """Names of attributes and variables that are or directly hold one of these tensors."""
    keys, names = {id(tensor) for tensor in fakes}, set()
    for holder in gc.get_referrers(*fakes) if fakes else ():
        # an object refers to the values of its attributes itself, or through its dictionary
        direct = isinstance(holder, dict)
        values = holder if direct else getattr(holder, "__dict__", {})
        referrers = gc.get_referrers(holder) if direct else ()
        owners = [of for of in referrers if getattr(of, "__dict__", None) is holder] if direct else [holder]
        for owner in owners:
            owner_name = getattr(owner, "__name__", type(owner).__name__)
            names |= {f"{owner_name}.{name}" for name, value in values.items() if id(value) in keys}
    return sorted(names)
