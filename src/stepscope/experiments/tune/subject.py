"""The training that is tuned: its models and optimizers, its whole state to be put back, and the facts of it."""

from __future__ import annotations

import copy
import os
import platform
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stepscope.clock import monotonic_ns
from stepscope.errors import MissingDependency
from stepscope.record import allocators
from stepscope.record.boundary import Boundary
from stepscope.record.routes import Routes

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_RELEVANT = ("MALLOC_", "GLIBC_TUNABLES", "OMP_", "ONEDNN_", "ATEN_CPU_CAPABILITY", "LD_PRELOAD", "PYTORCH_")


@dataclass
class Targets:
    """Models and optimizers that changes act on. called: the modules that the training calls; parts: of a batch."""

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]
    called: tuple[nn.Module, ...] = ()
    parts: int = 1

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield parameters, buffers and the tensors of the optimizers' state; some of them more than once."""
        for model in self.models:
            yield from model.parameters()
            yield from model.buffers()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]
            for state in optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, torch.Tensor))


@dataclass
class _Tensor:
    """A tensor with the memory that it has now, and a copy of what is in it."""

    tensor: torch.Tensor
    memory: torch.Tensor
    content: torch.Tensor
    version: int = 0

    @classmethod
    def of(cls, tensor: torch.Tensor) -> _Tensor:
        memory = tensor.data
        return cls(tensor, memory, memory.clone(memory_format=torch.preserve_format))

    def put_back(self) -> None:
        self.memory.copy_(self.content)
        self.tensor.data = self.memory


class State:
    """The whole state of a training, bit by bit: weights, gradients, buffers, optimizers, generators of random numbers.

    others: what else the step changes: objects with `state_dict` and `load_state_dict` (schedulers, a gradient scaler),
    generators of torch, numpy or Python, dictionaries. Every tensor keeps its object and its memory.
    """

    def __init__(self, targets: Targets, others: tuple[Any, ...] = ()) -> None:
        self._tensors: dict[int, _Tensor] = {}
        self._gradients: list[tuple[torch.Tensor, torch.Tensor | None]] = []
        for model in targets.models:
            for tensor in (*model.parameters(), *model.buffers()):
                self._keep(tensor)
        for optimizer in targets.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    self._keep(parameter)
        modules = {id(module): module for model in targets.models for module in model.modules()}
        self._modules = [_Module(module, self) for module in modules.values()]
        self._optimizers = [_Optimizer(optimizer, self) for optimizer in targets.optimizers]
        self._others = [_Other(other) for other in others]
        self._random = _RandomNumbers()

    @property
    def size(self) -> int:
        """The memory of the copies, B."""
        return sum(kept.content.numel() * kept.content.element_size() for kept in self._tensors.values())

    def put_back(self) -> None:
        """Make everything as it was."""
        with torch.no_grad():
            for kept in self._tensors.values():
                kept.put_back()
            for tensor, gradient in self._gradients:
                tensor.grad = gradient
        parts: tuple[Any, ...] = (*self._modules, *self._optimizers, *self._others, self._random)
        for part in parts:
            part.put_back()

    def keep(self, value: Any) -> Any:
        """Return the value to put back: a tensor is kept as the object that it is, other data is copied."""
        if isinstance(value, torch.Tensor):
            self._keep(value)
            return value
        return copy.deepcopy(value)

    def _keep(self, tensor: torch.Tensor) -> None:
        if id(tensor) in self._tensors:
            return
        self._tensors[id(tensor)] = _Tensor.of(tensor.detach() if not tensor.is_leaf else tensor)
        if tensor.is_leaf and tensor.requires_grad:
            self._gradients.append((tensor, tensor.grad))
            if tensor.grad is not None:
                self._keep(tensor.grad)


class _Module:
    """Plain attributes of a module, its buffers and its mode."""

    def __init__(self, module: nn.Module, state: State) -> None:
        self._module = module
        self._plain = {name: value for name, value in vars(module).items() if isinstance(value, _PLAIN)}
        self._tensors = {
            name: state.keep(value) for name, value in vars(module).items() if isinstance(value, torch.Tensor)
        }
        self._buffers = dict(module._buffers)

    def put_back(self) -> None:
        vars(self._module).update({**self._plain, **self._tensors})
        self._module._buffers.clear()
        self._module._buffers.update(self._buffers)


class _Optimizer:
    """State and settings of an optimizer; what a step added is gone afterwards."""

    def __init__(self, optimizer: Optimizer, state: State) -> None:
        self._optimizer = optimizer
        self._state = [
            (key, values, {name: state.keep(value) for name, value in values.items()})
            for key, values in optimizer.state.items()
        ]
        self._groups = [
            (group, {name: state.keep(value) for name, value in group.items() if name != "params"})
            for group in optimizer.param_groups
        ]
        self._plain = {name: value for name, value in vars(optimizer).items() if isinstance(value, _PLAIN)}

    def put_back(self) -> None:
        self._optimizer.state.clear()
        for key, values, content in self._state:
            values.clear()
            values.update({name: self._value(value) for name, value in content.items()})
            self._optimizer.state[key] = values
        for group, values in self._groups:
            for name in [name for name in group if name != "params" and name not in values]:
                del group[name]
            group.update({name: self._value(value) for name, value in values.items()})
        present = vars(self._optimizer)
        for name in [name for name, value in present.items() if isinstance(value, _PLAIN) and name not in self._plain]:
            del present[name]
        present.update(self._plain)

    @staticmethod
    def _value(value: Any) -> Any:
        return value if isinstance(value, torch.Tensor) else copy.deepcopy(value)


class _Other:
    """Another object of the training that a step changes."""

    def __init__(self, other: Any) -> None:
        self._other = other
        if isinstance(other, dict):
            self._content: Any = copy.deepcopy(other)
        elif isinstance(other, torch.Generator):
            self._content = other.get_state()
        elif isinstance(other, random.Random):
            self._content = other.getstate()
        elif hasattr(other, "bit_generator"):
            self._content = copy.deepcopy(other.bit_generator.state)
        else:
            self._content = copy.deepcopy(other.state_dict())

    def put_back(self) -> None:
        other = self._other
        if isinstance(other, dict):
            other.clear()
            other.update(copy.deepcopy(self._content))
        elif isinstance(other, torch.Generator):
            other.set_state(self._content)
        elif isinstance(other, random.Random):
            other.setstate(self._content)
        elif hasattr(other, "bit_generator"):
            other.bit_generator.state = copy.deepcopy(self._content)
        else:
            other.load_state_dict(copy.deepcopy(self._content))


class _RandomNumbers:
    """The global generators of Python, numpy and torch, of every device that is in use."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        self._torch = torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None  # type: ignore[no-untyped-call]

    def put_back(self) -> None:
        random.setstate(self._python)
        if self._numpy is not None:
            sys.modules["numpy"].random.set_state(self._numpy)
        torch.set_rng_state(self._torch)
        if self._cuda is not None:
            torch.cuda.set_rng_state_all(self._cuda)


@dataclass
class Observer:
    """A listener to the routes of a training: the modules that it calls with gradients, and how it goes about it."""

    called_modules: dict[int, nn.Module] = field(default_factory=dict)
    optimizers: dict[int, Optimizer] = field(default_factory=dict)
    autocast: bool = False
    zeroes_gradients: bool = False
    batch_size: int | None = None
    compiled_model: bool = False
    loader: dict[str, Any] | None = None
    batch_ns: int | None = None  # when the last batch was there

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if torch.is_grad_enabled() and any(parameter.requires_grad for parameter in module.parameters()):
            self.called_modules.setdefault(id(module), module)
            self.autocast = self.autocast or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
            self.compiled_model = self.compiled_model or "_orig_mod" in vars(module).get("_modules", {})

    def compiled(self, module: nn.Module) -> None:
        self.compiled_model = True

    def before_optimizer(self, optimizer: Any) -> None:
        if isinstance(optimizer, Optimizer):
            self.optimizers.setdefault(id(optimizer), optimizer)

    def batch(self, iterator: Any, batch: Any) -> None:
        self.batch_ns = monotonic_ns()
        if self.loader is None:
            self.loader = {"workers": int(getattr(iterator, "_num_workers", 0))}

    def returned(self, module: nn.Module, output: Any) -> None: ...
    def after_optimizer(self, optimizer: Any) -> None: ...
    def skipped_update(self) -> None: ...
    def before_backward(self, roots: Any, inputs: Any) -> None:
        """Gradients that are zero and not absent before a pass were kept by `zero_grad`."""
        if self.zeroes_gradients or not self.optimizers:
            return
        first = next((p for o in self.optimizers.values() for g in o.param_groups for p in g["params"]), None)
        if first is not None and first.grad is not None:
            self.zeroes_gradients = not bool(first.grad.any())

    def after_backward(self) -> None: ...
    def many_calls(self) -> None: ...
    def makes_scope(self, module: nn.Module) -> None: ...
    def optimizer_scope(self, optimizer: Any) -> None: ...


def observed(action: Any) -> Observer:
    """Do it, and return what was seen of a training meanwhile; exceptions pass through."""
    observer = Observer()
    routes = Routes(Boundary(lambda _: None), observer)
    routes.install()
    try:
        action()
    finally:
        routes.remove()
    return observer


def facts_of(targets: Targets, seen: Observer, batch: int | None = None, divisible: bool = False) -> dict[str, Any]:
    """Return the facts that say which changes apply: of the training, and of this machine. All of it is plain data."""
    from stepscope.footprint.transforms import blocks

    weights = [
        module.weight
        for model in targets.models
        for module in model.modules()
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) and isinstance(module.weight, torch.Tensor)
    ]
    telling = [w for w in weights if w.shape[1] > 1 and (w.shape[2] > 1 or w.shape[3] > 1)]
    parameters = [parameter for model in targets.models for parameter in model.parameters()]
    return {
        **machine_facts(),
        "device": parameters[0].device.type if parameters else "cpu",
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "flushes_denormals": bool((torch.tensor([1e-310], dtype=torch.float64) * 1.0).item() == 0.0),
        "conv2d": len(weights),
        "channels_last": bool(telling) and all(w.is_contiguous(memory_format=torch.channels_last) for w in telling),
        "calls": len(targets.called),
        "autocast": seen.autocast,
        "compiled": seen.compiled_model,
        "zeroes_gradients": seen.zeroes_gradients,
        "optimizers": [_optimizer_facts(optimizer) for optimizer in targets.optimizers],
        "loader": seen.loader,
        "blocks": sum(len(blocks(model)) for model in targets.called),
        "batch": batch or 0,
        "divisible": divisible,
        "parameters": sum(parameter.numel() for parameter in parameters),
    }


def machine_facts() -> dict[str, Any]:
    """Return the facts of the machine and of this process alone."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    try:
        tcmalloc: str | None = str(allocators.tcmalloc_library())
    except MissingDependency:
        tcmalloc = None
    in_force = allocators.in_force()
    return {
        "cores": _allowed(len(cores)),
        "physical_cores": max(1, min(_physical(cores), _allowed(len(cores)))),
        "large_cores": _large(cores),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "glibc": platform.libc_ver()[0] == "glibc",
        "tcmalloc": tcmalloc,
        "tcmalloc_in_use": in_force.get("name") == "tcmalloc",
        "compiler": shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++"),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(_RELEVANT)},
    }


def _optimizer_facts(optimizer: Optimizer) -> dict[str, Any]:
    groups = optimizer.param_groups
    return {
        "kind": type(optimizer).__name__,
        "fused": all(bool(group.get("fused")) for group in groups),
        "foreach": all(bool(group.get("foreach")) for group in groups),
    }


def _allowed(cores: int) -> int:
    """Return how many cores the quota of the cgroup allows, at most those there are."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def _physical(cores: list[int]) -> int:
    """Return how many of these logical cores are cores of their own."""
    siblings = {_core_fact(core, "topology/thread_siblings_list") or str(core) for core in cores}
    return len(siblings)


def _large(cores: list[int]) -> list[int]:
    """Return the cores of the highest capacity where they differ, else none."""
    capacity = {core: int(_core_fact(core, "cpu_capacity") or 0) for core in cores}
    most = max(capacity.values(), default=0)
    return [] if len(set(capacity.values())) < 2 else [core for core, value in capacity.items() if value == most]


def _core_fact(core: int, name: str) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{core}/{name}").read_text(encoding="ascii").strip()
    except OSError:
        return ""
