"""Log every storage of a step from its birth to its end: bytes, op, module, phase and category.

One tracker with two uses. Over fake tensors it predicts a step that never runs; over real tensors it says who holds
what. A storage ends when its last tensor does (a weak reference to it), exactly where the allocator would free it.
What a storage was for is often known only later (a gradient once it is accumulated, a state once the optimizer has
stepped), so categories are fixed as they become known. Of kernels' workspaces no dispatcher sees anything: they come
from `hidden`, a rule a kernel.

ModuleTracker says which module an op belongs to, forward and backward, op by op as they are dispatched.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import polars as pl
import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    UnsupportedFakeTensorException,
)
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stepscope.record.dry.fake_numbers import data_dependent_result
from stepscope.record.dry.module_tracker import ModuleTracker, in_backward
from stepscope.runfolder import MEMORY

BUILDING, TRAINING, EVALUATION, SAVING = "building", "training", "evaluation", "saving"  # scenes of a program
_FREED = -1
_LARGEST = ("aten.max", "aten.amax")  # ops whose result, a whole number, a program takes for a size
_OF_MODULES = frozenset(vars(nn.Module()))  # parameters, buffers, layers, hooks
_ADD = torch.ops.aten.add.Tensor
# Gradients of index_select, gather, index and take are added into zeros; where somebody looks on, torch makes a copy.
_IN_PLACE = frozenset(
    getattr(getattr(torch.ops.aten, name), overload)
    for name, overload in (
        *((name, "default") for name in ("index_add", "scatter_add", "index_put", "put")), ("scatter", "src"),
    )
)  # fmt: skip
_LOOK = torch.ops.aten._local_scalar_dense.default  # .item(), float(), if
_JOINS = frozenset((torch.ops.aten.cat.default, torch.ops.aten.stack.default))
_SHAPED_LIKE = "x"
NEEDS_NUMBERS = (DataDependentOutputException, DynamicOutputShapeException, UnsupportedFakeTensorException)


class HiddenBytes(NamedTuple):
    """Allocations of a kernel that no dispatcher sees, B: beyond its outputs while it runs, and within its outputs.

    `low` and `high` bound what of the first becomes resident: a kernel may be chosen at run time, or not touch all it
    asks for. `output_sizes` is (number of the output, bytes, bytes of them that become resident). `requested` bounds
    what is allocated, where that is not what becomes resident. `call` names the op as it was probed, or would be.
    """

    expected: int = 0
    low: int = 0
    high: int = 0
    output_sizes: tuple[tuple[int, int, int], ...] = ()
    requested: tuple[int, int] | None = None
    output_uncertainty: tuple[float, int] = (0.0, 0)  # how far `output_sizes` may be off: as a share, and in B
    call: str = ""
    samples: int = 0  # of the call, where a probe says so much a sample


NOTHING = HiddenBytes()
NO_SAVED_HOOKS = "saved tensor hooks"  # of torch.func's refusal
Rule = Callable[[Any, tuple[Any, ...], dict[str, Any], Any], HiddenBytes]  # (op, args, kwargs, its output)


def exact_bytes(size: int) -> HiddenBytes:
    """Return a workspace of exactly so many bytes, all of them resident; none where that is not above zero."""
    return HiddenBytes(size, size, size) if size > 0 else NOTHING


def nothing_hidden(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> HiddenBytes:
    """Ignore what kernels allocate: for real tensors."""
    return NOTHING


@dataclass
class Storage:
    """One storage; `low` and `high` bound what of its bytes becomes resident, `least` and `most` the bytes."""

    bytes: int
    op: str
    module: str | None
    phase: str
    device: str
    shape: str | None
    category: str | None = None
    low: int = 0
    high: int = 0
    bounds: tuple[int, int] | None = None  # of `bytes`, where they are not known and not `low` and `high`
    call: str = ""  # of a workspace: how its op is known to probes, and with how many samples
    samples: int = 0
    largest: int = 0  # of several blocks that are one entry, B; 0: it is one block

    @property
    def least(self) -> int:
        """Of what is asked for, B."""
        return self.low if self.bounds is None else self.bounds[0]

    @property
    def most(self) -> int:
        """Of what is asked for, B."""
        return self.high if self.bounds is None else self.bounds[1]


class StorageLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Logs births and ends of storages while it is entered; `step` and `phase` are the caller's to set."""

    def __init__(
        self,
        hidden: Rule = nothing_hidden,
        value_of: Callable[[Tensor], Any] | None = None,
        sees_saved: bool = True,
    ) -> None:
        """`value_of`: what a program gets that looks at a number outside any module, where tensors have none.

        `sees_saved`: whether autograd tells what it saves, which torch.func refuses to run under.
        """
        super().__init__()  # type: ignore[no-untyped-call]
        self.value_reads = 0  # how often a number was asked for outside any module
        self.length_requests = 0  # of them, the largest of whole numbers: of data it is a length
        self.in_bf16 = False  # whether any tensor was
        self._value_of = value_of
        self.storages: list[Storage] = []
        self.events: list[tuple[int, int, int, int]] = []  # (step, op number, storage, +1 or -1)
        self.scenes = [(0, BUILDING)]  # from which event on the program does what
        self.evaluations = 0  # calls of a model without gradients
        self.reserve: Reserve | None = None  # of a GPU
        self.step = 0
        self.ops = 0
        self.phase: str | None = None  # None: forward, backward or optimizer, as it comes
        self.updated_by_hand: Callable[[], None] | None = None  # is called as a parameter is, after a backward pass
        self.note_impossible_op: Callable[[str], None] | None = None  # of an op that tensors without numbers cannot run
        self.note_whole_number: Callable[[], None] | None = None  # that a program asks for, and that is made up
        self.last_op = ""
        self.last_module: str | None = None
        self._hidden = hidden
        self._places = ModuleTracker()
        self._alive: dict[int, int] = {}  # in the order in which they were born
        self._alive_bytes = 0
        self._sizes_by_rule: set[int] = set()  # storages whose size a rule knows better than their fake tensor
        self._ends: dict[int, weakref.ref[Any]] = {}
        self._stands_for: dict[int, int] = {}  # storages of which more like them would be live: how many
        self._larger: dict[int, float] = {}  # storages that would be larger: by which share of what they are
        self._summed: tuple[int, int, int] | None = None  # (op number, storage, events so far) of a sum of gradients
        self._in_optimizer_step = self._learned = False
        self._over = False  # what ends after the run was there to its end
        self._hooks: list[Any] = []
        self._sees_saved = sees_saved
        self._saving: Any = None
        self._histories = weakref.WeakKeyDictionary[Optimizer, Any]()

    @property
    def recomputes(self) -> bool:
        """Return whether modules ran forward again within backward."""
        return self._places.called_in_backward

    def adopt_model(self, model: nn.Module) -> None:
        """Count a model that is there already; its modules have names from now on."""
        self._places.name_modules(model)
        for name, module in model.named_modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    self.adopt(parameter, "parameter", name)
                    if parameter.grad is not None:
                        self.adopt(parameter.grad, "gradient", name)
            for buffer in module._buffers.values():
                if buffer is not None:
                    self.adopt(buffer, "buffer", name)
            attributes = [value for attribute, value in vars(module).items() if attribute not in _OF_MODULES]
            for leaf in tree_leaves(attributes):  # tables and masks that are no buffers
                if isinstance(leaf, Tensor):
                    self.adopt(leaf, "other", name)

    def adopt_optimizer(self, optimizer: Optimizer) -> None:
        """Count the parameters and the state of an optimizer; what is known already gets its category."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self.adopt(parameter, "parameter")
                if parameter.grad is not None:
                    self.adopt(parameter.grad, "gradient")
        for parameter, state in optimizer.state.items():
            self.adopt_all(state, "optimizer", self.storages[self._register(parameter)].module)

    def adopt_all(self, nest: Any, category: str, module: str | None = None) -> None:
        """Count every tensor of a nest of containers and of objects that hold some."""
        passed: set[int] = set()
        waiting = tree_leaves(nest)
        while waiting:
            leaf = waiting.pop(0)
            if isinstance(leaf, Tensor):
                self.adopt(leaf, category, module)
            elif hasattr(leaf, "__dict__") and id(leaf) not in passed:
                passed.add(id(leaf))
                waiting += tree_leaves(list(vars(leaf).values()))

    def adopt(self, tensor: Tensor, category: str, module: str | None = None) -> None:
        """Count a tensor that is there already, or say what a known one is for."""
        if is_functorch_wrapped_tensor(tensor) or is_lazy(tensor):
            return
        if tensor.layout is not torch.strided:
            for part in parts_of(tensor):
                self.adopt(part, category, module)
            return
        storage = self.storages[self._register(tensor, category)]
        if storage.category in (None, "saved"):
            storage.category = category
        if module is not None and storage.module is None:
            storage.module = module

    def knows(self, tensor: Tensor) -> bool:
        """Return whether a tensor's storage is in the log."""
        return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._alive

    def alive_bytes(self, categories: frozenset[str] | None = None) -> int:
        """Return what is live now, or what of some categories is, B."""
        if categories is None:
            return self._alive_bytes
        alive = (self.storages[number] for number in self._alive.values())
        return sum(storage.bytes for storage in alive if storage.category in categories)

    def growth_since(self, event: int) -> int:
        """Return the most that was live since an event beyond what was live then, B."""
        changes = (sign * self.storages[number].bytes for _, _, number, sign in self.events[event:])
        return max(itertools.accumulate(changes, initial=0))

    def set_probed_sizes(self, size_of: Callable[[str, int], int | None]) -> None:
        """Give workspaces of ops that were probed since the size that a call with so many samples is known to take."""
        for storage in self.storages:
            size = size_of(storage.call, storage.samples) if storage.call else None
            if size is not None:
                storage.bytes = storage.low = storage.high = size

    def add_extra_bytes(self, size: int, op: str, holder: Any = None, largest: int = 0) -> None:
        """Count so many bytes at the most, from now on or until their holder ends, that no op of this run made.

        largest: of the blocks that they are, B.
        """
        number = len(self.storages)
        entry = Storage(size, op, None, self._phase(), "cpu", None, "temporary", 0, size, largest=min(largest, size))
        self.storages.append(entry)
        self.events.append((self.step, self.ops, number, +1))
        key = -1 - number  # of no tensor
        self._mark_alive(key, number)
        if holder is not None:
            end = functools.partial(self._note_end, key, number)
            self._ends[number] = weakref.ref(holder, end)

    def largest_of(self, first: int, end: int) -> Any:
        """Return the largest storage that was born from one number on up to another and is live; None: there is none.

        It is what `hold` takes for a holder.
        """
        alive = [number for number in self._alive.values() if first <= number < end and number in self._ends]
        largest = max(alive, key=lambda number: self.storages[number].bytes, default=None)
        return None if largest is None else self._ends[largest]()

    def represent_more(self, first: int, end: int, count: int) -> None:
        """Note that storages born from one number on up to another stand for so many more each, which were omitted.

        What joins them (`torch.cat(outputs)`) is larger by as much, and so is what is computed of it row by row.
        """
        alive = [number for number in self._alive.values() if first <= number < end and number in self._ends]
        self._stands_for.update(dict.fromkeys(alive, count))

    def extra_bytes(self, joined: Sequence[Any]) -> int:
        """Return how many bytes more tensors would have with those that they stand for."""
        more = 0
        for tensor in joined if self._stands_for else ():
            if isinstance(tensor, Tensor) and tensor.layout is torch.strided:
                number = self._alive.get(tensor.untyped_storage()._cdata, -1)
                more += tensor.nbytes * self._stands_for.get(number, 0)
        return more

    def _note_larger(self, func: Any, args: Any, out: Tensor) -> None:
        """Count what a result would be larger by, of storages that stand for more or would be larger themselves."""
        number = self._alive[out.untyped_storage()._cdata]
        if number in self._larger or number not in self._ends or not out.nbytes:
            return
        if func in _JOINS:
            more = self.extra_bytes(args[0]) / out.nbytes
        else:
            rows, columns = 0.0, 0.0
            for arg in args if out.dim() else ():
                if isinstance(arg, Tensor) and arg.layout is torch.strided and arg.dim():
                    share = self._larger.get(self._alive.get(arg.untyped_storage()._cdata, -1), 0.0)
                    if arg.shape[0] == out.shape[0]:
                        rows = max(rows, share)
                    elif arg.dim() > 1 < out.dim() and arg.shape[-1] == out.shape[-1]:
                        columns = max(columns, share)  # of a product with something transposed
            more = (1 + rows) * (1 + columns) - 1
        if more > 0:
            self._larger[number] = more
            self.add_extra_bytes(round(more * out.nbytes), f"{func} of rounds that were omitted", self._ends[number]())

    def sizes_since(self, first: int) -> Counter[int]:
        """Return how many of so many bytes are live, of the storages from one number on."""
        young = itertools.takewhile(lambda number: number >= first, reversed(self._alive.values()))
        return Counter(self.storages[number].bytes for number in young)

    def _mark_alive(self, key: int, number: int) -> None:
        self._alive[key] = number
        self._alive_bytes += self.storages[number].bytes

    @contextlib.contextmanager
    def scene(self, name: str) -> Iterator[None]:
        """The program does something else for a while."""
        before = self.scenes[-1][1]
        self._enter_scene(name)
        try:
            yield
        finally:
            self._enter_scene(before)

    def _enter_scene(self, name: str) -> None:
        if self.scenes[-1][1] != name:
            self.scenes.append((len(self.events), name))

    def frame(self) -> pl.DataFrame:
        """The log as allocations and frees, columns as `runfolder.MEMORY`; `t_ns` is the number of the op."""
        step, time, number, sign = (list(column) for column in zip(*self.events, strict=True)) if self.events else _NONE
        of = [self.storages[index] for index in number]
        columns = {
            "step": step,
            "t_ns": time,
            "tensor": number,
            "bytes": [storage.bytes * s for storage, s in zip(of, sign, strict=True)],
            "category": [storage.category or "temporary" for storage in of],
            **{
                name: [getattr(storage, name) for storage in of]
                for name in ("module", "op", "phase", "device", "shape")
            },
        }
        return pl.DataFrame(
            {name: pl.Series(columns[name], dtype=_writable_dtype(dtype)) for name, dtype in MEMORY.items()}
        )

    def __enter__(self) -> StorageLog:
        self._over = False
        self._places.open(self._note_outermost_call)
        self._hooks = [
            register_optimizer_step_pre_hook(self._before_optimizer_step),
            register_optimizer_step_post_hook(self._after_optimizer_step),
        ]
        self._saving = contextlib.ExitStack()
        if self._sees_saved:
            hooks = torch.autograd.graph.saved_tensors_hooks(self._note_saved_tensor, lambda tensor: tensor)
            self._saving.enter_context(hooks)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._over = True
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._saving.__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        self._places.close()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.ops += 1
        self.last_op = str(func)
        self.last_module = self._places.current()
        kwargs = kwargs or {}
        if func is _LOOK and self._value_of is not None and (self._in_optimizer_step or self._is_outside_modules()):
            return self._known_or_made_up_number(args[0], self._value_of)
        if (func in _IN_PLACE or (func is _ADD and not kwargs)) and self._places.may_be_gradient_sum():
            self._note_sum(args[0])
        out = self._run_op(func, args, kwargs)
        self._places.note_node()
        if isinstance(out, Tensor):
            for part in parts_of(out):
                self._register(part)
            if out.layout is torch.strided and (self._stands_for or self._larger):
                self._note_larger(func, args, out)
        elif isinstance(out, (tuple, list)):
            for leaf in tree_leaves(out):
                if isinstance(leaf, Tensor) and leaf.layout is torch.strided:
                    self._register(leaf)
        hidden = self._hidden(func, args, kwargs, out)
        if hidden is not NOTHING:
            self._log_hidden_bytes(hidden, out)
        if self.updated_by_hand is not None:
            self._detect_manual_update(func, args, self.updated_by_hand)
        return out

    def _detect_manual_update(self, func: Any, args: Any, then: Callable[[], None]) -> None:
        """Call a function where the first op after a backward pass writes to a parameter, and no optimizer does."""
        if in_backward():
            self._learned = True
        elif self._learned and not self._in_optimizer_step and args and func._schema.is_mutable:
            target = args[0][0] if isinstance(args[0], (list, tuple)) and args[0] else args[0]
            if isinstance(target, Tensor) and target.layout is torch.strided:
                number = self._alive.get(target.untyped_storage()._cdata)
                is_parameter = number is not None and self.storages[number].category == "parameter"
                if is_parameter or (target.requires_grad and target.is_leaf):
                    self._learned = False
                    then()

    def _run_op(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self._value_of is not None and args and isinstance(args[0], FakeTensor) and self._is_outside_modules():
            out = data_dependent_result(func, args)
            if out is not NotImplemented:
                self.value_reads += 1
                return out
        try:
            return func(*args, **kwargs)
        except NEEDS_NUMBERS:
            if self.note_impossible_op is not None and self._is_outside_modules():
                self.note_impossible_op(self.last_op)
            raise

    def _known_or_made_up_number(self, tensor: Tensor, value_of: Callable[[Tensor], Any]) -> Any:
        """A count of steps, a size in a tensor are known; a loss, or a norm (Adafactor's), is made up."""
        try:
            return _LOOK(tensor)
        except DataDependentOutputException:
            self.value_reads += not self._in_optimizer_step
            if self.note_whole_number is not None and not (tensor.dtype.is_floating_point or self._in_optimizer_step):
                self.note_whole_number()
            self.length_requests += not tensor.dtype.is_floating_point and self._op_that_made(tensor).startswith(
                _LARGEST
            )
            return value_of(tensor)

    def _op_that_made(self, tensor: Tensor) -> str:
        number = self._alive.get(tensor.untyped_storage()._cdata)
        return "" if number is None else self.storages[number].op

    def _log_hidden_bytes(self, hidden: HiddenBytes, out: Any) -> None:
        for place, size, resident in hidden.output_sizes:
            number = self._register(out if isinstance(out, Tensor) else out[place])
            storage = self.storages[number]
            self._alive_bytes += size - storage.bytes
            storage.bytes, storage.low, storage.high = size, resident, resident
            off = round(hidden.output_uncertainty[0] * size) + hidden.output_uncertainty[1]
            storage.bounds = size - off, size + off
            self._sizes_by_rule.add(number)
        if hidden.high > 0 or hidden.expected > 0:
            number = len(self.storages)
            self.storages.append(
                Storage(
                    hidden.expected, self.last_op, self.last_module, self._phase(), "cpu", None, "workspace",
                    hidden.low, hidden.high, hidden.requested, hidden.call, hidden.samples,
                )
            )  # fmt: skip
            self.events += [(self.step, self.ops, number, +1), (self.step, self.ops, number, _FREED)]

    def _register(self, tensor: Tensor, category: str | None = None) -> int:
        """The number of a tensor's storage, logged if it is new or has another size than before."""
        storage = tensor.untyped_storage()
        device = str(getattr(storage, "_fake_device", None) or tensor.device)  # the first: of torch.load
        key, size = storage._cdata, storage.nbytes() if device != "meta" else 0
        number = self._alive.get(key)
        if number is not None:
            before = self.storages[number]
            if before.bytes == size or size == 0 or number in self._sizes_by_rule:
                return number
            self._log_end(key, number)
        number = len(self.storages)
        self.in_bf16 |= tensor.dtype == torch.bfloat16
        shape = _SHAPED_LIKE.join(map(str, tensor.shape))
        op, module = (self.last_op, self.last_module) if category is None else (category, None)
        entry = Storage(size, op, module, self._phase(), device, shape, category, size, size)
        self.storages.append(entry)
        self._mark_alive(key, number)
        self._ends[number] = weakref.ref(storage, functools.partial(self._note_end, key, number))
        self.events.append((self.step, self.ops, number, +1))
        return number

    def _note_end(self, key: int, number: int, _reference: Any) -> None:
        self._log_end(key, number)

    def _log_end(self, key: int, number: int) -> None:
        if self._ends.pop(number, None) is None or self._over:
            return
        if self._alive.get(key) == number:
            del self._alive[key]
            self._alive_bytes -= self.storages[number].bytes
        storage = self.storages[number]
        if not self._sees_saved and storage.category is None and storage.phase == "forward" and in_backward():
            storage.category = "saved"
        end = (self.step, self.ops, number, _FREED)
        if self._summed is not None and self._summed[:2] == (self.ops, number):
            self.events.insert(self._summed[2], end)
        else:
            self.events.append(end)

    def _note_sum(self, gradient: Tensor) -> None:
        """Note a gradient that autograd adds another one into, unless somebody else holds it or looks on.

        So a first gradient that ends with this very op ends before the sum is born: they are one. A view holds its
        base, and is not added into: the gradient of a linear layer's weight, for example.
        """
        own = gradient.layout is torch.strided and not gradient._is_view()
        number = None if not own else self._alive.get(gradient.untyped_storage()._cdata)
        self._summed = None if number is None else (self.ops, number, len(self.events))

    def _is_outside_modules(self) -> bool:
        return self.last_module is None and not in_backward() and not self._in_optimizer_step

    def _phase(self) -> str:
        if self.phase is not None:
            return self.phase
        return "optimizer" if self._in_optimizer_step else "backward" if in_backward() else "forward"

    def _note_saved_tensor(self, tensor: Tensor) -> Tensor:
        number = self._alive.get(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else None
        if number is not None and self.storages[number].category is None:
            self.storages[number].category = "saved"
        return tensor if tensor.grad_fn is None else tensor.detach()  # an output that its own node holds is never freed

    def _note_outermost_call(self, module: nn.Module, args: Any) -> None:
        if not self._places.knows(module) and any(True for _ in module.parameters()):
            self.adopt_model(module)  # a model of a script, seen for the first time
        if not self._places.knows(module) or in_backward():
            return
        learns = torch.is_grad_enabled()
        self.evaluations += not learns
        self._enter_scene(TRAINING if learns else EVALUATION)
        for leaf in tree_leaves(args):
            own = isinstance(leaf, Tensor) and not is_functorch_wrapped_tensor(leaf) and leaf.layout is torch.strided
            number = self._alive.get(leaf.untyped_storage()._cdata) if own else None
            if number is not None and self.storages[number].module is None and self.storages[number].category is None:
                self.storages[number].category = "input"

    def _before_optimizer_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._in_optimizer_step = True
        self._enter_scene(TRAINING)
        self.adopt_optimizer(optimizer)

    def _after_optimizer_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._in_optimizer_step = False
        self.adopt_optimizer(optimizer)
        if isinstance(optimizer, torch.optim.LBFGS):
            self._hold_history(optimizer)

    def _hold_history(self, optimizer: Optimizer) -> None:
        """Count the differences that L-BFGS will keep, of parameters and gradients: without numbers it soon stops."""
        of_parameters = sum(parameter.nbytes for parameter in optimizer.param_groups[0]["params"])
        lengths = (len(state.get("old_dirs") or ()) for state in optimizer.state.values())
        missing = optimizer.param_groups[0]["history_size"] - max(lengths, default=0)
        self._histories.pop(optimizer, None)
        if missing > 0:
            self._histories[optimizer] = _HistoryHolder()
            self.add_extra_bytes(2 * missing * of_parameters, "history of LBFGS", self._histories[optimizer])


class _HistoryHolder:
    """What is held, until it ends."""


Reserve = Callable[[StorageLog], tuple[int, int]]  # what a GPU's allocator takes of the device, least and most, B
_NONE: tuple[list[int], ...] = ([], [], [], [])


def parts_of(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return a dense tensor itself, and those that a sparse one consists of; of other layouts nothing is known."""
    if tensor.layout is torch.strided:
        return (tensor,)
    return (tensor._indices(), tensor._values()) if tensor.layout is torch.sparse_coo else ()


def _writable_dtype(dtype: Any) -> Any:
    """Categories go through strings: a Python list becomes no categorical column by itself."""
    return pl.String if dtype == pl.Categorical else dtype


def peak_of(log: StorageLog, bound: str | Callable[[Storage], int] = "bytes") -> int:
    """The most bytes live at once, by `bytes`, by the bounds of what is resident (`low`, `high`) or by a function."""
    sizes = [bound(storage) if callable(bound) else getattr(storage, bound) for storage in log.storages]
    live = most = 0
    for _, _, number, sign in log.events:
        live += sign * sizes[number]
        most = max(most, live)
    return most
