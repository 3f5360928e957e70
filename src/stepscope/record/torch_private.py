"""Private names of torch apart from its profiler's (`kineto.py`), in one place, each with its fallback.

What is touched, since which torch it has had this form, and what happens without it:

| private name | since | without it |
| --- | --- | --- |
| torch.autograd.Variable._execution_engine.run_backward | 1.8 | a node of these costs as much as an operator's event |
| _TensorMetadata.allocation_id, torch._C._jit_get_schemas_for_operator (`event_tree.py`) | 2.1 | no dependencies |
| torch._C._profiler._RecordFunctionFast | 2.2 | torch.profiler.record_function |
| torch.utils._python_dispatch._disable_current_modes | 2.1 | a mode of the training's sees the end of our ranges |
| torch.autograd._get_sequence_nr | 2.1 | a step is found too large by the calls of its modules alone |
| Node._sequence_nr, register_prehook | 2.1 | of a step that is too large no backward pass is profiled |
| torch._C._current_graph_task_id | 2.1 | of a step that is too large no backward pass is profiled |
| torch._C._is_cow_tensor | 2.3 | no tensor is a lazy copy |
| torch._C._dynamo.eval_frame.set_code_exec_strategy | 2.7 | passes that `torch.compile` goes through are not seen |
| torch._dynamo.utils.compilation_time_metrics | 2.0 | how long torch.compile took is not told |
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import heapq
import struct
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch

Scope = contextlib.AbstractContextManager[Any]
_FORMS: dict[Any, str] = {torch.float32: "f", torch.float64: "d"}  # of numbers in RAM
_HOOKS = 16  # of the nodes where a window ends: without some of them, another one tells
NO_TASK = -1
_is_lazy_copy: Callable[[Any], bool] = getattr(torch._C, "_is_cow_tensor", lambda _: False)
graph_task: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: 0)
autograd_sequence: Callable[[], int] = getattr(torch.autograd, "_get_sequence_nr", lambda: 0)
"""Return how many autograd nodes this thread has made; 0 for ever where torch does not tell."""


def keep_from_dynamo(function: Any, with_callees: bool = False) -> None:
    """Let Dynamo run this function of ours as it is, as it does with torch's own in whose place it may be.

    Else it compiles ours wherever a compiled function comes to it behind a graph break, and we see nothing from then
    on. What traces through it still does. with_callees: nothing that it calls is the training's, nor to be compiled.
    """
    frames: Any = getattr(getattr(torch._C, "_dynamo", None), "eval_frame", None)
    code = getattr(function, "__code__", None)
    if code is None or not hasattr(frames, "set_code_exec_strategy"):
        return
    action = frames._FrameAction
    below = action.SKIP if with_callees else action.DEFAULT
    frames.set_code_exec_strategy(code, frames._FrameExecStrategy(action.SKIP, below))


def make_scope(name: str) -> Scope:
    """A reusable (not re-entrant) named range in the profile, which may outlive a window; 2 us."""
    return torch.profiler.record_function(name)


def make_call_scope(name: str) -> Scope:
    """A range for a call, at 0.1 us; whoever makes it leaves it in the window in which it was entered."""
    fast = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    return torch.profiler.record_function(name) if fast is None else fast(name)


def chain_of_nodes(length: int) -> Callable[[], None] | None:
    """A backward pass of ours through so many nodes that do nothing, to be run again and again; None without.

    It calls the engine as `backward` does, past whoever listens there.
    """
    engine: Any = getattr(torch.autograd.Variable, "_execution_engine", None)
    if engine is None or torch.is_anomaly_enabled() or torch.is_inference_mode_enabled():
        return None
    with torch.enable_grad():
        end = torch.empty(2, 2, device="cpu", dtype=torch.float32, requires_grad=True)
        start = end
        for _ in range(length):
            start = start.t()
    gradient = torch.zeros(2, 2, device="cpu", dtype=torch.float32)

    def run() -> None:
        engine.run_backward((start,), (gradient,), True, False, (end,), allow_unreachable=True, accumulate_grad=False)

    return run


def leaves_of(roots: Any, most: int = 8, most_nodes: int = 20_000) -> list[torch.Tensor]:
    """Some leaf tensors that gradients of these roots go to, found in the graph; as many as `most`."""
    leaves: list[torch.Tensor] = []
    waiting = [getattr(root, "grad_fn", None) for root in (roots if isinstance(roots, (tuple, list)) else (roots,))]
    visited: set[Any] = set()
    while waiting and len(leaves) < most and len(visited) < most_nodes:
        node = waiting.pop()
        if node is None or node in visited:
            continue
        visited.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            leaves.append(leaf)
        waiting += [following for following, _ in node.next_functions]
    return leaves


def make_meta_tensor(shape: torch.Size, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this shape and type that has no numbers, made unseen by the training."""
    with bypass_torch_modes():
        return torch.empty(shape, dtype=dtype, device="meta")


def in_backward() -> bool:
    """Return whether a backward pass is under way in this thread; always where torch does not tell."""
    return bool(graph_task() != NO_TASK)


def profiler_is_locked() -> bool:
    """Return whether no profile may begin or end now: within a backward pass, or while CUDA captures a graph."""
    return in_backward() or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())  # type: ignore[no-untyped-call]


def remove_optimizer_hook(handle: Any) -> None:
    """Remove a hook of all optimizers; while one steps, torch walks through them, and ours does nothing any more."""
    hooks = getattr(handle, "hooks_dict_ref", lambda: None)()
    if hooks is None or not _is_optimizer_stepping():
        handle.remove()
    elif handle.id in hooks:
        hooks[handle.id] = lambda *_: None


def _is_optimizer_stepping() -> bool:
    """Return whether any thread is within the step of an optimizer."""
    own = torch.optim.Optimizer.profile_hook_step.__code__.co_filename
    frame: FrameType | None = None
    try:
        for frame in list(sys._current_frames().values()):
            while frame is not None:
                if frame.f_code.co_filename == own:
                    return True
                frame = frame.f_back
        return False
    finally:
        del frame  # one of them is this one: what the training's functions hold would live until it is collected


def act_within_backward(roots: Any, nodes: int, action: Callable[[], None]) -> Callable[[], None] | None:
    """Call `action` once the coming backward pass from these roots has run about so many nodes; returns the undo.

    Nodes run in the order of their numbers, the youngest first. Hooks stand on a few of them, and only during the pass;
    none where it is shorter. None where that cannot be: the pass is compiled, or other threads run beside it.
    """
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if threading.active_count() > 1:  # a profile of all threads would see them, and could not be stopped safely
        return None
    if getattr(compiled, "compiled_autograd_enabled", False):
        return None
    order: deque[Any] = deque(maxlen=2 * _HOOKS)
    try:
        starts = [_node_of(root) for root in (roots if isinstance(roots, (tuple, list)) else (roots,))]
        waiting = [(-node._sequence_nr(), index, node) for index, node in enumerate(starts) if node is not None]
        heapq.heapify(waiting)
        count: set[Any] = {node for _, _, node in waiting}
        run = 0
        while waiting and run < nodes:
            _, _, node = heapq.heappop(waiting)
            run += 1
            if not hasattr(node, "_forward_cls") and not hasattr(node, "variable"):  # a Function of the training's
                order.append(node)
            for following, _ in node.next_functions:
                if following is not None and following not in count:
                    count.add(following)
                    heapq.heappush(waiting, (-following._sequence_nr(), len(count) + len(starts), following))
        if run < nodes:
            return lambda: None
        handles = [node.register_prehook(lambda _: action()) for node in list(order)[-_HOOKS:]]
    except (AttributeError, TypeError):
        return None

    def undo() -> None:
        for handle in handles:
            handle.remove()

    return undo if handles else None


def begins_on_cpu(roots: Any) -> bool:
    """Return whether a backward pass from these roots begins on the CPU, and so in the thread that asks for it."""
    roots = roots if isinstance(roots, (tuple, list)) else (roots,)
    return all(getattr(getattr(root, "device", None), "type", "cpu") == "cpu" for root in roots)


def _node_of(root: Any) -> Any:
    node = getattr(root, "grad_fn", None)
    return node if node is not None else getattr(root, "node", None)  # of a GradientEdge


def first_bytes(tensor: torch.Tensor, most: int = 64) -> bytes | None:
    """The first values of a plain tensor in RAM, read without an operator; None of any other."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.device.type != "cpu":
        return None
    try:
        if tensor.layout is not torch.strided or not tensor.is_contiguous() or _is_lazy_copy(tensor):
            return None
        storage = tensor.untyped_storage()  # held meanwhile: another thread may give the tensor another one
        offset = tensor.storage_offset() * tensor.element_size()
        there, begin = storage.nbytes() - offset, storage.data_ptr()
    except (NotImplementedError, RuntimeError):  # a wrapper of torch.func has no storage
        try:
            return first_bytes(torch._C._functorch.get_unwrapped(tensor), most)
        except (AttributeError, RuntimeError):  # it is none
            return None
    count = min(most, there, tensor.numel() * tensor.element_size())  # a storage may have been given back
    return ctypes.string_at(int(begin + offset), int(count)) if count > 0 and begin else None


def loss_in_ram(value: Any) -> float | None:
    """Return the one number of a plain loss, read without an op; None of any other."""
    form = _FORMS.get(getattr(value, "dtype", None))
    plain = first_bytes(value, struct.calcsize(form)) if form is not None and value.numel() == 1 else None
    return None if form is None or plain is None else float(struct.unpack(form, plain)[0])


def loss_value(value: Any) -> float | None:
    """Return the one number of a loss, without an op where that can be: a profiler of the training's would show it."""
    if value is None or (plain := loss_in_ram(value)) is not None:
        return None if value is None else plain
    try:
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return None


def loss_value_or_reader(value: Any) -> float | Callable[[], float | None] | None:
    """Return the number of a loss; of one on an accelerator, which a look would wait for, what reads a copy of it."""
    if type(value) is not torch.Tensor or value.device.type == "cpu" or value.numel() != 1:
        return loss_value(value)  # of a tensor that is spread over ranks at once, too, as they all do it in step
    try:
        with bypass_torch_modes():
            return functools.partial(loss_value, value.detach().clone())
    except RuntimeError:  # no memory, or an earlier error of the device, which the training hears of itself
        return None


@contextlib.contextmanager
def bypass_torch_modes() -> Iterator[None]:
    """Run something apart from a mode of the training's that looks at every operator."""
    with torch._C.DisableTorchFunction(), _without_dispatch_modes():
        yield


@contextlib.contextmanager
def gradients_enabled() -> Iterator[None]:
    """Run something with gradients, although the training may have none just now; no mode of its sees it."""
    if torch.is_grad_enabled():
        yield
        return
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(True)
    try:
        yield
    finally:
        with torch._C.DisableTorchFunction():
            torch._C._set_grad_enabled(False)


def _without_dispatch_modes() -> Scope:
    stack = getattr(torch._C, "_len_torch_dispatch_stack", lambda: 0)
    if not stack():
        return contextlib.nullcontext()
    from torch.utils import _python_dispatch

    without: Callable[[], Scope] = getattr(_python_dispatch, "_disable_current_modes", contextlib.nullcontext)
    return without()


def compile_seconds() -> float | None:
    """Time that torch.compile has taken in this process, s: of forward with what it prepares, and of backward."""
    spent = getattr(sys.modules.get("torch._dynamo.utils"), "compilation_time_metrics", None)
    if not isinstance(spent, dict):
        return None
    whole = next((spent[key] for key in ("entire_frame_compile", "_compile.compile_inner") if spent.get(key)), None)
    if whole is None:
        return None
    return float(sum(whole) + sum(sum(times) for key, times in spent.items() if str(key).endswith("bw_compiler")))
