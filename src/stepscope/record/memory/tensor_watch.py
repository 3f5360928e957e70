"""Watch the tensors of a profiled step from outside: what is there before it, and which address belongs to what."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, UntypedStorage, nn

from stepscope.clock import monotonic_ns
from stepscope.record import torch_private
from stepscope.record.c_allocators import reserved_reader
from stepscope.record.fault_boundary import clear_error_frames, is_ours
from stepscope.record.gradient_threads import GradientThreads
from stepscope.record.ops.events import NO_MODULE
from stepscope.record.ops.modules import ModuleRegistry, copied_items, parameters_of

_MOST_BLOCKS = 10_000_000  # of Python's allocator, up to which a look at all objects takes a fraction of a second


@dataclass
class Mark:
    """The storage that was at this address at this time; `module` is an index of the module registry."""

    t_ns: int
    pointer: int
    bytes: int
    device: str
    category: str
    module: int
    shape: tuple[int, ...]
    ended: defaultdict[Any, int] = field(default_factory=lambda: defaultdict(monotonic_ns))
    end: Any = None  # keeps the weak reference that finds it out

    @property
    def end_ns(self) -> int | None:
        """Return when a storage from before the window was freed."""
        return next(iter(self.ended.values()), None)


@dataclass
class WatchedStorages:
    """State of the watch in a window: storages from before it, and marks set while it went on."""

    before: list[Mark] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    reserved: int = 0  # the most that malloc held at the few times when it was asked, B


class MemoryWatch:
    """Follows a window's tensors between `open` and `close`; optimizers are known from any time before."""

    def __init__(self, registry: ModuleRegistry, trainers: GradientThreads) -> None:
        self.registry = registry
        self.trainers = trainers
        self._reserved = reserved_reader()
        self._optimizers: dict[int, weakref.ref[Any]] = {}
        self._held: list[tuple[weakref.ref[UntypedStorage], tuple[int, ...]]] | None = None
        self._watched: WatchedStorages | None = None
        self._owners: dict[int, int] = {}

    def run_guarded(self, action: Callable[[], None]) -> BaseException | None:
        """Run an action of the watch; where it fails on our account the watch ends, and the error is returned."""
        try:
            with torch_private.bypass_torch_modes():
                action()
        except BaseException as error:
            self.close()
            if not is_ours(error):
                raise
            clear_error_frames(error)
            return error
        return None

    def note_optimizer(self, optimizer: Any) -> None:
        """An optimizer steps, now or in any earlier step."""
        reference = self._optimizers.get(id(optimizer))
        if (reference is None or reference() is not optimizer) and isinstance(optimizer, torch.optim.Optimizer):
            self._optimizers[id(optimizer)] = weakref.ref(optimizer)

    def find_all_tensors(self) -> None:
        """Search all objects for tensors, which is dear: once a run, before the first window that is watched."""
        if self._held is None:
            self._held = []
            for tensor in _tensors_of_python():  # of the storage: a tensor with weak references cannot be swapped
                with contextlib.suppress(RuntimeError, NotImplementedError, TypeError):
                    self._held.append((weakref.ref(tensor.untyped_storage()), tuple(tensor.shape)))

    def open(self) -> None:
        """A window opens between two steps: note all live tensors."""
        self._owners = self.registry.parameter_modules()
        self._watched = WatchedStorages()
        marks: dict[tuple[str, int], Mark] = {}
        for mark, tensor in self._marked_model_and_optimizer_tensors():
            marks.setdefault((mark.device, mark.pointer), _watch_storage_end(mark, tensor.untyped_storage()))
        for storage, shape in self._live_python_tensors():
            new_mark = _mark_of_storage(storage, shape, "other", NO_MODULE)
            if new_mark is not None:
                marks.setdefault((new_mark.device, new_mark.pointer), _watch_storage_end(new_mark, storage))
        self._watched.before = list(marks.values())

    def before_optimizer(self) -> None:
        """An optimizer is about to step: now every gradient that it uses has its address."""
        if self._watched is not None:
            self._watched.marks += [mark for mark, _ in self._marked_gradients()]
            self._update_reserved_peak(self._watched)

    def after_step(self) -> None:
        """A step has ended: what is new of models and optimizers has its address."""
        if self._watched is not None:
            if len(self.registry.modules()) and not self._owners:
                self._owners = self.registry.parameter_modules()
            self._watched.marks += [mark for mark, _ in self._marked_model_and_optimizer_tensors()]
            self._update_reserved_peak(self._watched)

    def close(self) -> WatchedStorages:
        """The window has closed; what was watched, and nothing is held any longer."""
        watched, self._watched, self._owners = self._watched or WatchedStorages(), None, {}
        return watched

    def _update_reserved_peak(self, watched: WatchedStorages) -> None:
        if self._reserved is not None:
            watched.reserved = max(watched.reserved, self._reserved())

    def called(self, args: Any, kwargs: Any) -> None:
        """An outermost module is called with these: tensors without gradients are inputs."""
        if self._watched is None:
            return
        for tensor in tensors_in((args, kwargs)):
            if not tensor.requires_grad:
                mark = _mark_of_tensor(tensor, "input", NO_MODULE)
                if mark is not None:
                    self._watched.marks.append(_watch_storage_end(mark, tensor.untyped_storage()))

    def _marked_model_and_optimizer_tensors(self) -> Iterator[tuple[Mark, Tensor]]:
        for index, module in enumerate(self.registry.modules()):
            for category, name in (("parameter", "_parameters"), ("buffer", "_buffers")):
                for _, tensor in copied_items(vars(module).get(name)):
                    mark = None if tensor is None else _mark_of_tensor(tensor, category, index)
                    if mark is not None and tensor is not None:
                        yield mark, tensor
        yield from self._marked_gradients()
        for optimizer in self._live_optimizers():
            yield from self._optimizer_state(optimizer)

    def _marked_gradients(self) -> Iterator[tuple[Mark, Tensor]]:
        if self.trainers.others():
            return
        parameters: set[int] = set()
        for parameter in self._parameters():
            gradient = parameter.grad
            if gradient is not None and id(parameter) not in parameters:
                parameters.add(id(parameter))
                mark = _mark_of_tensor(gradient, "gradient", self._owners.get(id(parameter), NO_MODULE))
                if mark is not None:
                    yield mark, gradient

    def _parameters(self) -> Iterator[Tensor]:
        for module in self.registry.modules():
            yield from parameters_of(module)
        for optimizer in self._live_optimizers():
            yield from (parameter for group in vars(optimizer).get("param_groups", ()) for parameter in group["params"])

    def _optimizer_state(self, optimizer: Any) -> Iterator[tuple[Mark, Tensor]]:
        for parameter, state in copied_items(optimizer.state):
            module = self._owners.get(id(parameter), NO_MODULE)
            for tensor in tensors_in(state):
                mark = _mark_of_tensor(tensor, "optimizer", module)
                if mark is not None:
                    yield mark, tensor
        for group in vars(optimizer).get("param_groups", ()):  # parameters that no module has
            for parameter in group["params"]:
                mark = None if id(parameter) in self._owners else _mark_of_tensor(parameter, "parameter", NO_MODULE)
                if mark is not None:
                    yield mark, parameter

    def _live_optimizers(self) -> Iterator[Any]:
        for reference in list(self._optimizers.values()):
            optimizer = reference()
            if optimizer is not None:
                yield optimizer

    def _live_python_tensors(self) -> Iterator[tuple[UntypedStorage, tuple[int, ...]]]:
        """Live storages of the tensors that Python held at the last survey, with a shape each."""
        self.find_all_tensors()
        alive = [(storage, shape) for reference, shape in self._held or () if (storage := reference()) is not None]
        self._held = [(weakref.ref(storage), shape) for storage, shape in alive]
        yield from alive


def _tensors_of_python() -> list[Tensor]:
    """All tensors that Python holds: what refers to their types, which takes half of a look at all objects."""
    if sys.getallocatedblocks() > _MOST_BLOCKS:  # a data set of so many objects: a look at them all takes seconds
        return []
    kinds, sample = (Tensor, nn.Parameter), torch.empty(0)
    tensors = [referrer for referrer in gc.get_referrers(*kinds) if type(referrer) in kinds]
    if not any(candidate is sample for candidate in tensors):  # where a tensor's type is no reference
        tensors = [candidate for candidate in gc.get_objects() if type(candidate) in kinds]
    return tensors


def tensors_in(value: Any) -> Iterator[Tensor]:
    """Every tensor in dictionaries, lists and tuples, nested however deep, and within themselves."""
    waiting, passed = [value], set()
    while waiting:
        part = waiting.pop()
        if isinstance(part, Tensor):
            yield part
        elif isinstance(part, (dict, list, tuple)) and id(part) not in passed:
            passed.add(id(part))
            entries = [entry for _, entry in copied_items(part)] if isinstance(part, dict) else list(part)
            waiting += reversed(entries)


def _mark_of_tensor(tensor: Tensor, category: str, module: int) -> Mark | None:
    """None where the tensor has no storage of its own: sparse, on the meta device, a wrapper, or empty."""
    try:
        return _mark_of_storage(tensor.untyped_storage(), tuple(tensor.shape), category, module)
    except (RuntimeError, NotImplementedError, TypeError):
        return None


def _mark_of_storage(storage: UntypedStorage, shape: tuple[int, ...], category: str, module: int) -> Mark | None:
    try:
        pointer, size = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError, TypeError):
        return None
    if size == 0 or pointer == 0:
        return None
    return Mark(monotonic_ns(), pointer, size, str(storage.device), category, module, shape)


def _watch_storage_end(mark: Mark, storage: UntypedStorage) -> Mark:
    """The mark learns when its storage ends: of what is older than a profile the CPU allocator reports no frees."""

    # The default of a key that is looked up is the time. There is no function of Python's in it: a signal handler could
    # run within that, and what it raises would be lost.
    mark.end = weakref.ref(storage, mark.ended.__getitem__)
    hash(mark.end)  # known while the storage is there
    return mark
