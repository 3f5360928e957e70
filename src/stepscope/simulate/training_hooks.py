"""Hooks in the training process that mark what runs at this moment, at a few microseconds each, and the work of it.

They are torch's global hooks, so nothing is left in the user's modules: a model that is copied or saved meanwhile
carries no trace, and the recorder's own scopes stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stepscope.simulate.marks import BETWEEN, HOST, IDLE, Mark, State, StateLog

Models = nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module] | None
Backward = Callable[[Any], None]
_is_compiling: Callable[[], bool] = torch.compiler.is_compiling
_WITH_KEYWORDS: dict[int, bool] = getattr(torch.nn.modules.module, "_global_forward_hooks_with_kwargs", {})


class _ComputingModule:
    """A module that computes something itself: its states by the shape of its input."""

    __slots__ = ("by_shape", "latest", "module", "name")

    def __init__(self, module: nn.Module, name: str) -> None:
        self.module = module  # kept alive: an id is an identity only while it lives
        self.name = name
        self.by_shape: dict[Any, tuple[int, Backward]] = {}
        self.latest: int | None = None  # state of the last call


class StateMarker:
    """Marks states from `attach` to `remove`; whatever fails inside a hook turns it off and stays in `failure`."""

    def __init__(self, mark: Mark, log: StateLog, models: Models = None) -> None:
        self._mark, self._log = mark, log
        self._places: dict[int, _ComputingModule | None] = {}
        self._containers: list[nn.Module] = []  # kept alive as well: another module must not get the id of one
        self._optimizers: dict[int, tuple[Any, int]] = {}  # by id: each has parameters of its own
        self._handles: list[Any] = []
        self._on = False
        self.failure: str | None = None
        for name, model in _name_models(models):
            self._enter_model(model, name)

    def attach(self) -> None:
        """Mark from now on."""
        self._on = True
        self._handles = [
            register_module_forward_pre_hook(self._guarded(self._before)),
            register_module_forward_hook(self._guarded(self._after), with_kwargs=True),
            register_optimizer_step_pre_hook(self._guarded(self._before_optimizer)),
            register_optimizer_step_post_hook(self._guarded(self._after_optimizer)),
        ]
        self._mark(HOST)

    def remove(self) -> None:
        """Take every hook off; nodes of a graph that lives on keep theirs, which then do nothing."""
        for handle in self._handles:
            handle.remove()
            _WITH_KEYWORDS.pop(handle.id, None)  # torch forgets to: it would think of hooks for good
        self._handles = []
        if self._on:
            self._on = False
            self._mark(IDLE)

    def _guarded(self, hook: Callable[..., None]) -> Callable[..., None]:
        def guarded(*args: Any) -> None:
            # The compiler traces through hooks: seeing a constant here it leaves nothing of them in its graph.
            if _is_compiling() or not self._on:
                return
            try:
                hook(*args)
            except Exception as error:  # the training goes on without marks
                self.failure, self._on = f"{type(error).__name__}: {error}", False

        return guarded

    def _before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Mark the state; that of the call before where tensors come by keyword, which is not shown before a call."""
        place = self._find_computing_module(module)
        if place is None:
            return
        tensors = list(tensors_of(args))
        if place.latest is not None and not tensors:
            self._mark(place.latest)
        else:
            is_lazy = isinstance(module, LazyModuleMixin) and module.has_uninitialized_params()
            self._mark(BETWEEN if is_lazy else self._states(place, tensors)[0])

    def _after(self, module: nn.Module, args: tuple[Any, ...], keywords: Mapping[str, Any], output: Any) -> None:
        place = self._find_computing_module(module)
        if place is None:
            return
        tensors = list(tensors_of(args)) or list(tensors_of(_inputs_first(keywords)))
        place.latest, backward = self._states(place, tensors)
        result = next((tensor for tensor in tensors_of((output,)) if tensor.grad_fn is not None), None)
        if result is not None and result.grad_fn is not None and all(result is not tensor for tensor in tensors):
            result.grad_fn.register_prehook(backward)
        self._mark(BETWEEN)

    def _before_optimizer(self, optimizer: Any, _args: Any, _kwargs: Any) -> None:
        entry = self._optimizers.get(id(optimizer))
        if entry is None:
            state = State(type(optimizer).__name__, "optimizer", "", "", *work_of_update(optimizer))
            entry = self._optimizers[id(optimizer)] = optimizer, self._log.add(state)
        self._mark(entry[1])

    def _after_optimizer(self, _optimizer: Any, _args: Any, _kwargs: Any) -> None:
        self._mark(HOST)

    def _find_computing_module(self, module: nn.Module) -> _ComputingModule | None:
        if id(module) not in self._places:
            self._enter_model(module, type(module).__name__)
        return self._places[id(module)]

    def _enter_model(self, model: nn.Module, name: str) -> None:
        for below, module in _modules(model):
            if id(module) in self._places:
                continue
            if _computes(module):
                self._places[id(module)] = _ComputingModule(module, ".".join(part for part in (name, below) if part))
            else:
                self._places[id(module)] = None
                self._containers.append(module)

    def _states(self, place: _ComputingModule, tensors: Sequence[torch.Tensor]) -> tuple[int, Backward]:
        """Id of the forward state, and the hook that marks the backward one."""
        shapes = tuple(tensor.shape for tensor in tensors[:2])
        states = place.by_shape.get(shapes)
        if states is None:
            parameters = [tuple(parameter.shape) for parameter in place.module.parameters(recurse=False)]
            signature = f"{tuple(shapes[0]) if shapes else None} {parameters}"
            kind = type(place.module).__name__
            work = work_of_call(place.module, tensors)
            forward = self._log.add(State(kind, "forward", place.name, signature, *work))
            backward = self._log.add(State(kind, "backward", place.name, signature, *work.of_backward()))
            states = place.by_shape[shapes] = forward, self._backward_hook(backward)
        return states

    def _backward_hook(self, state: int) -> Backward:
        mark = self._mark

        def before_node(_gradients: Any) -> None:
            if self._on:
                mark(state)

        return before_node


def _modules(model: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Modules below and with this one; compiled and scripted ones are closed boxes."""
    yield name, model
    if not _is_opaque(model):
        for below, child in model.named_children():
            yield from _modules(child, f"{name}.{below}" if name else below)


def _is_opaque(module: nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule) or hasattr(module, "_orig_mod")


def _computes(module: nn.Module) -> bool:
    """Leaves compute; attention calls functions with its children's weights and never the children."""
    return isinstance(module, nn.MultiheadAttention) or _is_opaque(module) or not any(True for _ in module.children())


def _inputs_first(keywords: Mapping[str, Any]) -> list[Any]:
    """Return the values of keyword arguments, those that torch's own layers compute with before masks and states."""
    return [keywords[name] for name in sorted(keywords, key=lambda name: name not in ("input", "query"))]


def _name_models(models: Models) -> list[tuple[str, nn.Module]]:
    if models is None:
        return []
    if isinstance(models, nn.Module):
        return [("", models)]
    if isinstance(models, Mapping):
        return list(models.items())
    return [(type(model).__name__, model) for model in models]


_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_NUMBER_BYTES = 4
_STAYS_BYTES = 512 * 1024  # weights of a recurrent layer: more are read again in each step, out of memory; assumed
_GATES = {"LSTM": 4, "GRU": 3}
_UPDATE_ACCESSES = 5  # parameter, gradient and momentum are read, parameter and momentum are written


class Work(NamedTuple):
    """FLOP (a multiplication and an addition are two), bytes from and to memory, and kernels to launch.

    cells: steps of a recurrent layer through its sequence, each of as many kernels as the board's framework launches.
    """

    flops: float = 0.0
    moved: float = 0.0
    kernels: float = 1.0
    cells: float = 0.0

    def of_backward(self) -> Work:
        """Return the work of both gradients: that of the input, and that of the parameters."""
        return Work(*(2 * number for number in self))


def tensors_of(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Return the tensors in arguments or results, also those in lists, tuples and dicts, in order."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from tensors_of(value.values())
        elif isinstance(value, (tuple, list)):
            yield from tensors_of(value)


def work_of_call(module: nn.Module, args: Iterable[Any]) -> Work:
    """Return the work of the forward pass; an unknown module's matrices meet each row of its input."""
    tensors = list(tensors_of(args))
    if not tensors:
        return Work()
    first, *others = tensors
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):  # of the table only the rows that are looked up
        rows = first.numel() * module.embedding_dim
        summed = isinstance(module, nn.EmbeddingBag)
        return Work(rows if summed else 0.0, _NUMBER_BYTES * (first.numel() + 2 * rows))
    parameters = sum(parameter.numel() for parameter in module.parameters())
    flops, out, kernels = _flops(module, first, others, parameters)
    if isinstance(module, nn.RNNBase):
        read = _numbers_read_again(module, kernels)
        return Work(flops, _NUMBER_BYTES * (first.numel() + out + read), 0.0, cells=kernels)
    return Work(flops, _NUMBER_BYTES * (first.numel() + out + parameters), kernels)


def _numbers_read_again(module: nn.RNNBase, cells: float) -> float:
    """Return how many numbers of weights are read: those of a layer at once, or in each step where they are many."""
    directions = 2 if module.bidirectional else 1
    steps = cells / (module.num_layers * directions)
    read = 0.0
    for layer in range(module.num_layers):
        ends = (f"_l{layer}", f"_l{layer}_reverse")
        numbers = sum(weight.numel() for name, weight in module.named_parameters() if name.endswith(ends))
        read += numbers * (steps if numbers * _NUMBER_BYTES > directions * _STAYS_BYTES else 1)
    return read


def work_of_update(optimizer: Any) -> Work:
    """Return the work of an optimizer's step: elementwise, two kernels for each tensor."""
    tensors = [tensor for group in optimizer.param_groups for tensor in group["params"]]
    numbers = sum(tensor.numel() for tensor in tensors)
    return Work(_UPDATE_ACCESSES * numbers, _UPDATE_ACCESSES * _NUMBER_BYTES * numbers, 2 * len(tensors))


def _flops(
    module: nn.Module, first: torch.Tensor, others: list[torch.Tensor], parameters: int
) -> tuple[float, float, float]:
    """FLOP, numbers that come out, and kernels, or cells of a recurrent layer."""
    shape, samples = first.shape, first.shape[0] if first.dim() else 1
    if isinstance(module, (*_CONVOLUTIONS, *_TRANSPOSED)):
        dimensions = len(module.kernel_size)
        positions = math.prod(_positions(module, list(shape[-dimensions:])))
        at = math.prod(shape[-dimensions:]) if isinstance(module, _TRANSPOSED) else positions  # the weights meet
        batch = samples if first.dim() == dimensions + 2 else 1
        return 2.0 * module.weight.numel() * at * batch, module.out_channels * positions * batch, 1
    if isinstance(module, nn.Linear):
        rows = first.numel() / max(module.in_features, 1)
        return 2.0 * module.weight.numel() * rows, rows * module.out_features, 1
    if isinstance(module, nn.RNNBase):
        directions = 2 if module.bidirectional else 1
        rows = first.numel() / max(module.input_size, 1)
        if first.dim() == 2 and others and others[0].dim() == 1:  # a packed sequence: batch sizes of each step
            steps = len(others[0])
        else:
            steps = shape[1 if module.batch_first and first.dim() == 3 else 0]
        gates = _GATES.get(module.mode, 1)  # each is written by both products, read, and saved
        numbers = (5 * gates + 3) * rows * module.hidden_size * module.num_layers * directions
        return 2.0 * parameters * rows, numbers, steps * module.num_layers * directions
    if isinstance(module, nn.MultiheadAttention):
        rows = first.numel() / max(module.embed_dim, 1)
        keys = others[0].shape if others and others[0].dim() == first.dim() else shape
        length = keys[1 if module.batch_first and first.dim() == 3 else 0]
        return 2.0 * parameters * rows + 4.0 * rows * length * module.embed_dim, first.numel(), 8
    products, out = _products(module, first)
    kernels = sum(1 for part in module.modules() if not any(True for _ in part.children()))
    return 5.0 * first.numel() + products, out, kernels


def _products(module: nn.Module, first: torch.Tensor) -> tuple[float, float]:
    """FLOP of an unknown module's weights, and numbers that come out.

    A matrix with as many rows or columns as the input has features meets each of its rows, or each of its tokens where
    these are whole numbers; other weights meet each sample once.
    """
    flops, out, width = 0.0, float(first.numel()), first.shape[-1] if first.dim() else 1
    for part in module.modules():
        if isinstance(part, (nn.Embedding, nn.EmbeddingBag)):
            continue
        for weight in part.parameters(recurse=False):
            if weight.dim() < 2:
                continue
            rows = float(first.shape[0] if first.dim() else 1)
            if weight.dim() == 2 and not first.is_floating_point():
                rows = float(first.numel())
            elif weight.dim() == 2 and width in weight.shape:
                rows = first.numel() / max(width, 1)
                out = max(out, rows * weight.numel() / max(width, 1))
            flops += 2.0 * weight.numel() * rows
    return flops, out


def _positions(module: Any, sizes: list[int]) -> list[int]:
    """Size of a convolution's output along each dimension."""
    positions = []
    for index, size in enumerate(sizes):
        kernel, stride, dilation = (value[index] for value in (module.kernel_size, module.stride, module.dilation))
        span = dilation * (kernel - 1)
        padding = module.padding
        around = (span if padding == "same" else 0) if isinstance(padding, str) else 2 * padding[index]
        if isinstance(module, _TRANSPOSED):
            positions.append(max((size - 1) * stride - around + span + module.output_padding[index] + 1, 0))
        else:
            positions.append(max((size + around - span - 1) // stride + 1, 0))
    return positions
