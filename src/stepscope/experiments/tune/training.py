"""The training that is tuned: its models and optimizers, what is seen of it, and its facts."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from stepscope.clock import monotonic_ns
from stepscope.errors import MissingDependency, UsageError
from stepscope.record import c_allocators, torch_private
from stepscope.record.fault_boundary import Boundary
from stepscope.record.gradient_threads import GradientThreads
from stepscope.record.steps import StepFinder
from stepscope.record.torch_hooks import TorchHooks

TIMED = ("cpu", "cuda")  # devices whose work is waited for at the end of a block
_HALF = {"avx512_fp16", "amx_fp16", "asimdhp"}  # instructions of x86 and of ARM that compute in fp16
_MOST_MODULES = 64
_RELEVANT = ("MALLOC_", "GLIBC_TUNABLES", "OMP_", "ONEDNN_", "ATEN_CPU_CAPABILITY", "LD_PRELOAD", "PYTORCH_")


@dataclass
class Targets:
    """Models and optimizers that changes act on. called: the modules that the training calls; parts: of a batch.

    evaluated: modules that it calls without gradients alone, such as a teacher.
    """

    models: tuple[nn.Module, ...]
    optimizers: tuple[Optimizer, ...]
    called: tuple[nn.Module, ...] = ()
    evaluated: tuple[nn.Module, ...] = ()
    parts: int = 1

    def tensors(self) -> Iterator[torch.Tensor]:
        """Yield parameters, buffers and the tensors of the optimizers' state; some of them more than once."""
        for model in self.models:
            yield from model.parameters()
            yield from model.buffers()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                yield from group["params"]
            for state in getattr(optimizer, "state", {}).values():
                values = state.values() if isinstance(state, dict) else (state,)
                yield from (value for value in values if isinstance(value, torch.Tensor))


@dataclass
class Observer:
    """A listener to the routes of a training: the modules that it calls with gradients, and how it goes about it."""

    called_modules: dict[int, nn.Module] = field(default_factory=dict)
    modules_without_gradients: dict[int, nn.Module] = field(default_factory=dict)
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
        elif (
            len(self.modules_without_gradients) < _MOST_MODULES  # of a loop that makes new ones in each step
            and not torch.is_grad_enabled()
            and not torch.is_inference_mode_enabled()
        ):
            self.modules_without_gradients.setdefault(id(module), module)

    @property
    def evaluated_modules(self) -> tuple[nn.Module, ...]:
        """The modules that were called without gradients, and never with them."""
        modules = self.modules_without_gradients.items()
        return tuple(module for key, module in modules if key not in self.called_modules)

    def compiled(self, module: nn.Module) -> None:
        self.compiled_model = True

    def before_optimizer(self, optimizer: Any) -> None:
        if isinstance(optimizer, Optimizer):
            self.optimizers.setdefault(id(optimizer), optimizer)

    def batch(self, iterator: Any, batch: Any) -> None:
        self.batch_ns = monotonic_ns()
        if self.loader is None:
            stream = isinstance(getattr(iterator, "_dataset", None), torch.utils.data.IterableDataset)
            names = {"workers": "_num_workers", "prefetch": "_prefetch_factor"}
            counts = {name: int(getattr(iterator, attribute, 0) or 0) for name, attribute in names.items()}
            self.loader = {**counts, "stream": stream}

    def returned(self, module: nn.Module, output: Any) -> None: ...
    def after_optimizer(self, optimizer: Any) -> None: ...
    def skipped_update(self) -> None: ...
    def after_backward(self) -> None: ...
    def many_calls(self) -> None: ...
    def makes_scope(self, module: nn.Module) -> None: ...
    def raised(self, module: nn.Module) -> None: ...
    def backward_raised(self) -> None: ...
    def optimizer_scope(self, optimizer: Any) -> None: ...

    def before_backward(self, roots: Any, inputs: Any, weights: Any = None) -> None:
        """Gradients that are zero and not absent before a pass were kept by `zero_grad`."""
        if self.zeroes_gradients or not self.optimizers:
            return
        first = next((p for o in self.optimizers.values() for g in o.param_groups for p in g["params"]), None)
        if first is not None and first.grad is not None:
            with torch_private.bypass_torch_modes():  # of a pass that torch.compile traces, for one
                self.zeroes_gradients = not bool(first.grad.any())


class StepListener(Observer):
    """An observer that also finds where steps end, as `stepscope run` finds it; `ended` hears of each end, ns.

    Blocks are made of what was taken for steps: nothing of that is put together afterwards.
    """

    def __init__(self, ended: Callable[[int, bool], None], failed: Callable[[BaseException], None]) -> None:
        super().__init__()
        self._trains, self._ended = False, ended
        self._finder = StepFinder(
            GradientThreads(), True, None, self._step_ended, lambda *_: False, lambda _: None, self._note_calls
        )
        self._routes = TorchHooks(Boundary(failed), self)
        self._routes.install()

    def _step_ended(self, t_ns: int, late: bool = False) -> None:
        self._finder.step_ended()
        self._ended(t_ns, late)

    def _note_calls(self, witness: Any) -> bool:
        self._routes.modules.note(witness)
        return True

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        super().called(module, args, kwargs)
        self._trains = self._trains or (torch.is_grad_enabled() and bool(self.called_modules))
        if self._trains:
            self._finder.called(module, args, dict(kwargs))

    def returned(self, module: nn.Module, output: Any) -> None:
        if self._trains:
            self._finder.returned(module, output)

    def raised(self, module: nn.Module) -> None:
        self._finder.raised(module)

    def backward_raised(self) -> None:
        self._finder.backward_raised()

    def before_optimizer(self, optimizer: Any) -> None:
        super().before_optimizer(optimizer)
        self._finder.before_update(optimizer)

    def after_optimizer(self, optimizer: Any) -> None:
        self._finder.after_update(optimizer)

    def skipped_update(self) -> None:
        self._finder.skipped_update()

    def before_backward(self, roots: Any, inputs: Any, weights: Any = None) -> None:
        super().before_backward(roots, inputs, weights)
        self._finder.before_backward(roots, inputs, weights)

    def after_backward(self) -> None:
        self._finder.after_backward()

    def batch(self, iterator: Any, batch: Any) -> None:
        super().batch(iterator, batch)
        self._finder.batch(iterator, batch)


@contextlib.contextmanager
def observe_training() -> Iterator[Observer]:
    """Yield what is observed of a training meanwhile."""
    observer = Observer()
    routes = TorchHooks(Boundary(lambda _: None), observer)
    routes.install()
    try:
        yield observer
    finally:
        routes.remove()


def facts_of(targets: Targets, observer: Observer, batch: int | None = None, divisible: bool = False) -> dict[str, Any]:
    """Return the facts that say which changes apply: of the training, and of this machine. All of it is plain data."""
    from stepscope.footprint.transforms import repeated_blocks

    weights = [
        module.weight
        for model in targets.models
        for module in model.modules()
        if isinstance(module, (nn.Conv2d, nn.ConvTranspose2d)) and isinstance(module.weight, torch.Tensor)
    ]
    telling = [w for w in weights if w.shape[1] > 1 and (w.shape[2] > 1 or w.shape[3] > 1)]
    parameters = [parameter for model in targets.models for parameter in model.parameters()]
    device = parameters[0].device if parameters else torch.device("cpu")
    refuse_untimed_device(device)
    return {
        **machine_facts(),
        "device": device.type,
        "gpu": torch.cuda.get_device_name(device) if device.type == "cuda" else "",
        "half_precision": device.type == "cuda" or _has_half_precision(),
        "threads": torch.get_num_threads(),
        "matmul_precision": _matmul_precision(),
        "flushes_denormals": bool((torch.tensor([1e-310], dtype=torch.float64) * 1.0).item() == 0.0),
        "conv2d": len(weights),
        "channels_last": bool(telling) and all(w.is_contiguous(memory_format=torch.channels_last) for w in telling),
        "calls": len(targets.called),
        "calls_without_gradients": len(targets.evaluated),
        "autocast": observer.autocast,
        "compiled": observer.compiled_model,
        "zeroes_gradients": observer.zeroes_gradients,
        "optimizers": [
            {"kind": type(optimizer).__name__}
            | {name: all(bool(group.get(name)) for group in optimizer.param_groups) for name in ("fused", "foreach")}
            for optimizer in targets.optimizers
        ],
        "loader": observer.loader,
        "blocks": sum(len(repeated_blocks(model)) for model in targets.called),
        "first_learning_blocks": first_learning_blocks(targets.called),
        "batch": batch or 0,
        "divisible": divisible,
        "parameters": sum(parameter.numel() for parameter in parameters),
        "float64": any(parameter.dtype == torch.float64 for parameter in parameters),
    }


def first_learning_blocks(models: Iterable[nn.Module]) -> dict[str, str]:
    """Return the block from which on a model learns where its first half is frozen, or most; the first model's."""
    from stepscope.footprint.transforms import repeated_blocks

    for blocks in map(repeated_blocks, models):
        names = {"half": len(blocks) // 2, "most": 3 * len(blocks) // 4}
        if len(blocks) > 1:
            return {name: blocks[index] for name, index in names.items() if len(blocks) > 3 or name == "half"}
    return {}


def refuse_untimed_device(device: torch.device) -> None:
    """Raise UsageError for a device whose work nobody waits for at the end of a block."""
    if device.type not in TIMED:
        raise UsageError(
            f"the training runs on {device.type}, whose steps tune cannot time", f"run it on {' or '.join(TIMED)}"
        )


def _matmul_precision() -> str:
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:  # the training has set one of a single backend
        return "of a backend"


def machine_facts() -> dict[str, Any]:
    """Return the facts of the machine and of this process alone."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    siblings = {_read_core_file(core, "topology/thread_siblings_list") or str(core) for core in cores}
    try:
        tcmalloc: str | None = str(c_allocators.tcmalloc_library())
    except MissingDependency:
        tcmalloc = None
    in_force = c_allocators.current_allocator_facts()
    return {
        "cores": _allowed_core_count(len(cores)),
        "physical_cores": max(1, min(len(siblings), _allowed_core_count(len(cores)))),
        "large_cores": _fastest_cores(cores),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "glibc": platform.libc_ver()[0] == "glibc",
        "tcmalloc": tcmalloc,
        "jemalloc": str(c_allocators.jemalloc_library() or "") or None,
        "interop_threads": torch.get_num_interop_threads(),
        "tcmalloc_in_use": in_force.get("name") == "tcmalloc",
        "compiler": shutil.which(os.environ.get("CXX", "g++")) or shutil.which("clang++"),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(_RELEVANT)},
    }


def _allowed_core_count(cores: int) -> int:
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii").split()
        return max(1, min(cores, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return cores


def _has_half_precision() -> bool:
    """Return whether this CPU computes in fp16."""
    try:
        listed = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return False
    return not _HALF.isdisjoint(listed)


def _fastest_cores(cores: list[int]) -> list[int]:
    capacity = {core: int(_read_core_file(core, "cpu_capacity") or 0) for core in cores}
    most = max(capacity.values(), default=0)
    return [] if len(set(capacity.values())) < 2 else [core for core, value in capacity.items() if value == most]


def _read_core_file(core: int, name: str) -> str:
    try:
        return Path(f"/sys/devices/system/cpu/cpu{core}/{name}").read_text(encoding="ascii").strip()
    except OSError:
        return ""
