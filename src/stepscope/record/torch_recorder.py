"""torch's side of a session: observes the training through hooks, and finds its steps, ops, layers and memory.

The hooks report calls, passes, updates and batches; `StepFinder` makes steps of them, `OpRecorder` records those that
the plan picks, and `RepeatFilter` stands before both while steps repeat.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from stepscope.clock import monotonic_ns
from stepscope.record import kineto, run_facts, torch_private
from stepscope.record.call_samples import BatchWitness
from stepscope.record.framework import Ended
from stepscope.record.gradient_threads import GradientThreads
from stepscope.record.memory.tensor_watch import MemoryWatch
from stepscope.record.ops.events import MODULE_SCOPE, OPTIMIZER_STEP
from stepscope.record.ops.modules import Models, ModuleRegistry, module_and_descendants, named_models, parameters_of
from stepscope.record.ops.rows import StepSpan
from stepscope.record.ops.source_lines import CallSites
from stepscope.record.plan import LOOK_AHEAD
from stepscope.record.recorder import OpRecorder
from stepscope.record.repeated_steps import RepeatFilter
from stepscope.record.sample_count import hash_of_shapes
from stepscope.record.steps import COMPILED_CALLS, NO_MODULE_CALLS, StepFinder, why_no_steps
from stepscope.record.torch_hooks import TorchHooks
from stepscope.runfolder import RunWriter

if TYPE_CHECKING:
    from stepscope.record.session import Session

_DIVERGED_PASSES = 3  # on end, of those that are looked at, with a loss that is NaN


class TorchRecorder:
    """The recorder of a training with torch, and the listener of its hooks: what the training does."""

    framework = "torch"

    def __init__(self, session: Session) -> None:
        self._session, self._boundary = session, session.boundary
        self._ops: OpRecorder | None = None
        self._repeats = RepeatFilter(self._boundary, self)
        self.hooks = TorchHooks(self._boundary, self, self._repeats)
        self._registry = ModuleRegistry(self._note_compiled_root)
        self._trainers = GradientThreads()
        settings = session.settings
        self._finder = StepFinder(
            self._trainers,
            settings.steps_from == "optimizer",
            settings.optimizer_steps_per_step,
            session.end_step,
            self._replace_steps,
            self._restart_open_step,
            self._note_calls,
        )
        self._is_paused = False
        self._leaving = contextlib.ExitStack()
        self._followed_ns = 0  # to follow unprofiled steps
        self._spent_ns: int | None = None  # in all calls until the last step's end; the first one begins the run
        self._begins_anew = self._anew = False  # recorded from the end of the evaluation at its beginning: will be, is
        self._inputs: set[int] = set()  # hashes of the shapes that models were called with in a profiled step
        self._nan_passes = 0  # that were looked at since one with a loss that is a number
        self._evaluated_first = 0  # steps that were to be recorded and began with evaluation, since one that did not
        # no frame of ours in between
        self.stepped, self.end_repetition = self._repeats.stepped, self._repeats.end_repetition
        self.report_ended_steps, self.many_calls = self._repeats.report_ended_steps, self._close_oversized_window
        self.fetched, self.count_samples = self._finder.fetched, self._finder.step_ended
        self.finish, self.loss_value = self._finder.finish, torch_private.loss_value_or_reader

    # the run

    def attach(self, models: Models) -> None:
        """Install the hooks, with the models known and the first step open where nothing else begins it."""
        for name, model in named_models(models):
            self._boundary.call(self._registry.add_root, model, name)
        self._leaving.callback(self.hooks.remove)
        self.hooks.install()
        self._leaving.callback(kineto.before_other_profilers(self._boundary.guarded(self._give_way_to_other_profiler)))

    @property
    def knows_models(self) -> bool:
        """Return whether any model is known so far."""
        return bool(self._registry.roots)

    def open(self, writer: RunWriter) -> None:
        """Prepare to record into this run."""
        memory, session = MemoryWatch(self._registry, self._trainers), self._session
        guarded, tell = self._boundary.guarded, self._repeats.report_ended_steps
        self._ops = OpRecorder(writer, session.plan, memory, self.hooks, session.note, guarded, tell)

    def rehearse(self) -> None:
        """Measure once what recording costs on this device, before the first step."""
        if self._ops is not None:
            self._ops.rehearse()

    def close(self) -> None:
        """Write what is recorded, and record no more."""
        if self._ops is not None:
            self._ops.close()

    def detach(self) -> None:
        """Remove every hook, and keep no weak reference to a tensor: torch refuses to swap one that has any."""
        with self._leaving:
            state = vars(self._finder)  # not by its method, which may be what has failed
            state["_optimizers"].forget_parameters()
            vars(state["_copies"]).update(_parameter=None)
            state.update(
                _watched=None, _weights=[], **{part: type(state[part])() for part in ("_gradients", "_one_model")}
            )
            state["_samples"].forget_inputs()

    # steps

    @property
    def recording(self) -> bool:
        """Are ops recorded, here in this thread?"""
        return self._ops is not None and self._ops.recording

    @property
    def paused_ns(self) -> int:
        """Time spent between steps on recording, ns."""
        return 0 if self._ops is None else self._ops.paused_ns

    @property
    def unreported_steps(self) -> int:
        """Number of steps that have ended and were not yet reported to the session."""
        return self._repeats.unreported_steps

    def wait_for_step(self, loss: Any) -> None:
        """Calls on a CPU return when their work is done; of a GPU, a step is what was asked for in it."""

    def before_step(self, step: int, elapsed_ns: int, again: bool) -> bool:
        """Open, keep or close the window as the plan says."""
        assert self._ops is not None
        self._inputs.clear()
        recorded = self._ops.before_step(step, elapsed_ns, again)
        self._begins_anew, self._anew = False, again
        return recorded

    def after_step(self, span: StepSpan) -> None:
        """A profiled step has ended."""
        assert self._ops is not None
        self._ops.after_step(replace(span, inputs=hash(frozenset(self._inputs)) if self._inputs else 0))
        if not self._anew:
            self._evaluated_first = 0

    def step_ends(self, span: StepSpan) -> bool:
        """Every step's end, profiled or not; True where it was profiled in parts."""
        assert self._ops is not None
        self._add_event_tracking_cost(self._ops)
        in_parts = self._ops.step_ends(span)
        self._repeats.step_ended()
        return in_parts

    def _add_event_tracking_cost(self, ops: OpRecorder) -> None:
        """Count what following the events of this step took, where it is none whose own length shows that."""
        spent_ns = self._boundary.spent_ns - ops.paused_ns - ops.once_ns
        if self._spent_ns is not None and not self._session.profiled and ops.layers.open is None:
            self._followed_ns += max(spent_ns - self._spent_ns, 0)
        self._spent_ns = spent_ns

    def may_repeat(self, samples: int | None, flushed_ns: int) -> None:
        """Unprofiled steps that repeat the last one need no more than a look, as many as the plan says."""
        if self._finder.repeats:
            session, is_over = self._session, self._ops is None or self._ops.stopped
            steps = LOOK_AHEAD if is_over else session.plan.steps_unprofiled(session.number)
            self._repeats.may_begin(steps, samples, flushed_ns)

    def pause(self) -> bool:
        """Ignore the training until `resume`; True where work of the open step was seen: it is profiled no further."""
        within_step = self._finder.pause()
        self._repeats.follow()
        self._is_paused = True
        if within_step and self._ops is not None:
            self._ops.leave_step()
        return within_step

    def resume(self) -> None:
        """Observe the training again."""
        self._is_paused = False

    def close_window(self) -> None:
        """End the open window and write it."""
        if self._ops is not None:
            self._ops.close_window()

    def layer_scope(self, layer: nn.Module) -> torch_private.Scope:
        """A range of the step that counts as a call of this module, for code that calls a function of it instead."""
        index = self._boundary.call(self._registry.index, layer)
        return torch_private.make_scope("call" if index is None else f"{MODULE_SCOPE}{index}")

    # what the training does, as the hooks report it

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A module is called that no other module calls."""
        if self._is_paused:
            return
        if not self._registry.knows(module):
            self._register(module)
        if self._ops is None and not (torch.is_grad_enabled() and self._registry.learns(module)):
            self._finder.called_before_training()  # a transform in a worker, inference
            return
        self._session.begin()
        self._finder.called(module, args, kwargs)
        if self._finder.calls.awaits_output:
            self._repeats.end_repetition()
        self._open_step()
        if self._ops is None or not torch.is_grad_enabled():
            return
        if self._session.profiled:
            self._inputs.add(hash_of_shapes((args, kwargs)))
            self._ops.called(args, kwargs)
            self._close_oversized_window()
        else:
            self._ops.before_forward()

    def _register(self, module: nn.Module) -> None:
        """Register a model; note one that begins to be trained late, with its sizes: it may be gone at the end."""
        session, models = self._session, len(self._registry.roots)
        unknown = [part for part in module_and_descendants(module) if not self._registry.knows(part)]
        is_wrapper = not any(map(parameters_of, unknown))
        self._registry.add_root(module)
        is_new = len(self._registry.roots) > models and not is_wrapper and vars(module).get("training", True)
        if is_new and torch.is_grad_enabled() and session.plan.note_new_model():
            self._registry.sizes()
            session.note("another-model", f"step {session.number}: another model is used", step=session.number)

    def is_part(self, module: nn.Module) -> bool:
        """Return whether a module is a part of a known model, or a copy of one that `DataParallel` made."""
        if "_is_replica" in vars(module):
            return True
        roots = (root for root in self._registry.roots if root.within is None)
        return self._registry.knows(module) and all(root.reference() is not module for root in roots)

    def returned(self, module: nn.Module, output: Any) -> None:
        """Note that the call has returned."""
        if self._ops is not None and not self._is_paused:
            self._finder.returned(module, output)

    def raised(self, module: nn.Module) -> None:
        """Note that the call has ended with an exception."""
        self._repeats.end_repetition()
        if (
            not self._is_paused and not torch_private.in_backward()
        ):  # else a checkpoint has computed again as far as it needed to
            self._finder.raised(module)

    def compiled(self, module: nn.Module) -> None:
        """A model was compiled in place: its calls pass us by, and what it is made of is known."""
        if self._ops is not None:
            self._repeats.follow()
            self._registry.add_root(module)
            self._note_compiled()

    def before_optimizer(self, optimizer: Any) -> None:
        """An optimizer is about to update."""
        if self._is_paused:
            return
        self._session.begin()
        self._finder.before_update(optimizer)
        if self._ops is not None:
            self._close_oversized_window()
            self._ops.note_updating_optimizer(optimizer)
            self._ops.before_optimizer_step(optimizer)

    def after_optimizer(self, optimizer: Any) -> None:
        """An optimizer has updated: the step may have ended."""
        if self._ops is not None:
            self._ops.note_updating_optimizer(None)
        if not self._is_paused:
            self._finder.after_update(optimizer)

    def skipped_update(self) -> None:
        """A gradient scaler left an update out."""
        if self._is_paused:
            return
        self._repeats.follow()
        where = "no step" if self._session.settings.steps_from == "optimizer" else "the step that scope.step() ends"
        message = f"a gradient scaler skipped an update: its time is in {where}"
        self._session.note("update-skipped", message, step=self._session.number)
        self._finder.skipped_update()

    def swaps(self) -> None:
        """Two tensors are about to be swapped."""
        self._finder.forget_tensors()
        if self._ops is not None:
            self._ops.end_window_before_swap()

    def before_backward(self, roots: Any, inputs: Any, weights: Any = None) -> None:
        """Gradients are about to be computed."""
        if not self._repeats.replaying:  # else by the thread that trains, which may be another
            self._trainers.note_this_thread()
        if self._is_paused:
            return
        self._session.begin()
        self._finder.before_backward(roots, inputs, weights)
        self.look_at_loss(roots)
        self._open_step()
        self._close_oversized_window(before_pass=True)
        if self._ops is not None:
            self._ops.mark("backward")
            self._ops.before_pass(roots, inputs)

    def look_at_loss(self, roots: Any) -> None:
        """Note a loss in RAM that is NaN whenever it is looked at: one alone a script may leave out.

        Where the training says when a step ends it says its loss, if it wants to.
        """
        self._repeats.wants_loss = False
        loss = torch_private.loss_in_ram(roots[0]) if type(roots) is tuple and len(roots) == 1 else None
        if loss is not None and self._finder.detected_by != "calls":
            self._nan_passes = self._nan_passes + 1 if loss != loss else 0
            if self._nan_passes == _DIVERGED_PASSES:
                step = self._session.number
                self._session.note("loss-nan", f"the loss of step {step} is NaN, and was so before", step=step)

    def after_backward(self) -> None:
        """Gradients are computed."""
        if self._is_paused:
            return
        self._finder.after_backward(self._repeats.replaying)
        if self._ops is not None:
            self._ops.after_pass()
            self._close_oversized_window()

    def backward_raised(self) -> None:
        """An exception has ended a backward pass."""
        self._repeats.end_repetition()
        if self._is_paused:
            return
        self._finder.backward_raised()
        if self._ops is not None:
            self._ops.after_pass()

    def batch(self, iterator: Any, batch: Any) -> None:
        """A data loader gave a batch."""
        if self._is_paused:
            return
        self._finder.batch(iterator, batch)
        if self._ops is not None:
            self._ops.mark("data")

    def makes_scope(self, module: nn.Module) -> torch_private.Scope:
        """The range of a module's call in the window that records now."""
        return torch_private.make_call_scope(f"{MODULE_SCOPE}{self._registry.index(module)}")

    def optimizer_scope(self, optimizer: Any) -> torch_private.Scope:
        """The range by which a torch optimizer announces itself, for another."""
        return torch_private.make_scope(f"{OPTIMIZER_STEP}{type(optimizer).__name__}.step")

    # steps that repeat

    def repeated(self, ended: list[Ended], samples: int | None, sequence: int) -> None:
        """Write the steps that were not followed, and make up for what they would have changed."""
        spans = self._session.repeated(ended, samples)
        self._finder.repeated([t_ns for t_ns, _ in ended])
        if self._ops is not None:
            self._ops.repeated(spans, sequence)

    def decides(self, samples: int | None, sequence: int) -> None:
        """The next step begins, behind some that were not followed: it may be profiled."""
        if self._ops is not None:
            self._ops.event_count.step_begins(sequence)
            self._ops.event_count.step_ends()
        self._session.next_step(samples)

    # where steps begin, and how large they are

    def _open_step(self) -> None:
        """The first step of a training that says nothing of its steps begins with its first work."""
        if (self._session.t0_ns is None or self._begins_anew) and torch.is_grad_enabled():
            self._session.begin_step(again=self._begins_anew)

    def _restart_open_step(self, now_ns: int) -> None:
        """Begin the step now: what went before is no part of it, and what was recorded is dropped from RAM."""
        session = self._session
        self._repeats.end_repetition()
        if session.t0_ns is not None and now_ns <= session.t0_ns:
            return  # it was in a pause
        if self._ops is not None and self._ops.recording:
            self._ops.close_window()
            self._evaluated_first += session.profiled
            # Each time: else none would be recorded; and until one is, for a run of few steps.
            seldom = self._evaluated_first <= 1 and session.plan.recorded > 0
            self._begins_anew = session.profiled and not seldom
            session.profiled = False
            now_ns = monotonic_ns()
        session.t0_ns = now_ns

    def _replace_steps(self, first_ns: int, ends_ns: tuple[int, ...]) -> bool:
        """What had been taken for steps since then were others, or none: profiles of them are of none."""
        session = self._session
        if self._ops is None or torch_private.in_backward() or kineto.runs_elsewhere():
            return False
        if (step := session.join_steps(first_ns, ends_ns)) is None:
            return False
        self._ops.drop_steps_from(step)
        session.profiled = False
        if ends_ns:
            self._finder.step_ended()
            self.step_ends(StepSpan(session.number - 1, first_ns, ends_ns[-1], None))
            session.begin_step()
        return True

    def _close_oversized_window(self, before_pass: bool = False) -> None:
        ops, session = self._ops, self._session
        if ops is None or session.t0_ns is None or not ops.recording:
            return
        if ops.close_oversized_window(session.number, session.t0_ns, before_pass):
            session.profiled = False

    # modules

    def _note_calls(self, witness: BatchWitness | None) -> bool:
        """Report the following calls to a witness, unless they are reported already; None: to nobody."""
        noted_by = self.hooks.modules.noted_by
        if isinstance(noted_by, CallSites):
            noted_by.also = witness
            return True
        if noted_by is not None and not isinstance(noted_by, BatchWitness):
            return False
        self.hooks.modules.note(witness)
        return True

    def _note_compiled_root(self, root: nn.Module) -> None:
        if "_orig_mod" in (vars(root).get("_modules") or {}):
            self._note_compiled()

    def _note_compiled(self) -> None:
        message = "a compiled model: ops below it carry the model's name, not their layer's"
        self._session.note("compiled", message)

    def _give_way_to_other_profiler(self) -> None:
        if self._ops is not None:
            self._ops.yield_to_other_profiler()

    def model_rows(self) -> list[dict[str, Any]]:
        """Rows of model.json: the modules that were called or given."""
        shares = {} if self._ops is None else self._ops.updates.shares()
        return run_facts.model_json_rows(self._registry, self._session.settings.flops, shares)

    def early_facts(self) -> dict[str, Any]:
        """Return what a run that is killed is to say of its threads."""
        return {"threads": torch.get_num_threads()}

    def run_json_fields(self, span_ns: int) -> dict[str, Any]:
        """Return what run.json says at the end of a run of this length."""
        assert self._ops is not None
        return {
            **self.early_facts(),  # at the end again: a script may set their number after the run has begun
            "recorder": run_facts.recording_facts(
                self._ops, self._session.settings.steps_from, self._finder.detected_by, self.hooks.loading_ns
            ),
            "overhead": run_facts.overhead_facts(self._ops, span_ns, self._followed_ns),
            "compile_s": torch_private.compile_seconds(),
            "input_shape": self._finder.calls.input_shape,
        }

    def remarks(self) -> list[tuple[str, str]]:
        """Return what a reader should know of how the training was seen."""
        remarks = []
        if self._finder.calls_no_module:
            is_compiled = torch_private.compile_seconds() is not None
            remarks.append(("compiled-calls", COMPILED_CALLS) if is_compiled else ("no-module-calls", NO_MODULE_CALLS))
        remark = self._finder.remark
        return [*remarks, remark] if remark is not None else remarks

    def why_no_steps(self) -> str:
        """The reason why there is no step, as far as it was seen, and what helps."""
        return why_no_steps(self._finder.activity_counts)

    def abandon_window(self, why: str) -> None:
        """Drop the open window without its events."""
        if self._ops is not None:
            try:
                self._ops.abandon_window(why)
            finally:  # a fault of that, too
                kineto.end_running_profile()

    def note_fork(self) -> None:
        """Note that this process has forked."""
        self._finder.activity_counts["forks"] += 1

    def discard_in_child(self) -> None:
        """Drop the window in a forked child: it belongs to the parent."""
        if self._ops is not None:
            self._ops.discard_in_child()
