"""Routes of the training's calls past us: at class level and torch's global hooks, never on the user's objects.

Nothing is put on a module, an optimizer, a tensor or a data loader, so that whatever copies, pickles, scripts, traces
or exports them finds them as they are. Every route is taken back by `remove`, and is a plain pass-through where
somebody else has wrapped it meanwhile.

| what is routed | where | since torch |
| --- | --- | --- |
| calls of modules | `nn.Module.__call__`, in its place, so that calls nest no deeper | 2.1 |
| tracebacks | `traceback.walk_tb`, which leaves our frames out of what a training prints | Python 3.10 |
| steps of torch optimizers | `register_optimizer_step_pre_hook` and `..._post_hook` | 2.0 |
| backward passes | `torch.autograd._engine_run_backward`, which `backward` and `grad` call | 2.1 |
| those of distributed autograd | `torch.distributed.autograd.backward`, `DistributedOptimizer.step` | 2.1 |
| batches of data loaders | `_BaseDataLoaderIter.__next__` | 1.2 |
| skipped updates | `GradScaler.step` | 2.3 |
| models that are compiled in place | `nn.Module.compile` | 2.1 |
| tensors that are swapped | the code of `torch.utils.swap_tensors`, and `torch._C._swap_tensor_impl` | 2.1 |
| optimizers of Keras | `keras.optimizers.Optimizer.apply`, once Keras is imported | Keras 3 |
"""

from __future__ import annotations

import functools
import sys
import traceback
import weakref
from collections.abc import Callable
from contextlib import nullcontext
from threading import get_ident
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from stepscope.clock import monotonic_ns
from stepscope.record import torch_private
from stepscope.record.fault_boundary import Boundary, code_that_calls, optimizers_stepping_below, without_our_frames
from stepscope.record.listeners import (
    BACKWARD,
    ENDED,
    MOST_NOTED,
    UPDATE,
    UPDATED,
    CallListener,
    Listener,
    NoneRepeats,
    Repeating,
)
from stepscope.record.torch_private import Scope, remove_optimizer_hook

if TYPE_CHECKING:
    from stepscope.record.layer_times import LayerTimes

_is_compiling: Callable[[], bool] = getattr(torch.compiler, "is_dynamo_compiling", torch.compiler.is_compiling)
_compiled_now: Callable[[], Any] = getattr(getattr(torch._guards, "CompileContext", None), "try_get", lambda: None)
_tracing: Callable[[], Any] = getattr(torch._C, "_get_tracing_state", lambda: None)
_LOOK_EVERY = 500  # calls of modules in a window


class TorchHooks:
    """The routes of one session, from `install` to `remove`; `profiled` says whether each module call gets a scope."""

    def __init__(self, boundary: Boundary, listener: Listener, repeating: Repeating | None = None) -> None:
        self._boundary, self._listener = boundary, listener
        self._undo: list[Callable[[], None]] = []
        self._keras = self._distributed = False
        self.loading: set[int] = set()  # threads in which a data loader makes a batch: what it calls are transforms
        self.loading_ns = 0  # that data loaders took so far, in steps and between them
        self._installed = False
        self._repeating: Repeating = repeating or NoneRepeats()
        self._updates = 0
        self._updating: dict[int, list[int]] = {}  # by thread: addresses of optimizers in an update, the innermost last
        self.modules = _ModuleRoute(boundary, listener, self)
        self._before_update, self._after_update = self._make_optimizer_hooks()

    def install(self) -> None:
        """Listen from now on."""
        self._installed, undo = True, self._undo.append  # at once: what comes after it may fail
        of_ours = (Boundary.call, Boundary.ask, Boundary.call_all, Boundary.handle_error, self._before_update)
        repeating = type(self._repeating)
        for function in (*of_ours, self._after_update, repeating.is_next, repeating.called, repeating.batch):
            torch_private.keep_from_dynamo(function, with_callees=True)
        undo(self.modules.remove)
        self.modules.install()
        undo(functools.partial(remove_optimizer_hook, register_optimizer_step_pre_hook(self._before_update)))
        undo(functools.partial(remove_optimizer_hook, register_optimizer_step_post_hook(self._after_update)))
        undo(self._wrap_method(torch.autograd, "_engine_run_backward", self._wrap_backward))
        undo(self._wrap_method(nn.Module, "compile", self._wrap_module_compile))
        # Its code is replaced: also of who has imported it by its name.
        undo(self._route_code(torch.utils, "swap_tensors", self._wrap_swap_tensors))
        undo(self._wrap_method(torch._C, "_swap_tensor_impl", self._wrap_swap_tensors))
        distributed = sys.modules.get("torch.distributed.autograd")  # torch has imported it, if this build has it
        if distributed is not None:
            self._undo.append(self._wrap_method(distributed, "backward", self._distributed_backward))
        iterators = getattr(torch.utils.data.dataloader, "_BaseDataLoaderIter", None)
        if iterators is not None:
            self._undo.append(self._wrap_method(iterators, "__next__", self._wrap_loader_next))
        scaler = getattr(torch.amp, "GradScaler", None)
        if scaler is not None:
            self._undo.append(self._wrap_method(scaler, "step", self._scaler_step))
        for name in ("walk_tb", "_walk_tb_with_full_positions"):
            self._undo.append(self._wrap_method(traceback, name, without_our_frames))

    def remove(self) -> None:
        """Take every route back; calls that are under way end as plain ones."""
        self._installed = False
        if _compiled_now() is None:  # else they stay, and do nothing: what Dynamo traces twice must be the same
            undo, self._undo = self._undo, []
            self._boundary.call_all(undo)

    def _wrap_method(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
        plain = vars(owner).get(name)
        if not callable(plain):
            return lambda: None
        routed = functools.wraps(plain)(around(plain))
        torch_private.keep_from_dynamo(routed)
        setattr(owner, name, routed)

        def undo() -> None:
            if vars(owner).get(name) is routed:  # else somebody has wrapped it: it passes through
                setattr(owner, name, plain)

        return undo

    def _route_code(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Any:
        """Route a function of two tensors by its code, where it can be."""
        function = vars(owner).get(name)
        code = getattr(function, "__code__", None)
        if not isinstance(function, FunctionType) or code is None or code.co_freevars or code.co_argcount != 2:
            return self._wrap_method(owner, name, around)
        plain = FunctionType(code, function.__globals__, name, function.__defaults__)
        routed = function.__code__ = code_that_calls(around(plain), code)

        def undo() -> None:
            if function.__code__ is routed:
                function.__code__ = code

        return undo

    # What follows runs in every step, on cold caches: each event takes as few frames as can be.

    def _make_optimizer_hooks(self) -> Any:
        """Return both hooks: torch calls them twice where an optimizer's `step` calls that of its base class."""
        boundary, listener, is_next = self._boundary, self._listener, self._repeating.is_next
        modules = self.modules
        begins = getattr(listener, "before_optimizer", _undo_nothing)
        ends = getattr(listener, "after_optimizer", _undo_nothing)

        def before(optimizer: Any, *_: Any) -> None:
            if _is_compiling():
                return
            try:
                updating = self._updating.setdefault(get_ident(), [])
                if updating:  # or an exception has ended it
                    within = optimizers_stepping_below(sys._getframe(1))
                    updating[:] = [key for key in updating if key in within]
                updating.append(id(optimizer))
                outermost = updating.count(id(optimizer)) == 1
                if outermost and not (boundary.open and is_next(UPDATE, optimizer)):
                    boundary.call(begins, optimizer)
                times = modules.timed
                if outermost and times is not None:
                    times.updating(type(optimizer).__name__)
            except BaseException as error:
                boundary.handle_error(error)

        def after(optimizer: Any, *_: Any) -> None:
            if _is_compiling():
                return
            try:
                updating = self._updating.get(get_ident(), [])
                if id(optimizer) in updating:
                    updating.remove(id(optimizer))
                if id(optimizer) not in updating:
                    if (times := modules.timed) is not None:
                        times.updating(None)
                    self._updates += 1
                    if not (boundary.open and is_next(UPDATED, optimizer)):
                        boundary.call(ends, optimizer)
            except BaseException as error:
                boundary.handle_error(error)

        return before, after

    def _wrap_backward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        boundary, listener, repeating = self._boundary, self._listener, self._repeating
        is_next, graph_task, none = repeating.is_next, torch_private.graph_task, torch_private.NO_TASK
        raised, modules = getattr(listener, "backward_raised", _undo_nothing), self.modules
        look_at_loss = getattr(listener, "look_at_loss", _undo_nothing)

        def run(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._installed or _is_compiling() or graph_task() != none:  # or a checkpoint's pass
                return plain(t_outputs, *args, **kwargs)
            inputs: Any = args[3] if len(args) > 3 else None
            try:
                of_others = bool(inputs) and not any(isinstance(tensor, nn.Parameter) for tensor in inputs)
                expected = boundary.open and is_next(BACKWARD, repeating, of_others)
            except BaseException as error:
                expected = False
                boundary.handle_error(error)
            if not expected:
                boundary.call(listener.before_backward, t_outputs, inputs, args[0] if args else None)
                if not self._keras and "keras" in sys.modules:
                    boundary.call(self._route_keras)
            elif repeating.wants_loss:
                boundary.call(look_at_loss, t_outputs)
            try:
                result = plain(t_outputs, *args, **kwargs)
            except BaseException:
                boundary.call(raised)
                raise
            if (times := modules.timed) is not None:
                boundary.call(times.passed)
            if not repeating.steps_to_skip:
                boundary.call(listener.after_backward)
            return result

        return run

    def _distributed_backward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        boundary, listener, repeating = self._boundary, self._listener, self._repeating
        raised = getattr(listener, "backward_raised", _undo_nothing)

        def run(*args: Any, **kwargs: Any) -> Any:
            if not self._installed or _is_compiling():
                return plain(*args, **kwargs)
            if not self._distributed:
                boundary.call(self._route_distributed)
            if not boundary.ask(repeating.is_next, BACKWARD, repeating, False):
                boundary.call(listener.before_backward, args[1] if len(args) > 1 else kwargs.get("roots"), None)
            try:
                result = plain(*args, **kwargs)
            except BaseException:
                boundary.call(raised)
                raise
            if not repeating.steps_to_skip:
                boundary.call(listener.after_backward)
            return result

        return run

    def _route_distributed(self) -> None:
        optimizers = getattr(sys.modules.get("torch.distributed.optim"), "DistributedOptimizer", None)
        if optimizers is not None:  # who has one has imported it by now
            self._distributed = True
            self._undo.append(self._wrap_method(optimizers, "step", self._announced_update))

    def _wrap_loader_next(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        boundary, listener, repeating = self._boundary, self._listener, self._repeating

        def take(iterator: Any) -> Any:
            if not self._installed or _is_compiling():
                return plain(iterator)
            here, began_ns = get_ident(), monotonic_ns()
            outermost = here not in self.loading  # else the data set has a loader of its own
            try:
                self.loading.add(here)
                batch = plain(iterator)
            finally:
                if outermost:
                    self.loading.discard(here)
                ended_ns, times = monotonic_ns(), self.modules.timed
                self.loading_ns += ended_ns - began_ns if outermost else 0
                if times is not None:
                    boundary.call(times.loaded, iterator, began_ns, ended_ns)
            try:
                expected = boundary.open and repeating.batch(iterator, batch)
            except BaseException as error:
                expected = False
                boundary.handle_error(error)
            if not expected:
                boundary.call(listener.batch, iterator, batch)
            return batch

        return take

    def _wrap_module_compile(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def compile_in_place(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            result = plain(module, *args, **kwargs)
            if self._installed:
                self._boundary.call(self._listener.compiled, module)
            return result

        return compile_in_place

    def _wrap_swap_tensors(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        heard = getattr(self._listener, "swaps", _undo_nothing)  # who keeps no tensors need not know

        def swap(*tensors: Any, **named: Any) -> Any:
            if self._installed and not _is_compiling():
                self._boundary.call(heard)
            return plain(*tensors, **named)

        return swap

    def _scaler_step(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def step(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if _is_compiling():
                return plain(scaler, optimizer, *args, **kwargs)
            before = self._updates
            result = plain(scaler, optimizer, *args, **kwargs)
            if self._installed and self._updates == before and scaler.is_enabled():
                self._boundary.call(self._listener.skipped_update)
            return result

        return step

    def _route_keras(self) -> None:
        optimizers = getattr(sys.modules.get("keras"), "optimizers", None)
        kind = getattr(optimizers, "Optimizer", None)
        owner = next((base for base in getattr(kind, "__mro__", ()) if "apply" in vars(base)), None)
        if owner is None:  # it is being imported just now
            return
        self._keras = True
        self._undo.append(self._wrap_method(owner, "apply", self._announced_update))

    def _announced_update(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def apply(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._installed or _is_compiling():
                return plain(optimizer, *args, **kwargs)
            self._before_update(optimizer)
            with self._boundary.call(self._listener.optimizer_scope, optimizer) or nullcontext():
                result = plain(optimizer, *args, **kwargs)
            self._after_update(optimizer)
            return result

        return apply


def _undo_nothing(*_: Any) -> None:
    return None


class _ModuleRoute:
    """Module calls: the outermost ones are reported, and each gets a scope while a window records.

    It runs for every module of every step, so that a frame less is a percent of an overhead-bound one.
    """

    def __init__(self, boundary: Boundary, listener: Listener, routes: TorchHooks) -> None:
        self._boundary, self._listener, self._routes = boundary, listener, routes
        self._repeating = routes._repeating
        self._is_part: Callable[..., Any] = getattr(listener, "is_part", _undo_nothing)
        self._profiled = False
        self._inside: set[int] = set()  # threads in which a module's call is under way: what it calls is no outermost
        # One of them trains, and nothing is to be done for what it calls (nor is what others call meanwhile reported):
        # one look tells, in a step that is not profiled.
        self._plainly = self._plain_within = False
        self.noted_by: CallListener | None = None
        self._times: LayerTimes | None = None
        self.timed: LayerTimes | None = None  # the same, while calls get no scope
        self._watched = False  # profiled, timed or noted
        self._window = 0
        # By the module's id, with the module itself. An open scope cannot be entered again: it is taken out meanwhile.
        self._free: dict[int, tuple[weakref.ref[Any], Scope]] = {}
        self._open: list[Scope] = []
        self._call: Callable[..., Any] = nn.Module.__call__
        self._undo: list[Callable[[], None]] = []
        self._plain: Callable[..., Any] | None = None  # what somebody put in place of torch's own, before us
        self._installed = False
        self.calls = 0

    def install(self) -> None:
        plain = vars(nn.Module)["__call__"]
        self._plain = plain if plain is not getattr(nn.Module, "_wrapped_call_impl", None) else None
        self._installed = True
        self._refresh_call_flags()
        self._call = call = functools.wraps(plain)(self._routed_call(plain))
        torch_private.keep_from_dynamo(call)
        torch_private.keep_from_dynamo(_ModuleRoute._outermost_call)
        nn.Module.__call__ = call  # type: ignore[method-assign]
        _tell_dynamo(plain, call)

        def undo() -> None:
            self._installed = False
            self._refresh_call_flags()
            if vars(nn.Module)["__call__"] is call:  # else somebody has wrapped it: it passes through
                nn.Module.__call__ = plain  # type: ignore[method-assign]
                _tell_dynamo(call, plain)

        self._undo = [undo]

    def remove(self) -> None:
        undo, self._undo = self._undo, []
        nobody: list[Callable[[], None]] = [
            functools.partial(self.profile, False),
            functools.partial(self.note, None),
            functools.partial(self.time, None),
        ]
        self._boundary.call_all([*nobody, *undo])

    def profile(self, profiled: bool) -> None:
        """Open a scope around every call from now on, or around none; open ones end.

        They are made anew for each window: none may outlive the window in which it was entered.
        """
        self._profiled = profiled
        self._refresh_call_flags()
        self._window += 1
        opened, self._open, self._free = self._open, [], {}
        for scope in reversed(opened):
            try:
                scope.__exit__(None, None, None)
            except RuntimeError:  # entered in a thread that is not recorded: nothing began
                continue

    def note(self, noted: CallListener | None) -> None:
        """Report each call to `noted` from now on (None: to nobody), and the ends of those that were reported to it."""
        self.noted_by = noted
        self._refresh_call_flags()

    def time(self, times: LayerTimes | None) -> None:
        """Note the time of each call of a thread in `times` from now on, or of none."""
        self._times = times
        self._refresh_call_flags()

    def _refresh_call_flags(self) -> None:
        self.timed = None if self._profiled else self._times
        self._watched = self._profiled or self.noted_by is not None or self.timed is not None
        self._plain_within = self._installed and not self._watched and self._plain is None
        self._plainly = self._plain_within and get_ident() in self._inside

    def _routed_call(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        """Replacement of `Module.__call__`; as torch's own it calls `_call_impl`, with nothing in between."""
        compiling, route, alone = _is_compiling, self, self._plain is None
        clock, sequence, thread = monotonic_ns, torch_private.autograd_sequence, get_ident

        # torch's profiler with stacks looks for the local variable `self` of this code, and crashes without it.
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling():
                return plain(self, *args, **kwargs)
            if route._plainly and self._compiled_call_impl is None:
                return self._call_impl(*args, **kwargs)
            if not route._installed or self._compiled_call_impl is not None:
                return plain(self, *args, **kwargs)
            if thread() not in route._inside:
                return route._outermost_call(self, args, kwargs)
            run = self._call_impl if alone else functools.partial(plain, self)
            if not route._watched:
                return run(*args, **kwargs)
            window, key, noted = route._window, id(self), route.noted_by
            if noted is not None:
                route._boundary.call(noted.enter, self, args, kwargs)
            ranged = route._free.pop(key, None) if route._profiled else None
            if route._profiled and (ranged is None or ranged[0]() is not self):  # that one is gone, this where it was
                ranged = route._boundary.call(route._range_of, self)
            if ranged is not None:
                ranged[1].__enter__()
                route._open.append(ranged[1])
                route.calls += 1
                if route.calls % _LOOK_EVERY == 0:
                    route._boundary.call(route._listener.many_calls)
            times = None
            try:
                times = route.timed and route._times_of(self)
            except BaseException as error:
                route._boundary.handle_error(error)
            if times is not None:
                times.noted.extend((times.modules[key][1], clock(), sequence()))
            try:
                return run(*args, **kwargs)
            finally:
                if times is not None:
                    times.noted.extend((ENDED, clock(), sequence()))
                if noted is not None and route.noted_by is noted:
                    route._boundary.call(noted.leave)
                if ranged is not None and route._window == window:  # else it was ended with its window, in this call
                    try:
                        route._close(ranged, key)
                    except BaseException as error:
                        route._boundary.handle_error(error)

        return call

    def _times_of(self, module: Any) -> LayerTimes | None:
        """Return where the time of this call is noted; None in another thread, or with too many calls."""
        times, key = self.timed, id(module)
        if times is None or times.thread != get_ident() or len(times.noted) >= MOST_NOTED:
            return None
        entry = times.modules.get(key)
        if entry is None or entry[0]() is not module:
            index = self._boundary.call(times.index, module)
            if index is None:
                return None
            times.modules[key] = weakref.ref(module), index
        return times

    def _range_of(self, module: Any) -> tuple[weakref.ref[Any], Scope] | None:
        scope = self._listener.makes_scope(module)
        return None if scope is None else (weakref.ref(module), scope)

    def _outermost_call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        here = get_ident()
        watched = here not in self._routes.loading and _tracing() is None
        if self._inside:  # in another thread, which may have it run parts of its model
            watched = watched and not self._boundary.ask(self._is_part, module)
        try:
            self._inside.add(here)
            self._plainly = (
                self._plain_within and torch.is_grad_enabled()
            )  # else a thread that acts would hide training
            if watched:
                try:
                    expected = self._boundary.open and self._repeating.called(module, args, kwargs)
                except BaseException as error:
                    expected = False
                    self._boundary.handle_error(error)
                if not expected:
                    self._boundary.call(self._listener.called, module, args, kwargs)
            run = module._call_impl if self._plainly else functools.partial(self._call, module)
            output = run(*args, **kwargs)
        except BaseException:
            if watched:
                self._boundary.call(self._listener.raised, module)
            raise
        finally:
            self._inside.discard(here)
            self._plainly = False
        if watched and not self._repeating.steps_to_skip:
            self._boundary.call(self._listener.returned, module, output)
        return output

    def _close(self, ranged: tuple[weakref.ref[Any], Scope], key: int) -> None:
        scope = ranged[1]
        scope.__exit__(None, None, None)
        self._free[key], opened = ranged, self._open
        if opened and opened[-1] is scope:
            opened.pop()
        elif scope in opened:  # another thread's call ended in between
            opened.remove(scope)


def _tell_dynamo(before: Any, now: Any) -> None:
    """Let Dynamo take this for a plain call of a module: else it guards on ours, and compiles anew once we are gone."""
    for name in ("torch._dynamo.utils", "torch._dynamo.variables.nn_module"):
        plain_call = vars(sys.modules.get(name, object)).get("unpatched_nn_module_call")
        if plain_call is not None and plain_call is before:
            sys.modules[name].unpatched_nn_module_call = now  # type: ignore[attr-defined]
