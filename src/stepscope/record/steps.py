"""Find the steps of a training from what it does: where one ends and the next begins, and its samples.

StepFinder follows calls, backward passes, updates and batches; the classes below it hold the rules.
"""

from __future__ import annotations

import contextlib
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from stepscope.clock import monotonic_ns
from stepscope.record import torch_private
from stepscope.record.call_samples import BatchWitness, CallSamples, LoaderBatches, unwrapped
from stepscope.record.gradient_threads import GradientThreads
from stepscope.record.ops.modules import module_and_descendants, parameters_of
from stepscope.record.optimizer_identity import (
    COPIES,
    CopyUpdateWitness,
    ObjectNumbers,
    OptimizerNumbers,
    SharedModelWitness,
)
from stepscope.record.sample_count import SampleCount, tensors_in
from stepscope.record.update_rounds import (
    ROUNDS,
    UNCERTAIN,
    Ended,
    Fingerprint,
    Joined,
    ManualRounds,
    OptimizerRounds,
)


class StepFinder:
    """Calls `ended(t_ns, late)` where a step ends and `excluded(t_ns)` where something ends that is no part of one.

    It calls `joined` where what had been taken for steps is known to be two rounds of several optimizers.

    from_updates: steps end by themselves; else somebody says so, and only samples and evaluation are followed.
    """

    def __init__(
        self,
        trainers: GradientThreads,
        from_updates: bool,
        updates_per_step: int | None,
        ended: Ended,
        joined: Joined,
        excluded: Callable[[int], None],
        note_calls: Callable[[BatchWitness | None], bool],
    ) -> None:
        self._trainers = trainers
        self._from_updates = from_updates
        self._excluded, self._joined = excluded, joined
        self._identities = ObjectNumbers(follows=True)
        self._optimizers = OptimizerNumbers()
        self._copies, self._one_model = CopyUpdateWitness(), SharedModelWitness()
        self._rounds = OptimizerRounds(
            ended,
            updates_per_step,
            alive=self._optimizers.alive,
            joined=joined,
            of_copies=self._optimizers.of_copies,
            one_model=lambda numbers: self._one_model.is_one_model(numbers),
        )
        self._manual = ManualRounds(ended)
        self._weights: list[weakref.ref[torch.Tensor]] = []  # leaves that roots were multiplied by
        self._gaps = EvaluationGaps()
        self._gradients = GradientWitness()
        self._samples, self._loaders = SampleCount(), LoaderBatches()
        self.calls = CallSamples(self._samples, note_calls)
        self._watched: list[weakref.ref[torch.Tensor]] | None = None  # leaves whose updates show steps by hand
        self._choice = 0  # of these leaves, counted
        self._trained: set[int] = set()  # models that were called with gradients
        # models called so in evaluation since the last pass: whether that began between steps, and when it ended
        self._in_evaluation: dict[int, tuple[bool, int]] = {}
        self._optimized = False  # an optimizer has begun to update, now or before
        self._no_steps_by_hand = False  # those that were counted before an optimizer updated
        self._worked = False  # something with gradients ran since the last update
        self._step_pass_called = False
        self._given: set[int] = set()  # addresses of tensors that models were called with since the last pass
        self._of_data = False  # the leaves that are watched are all among those
        self._aside = False  # the last pass was no training: its gradients are of none of the parameters
        self._penalty = False  # there was such a pass since the last update
        self._direct_passes = 0  # gradients of what no module's call computed
        self.activity_counts = {
            "calls": 0,
            "passes": 0,
            "updates": 0,
            "forks": 0,
        }  # of a training, for one without a step

    @property
    def detected_by(self) -> str:
        """Return the source of the steps: scope.step() ("calls"), an optimizer, or updates by hand ("backward")."""
        if not self._from_updates:
            return "calls"
        return "optimizer" if self._optimized else "backward"

    @property
    def repeats(self) -> bool:
        """Return whether a step that does what the last one did needs no look at what it computes."""
        return self.detected_by != "backward" and not self._rounds.undecided and not self._samples.has_batch_aside

    def repeated(self, ended_ns: list[int]) -> None:
        """Note steps that repeated the one before them, by their ends."""
        self._gaps.repeated(len(ended_ns))
        self._rounds.repeated(ended_ns)

    @property
    def remark(self) -> tuple[str, str] | None:
        """Return what is counted where somebody may call something else a step, and its kind; None where nobody would.

        Kinds: "steps-uncertain", and "steps-are-rounds" where a rule of docs/measuring.md decides.
        """
        if not self._from_updates or self._rounds.fixed:
            return None
        if self._rounds.uncertain:
            return "steps-uncertain", UNCERTAIN
        if self._rounds.uneven_rounds:
            return "steps-are-rounds", ROUNDS
        return ("steps-uncertain", COPIES) if self._copies.model_follows_copies and self._optimizers.of_copies else None

    @property
    def calls_no_module(self) -> bool:
        """Return whether gradients were computed, and none of what a call of a module had computed."""
        return 0 < self._direct_passes == self.activity_counts["passes"]

    def called_before_training(self) -> None:
        """A module is called for an evaluation, before anything is trained: batches so far are of it."""
        self.activity_counts["calls"] += 1
        self._samples.evaluated()

    def called(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An outermost module is called, with gradients or without."""
        self.activity_counts["calls"] += 1
        self._check_manual_update()
        if not torch.is_grad_enabled() or torch_private.in_backward():  # computed again there: counted before
            return
        between, number = self._is_between_steps, self._identities.number(module)
        self._work_begins()
        if not vars(module).get("training", True):
            self._samples.in_evaluation()
            self._in_evaluation.setdefault(number, (between, monotonic_ns()))
        elif number in self._in_evaluation:
            self._exclude_evaluation(number)
        self._trained.add(number)
        self._one_model.called(module)
        if not self._step_pass_called:
            self._gradients.called(number, module)
        self._step_pass_called = True
        self._given.update(id(tensor) for tensor in tensors_in((args, kwargs)))
        self.calls.called(module, number, args, kwargs)

    def returned(self, module: nn.Module, output: Any) -> None:
        """Note the return of a call: between two steps and without gradients it was evaluation."""
        if torch.is_grad_enabled():
            self.calls.returned(output)
            number = self._identities.number(module) if self._in_evaluation else -1
            if number in self._in_evaluation:
                self._in_evaluation[number] = self._in_evaluation[number][0], monotonic_ns()
            return
        number, now_ns = self._identities.number(module), monotonic_ns()
        if number not in self._trained:
            self._samples.note_untrained_call(number)
        else:
            self._samples.evaluated()
        if self._is_between_steps and not vars(module).get("training", True) and number in self._trained:
            self._exclude_until(now_ns)
        else:
            self._gaps.evaluated(number, now_ns)

    @property
    def _is_between_steps(self) -> bool:
        """Return whether no work of a step has begun since the last one."""
        return self._gaps.is_open or (self._rounds.undecided and not self._worked)

    def _exclude_evaluation(self, number: int) -> None:
        """It was called with gradients in evaluation, is in training now, and nothing was computed in between."""
        between, ended_ns = self._in_evaluation.pop(number)
        self._samples.was_evaluated(number)
        if between:
            self._exclude_until(ended_ns)

    def raised(self, module: nn.Module) -> None:
        """Note that a call ended with an exception."""
        counted = self.calls.raised()
        if torch.is_grad_enabled():
            self._samples.raised(self._identities.number(module), counted)

    def before_update(self, optimizer: Any) -> None:
        """An optimizer is about to update, and may call a closure, whose passes are no updates by hand."""
        self._begins_to_optimize()
        self._copies.begins(optimizer)
        self._samples.updating()

    def after_update(self, optimizer: Any) -> None:
        """Note an update, which may have ended the step."""
        self.activity_counts["updates"] += 1
        self._take_back_steps_by_hand()
        joins, self._worked = self.activity_counts["passes"] > 0 and not self._worked, False
        self._samples.updated(optimizer, self._penalty)
        if self._from_updates:
            self._copies.updated()
            number = self._optimizers.number(optimizer, joins)
            self._one_model.updated(number, optimizer)
            self._rounds.stepped(number, joins, self._penalty)
        self._penalty = False

    def pause(self) -> bool:
        """The training pauses: an update that may have ended the step has; return whether work of a step has begun."""
        self._check_manual_update()
        has_begun = not self._is_between_steps
        if self._from_updates and (self._rounds.undecided or not has_begun):
            self._rounds.finish()
        return has_begun

    def skipped_update(self) -> None:
        """A gradient scaler left an update of an optimizer out: what was computed for it is no step."""
        self._begins_to_optimize()
        self._take_back_steps_by_hand()
        if self._from_updates:
            self._exclude_until(monotonic_ns())
            self._samples.take()

    def before_backward(self, roots: Any, inputs: Any, weights: Any = None) -> None:
        """Gradients are about to be computed: of parameters, or aside, of what a model was called with.

        weights: those of the roots, of which a pass may ask for gradients: that is half a product with a Jacobian.
        """
        self._work_begins()
        self._aside = _has_no_data(roots) or (bool(inputs) and self._none_is_trained(roots, inputs))
        self._weights = [weakref.ref(leaf) for leaf in tensors_in(weights) if leaf.requires_grad] or self._weights
        if self._aside:
            self._penalty = True
            return
        inputs_of_models, self._given = self._given, set()
        self._in_evaluation.clear()
        self.activity_counts["passes"] += 1
        self._direct_passes += not self._step_pass_called
        self._step_pass_called = False
        if self._optimized and not self._trainers.others():
            self._one_model.before_pass()
        if self._is_updated_by_hand():
            self._watch_leaves(roots, inputs or ())
            leaves = [leaf for leaf in (reference() for reference in self._watched or ()) if leaf is not None]
            self._of_data = all(id(leaf) in inputs_of_models for leaf in leaves)
            self._manual.begins(self._fingerprint())
        if self._samples.has_pending_pass and not self._trainers.others() and self._gradients.has_no_gradient():
            self._samples.passes_dropped()
        self._samples.backward()

    def after_backward(self, replayed: bool = False) -> None:
        """Note that gradients are computed; replayed: reported late, when gradients may have been reset."""
        if self._aside:
            return
        others = self._trainers.others()
        self._gradients.passed(replayed, may_look=not others)
        if not others:
            self._one_model.passed(replayed)
        if self._is_updated_by_hand():
            self._manual.passed(self._fingerprint())

    def backward_raised(self) -> None:
        """The pass that began last ended with an exception."""
        if not self._aside:
            self._samples.pass_raised()

    def batch(self, iterator: Any, batch: Any) -> None:
        """A data loader gave a batch."""
        self.fetched(iterator, self._loaders.samples(iterator, batch))

    def fetched(self, iterator: Any, samples: int | None) -> None:
        """A data loader gave so many samples; None where nothing tells."""
        self._check_manual_update()
        if samples is not None:
            aside = self._trainers.is_helper()
            source = getattr(iterator, "_index_sampler", iterator) if aside else iterator  # the same in each epoch
            self._samples.batch(self._identities.number(source), samples, aside)

    def _begins_to_optimize(self) -> None:
        if not self._optimized:  # steps so far may have been of an attack, of a sampler, of a trace
            self._no_steps_by_hand = self._from_updates and self._manual.steps > 0 and not self._manual.sure
        self._optimized, self._watched = True, None

    def _take_back_steps_by_hand(self) -> None:
        """Drop steps that were none: after an update, where a step may end and so a profile may, and not before it."""
        if self._no_steps_by_hand:
            self._no_steps_by_hand = False
            self._joined(0, ())

    def step_ended(self) -> int | None:
        """The samples of the step that has ended; what follows lies between steps until work begins."""
        self._gaps.begins()
        for number in self._identities.forget_dead():  # of losses that are made anew in each step, for one
            self._trained.discard(number)
            for witness in (self._gaps, self._gradients, self.calls, self._samples):
                witness.forget(number)
        return self._samples.take(self._rounds.ahead)

    def finish(self) -> None:
        """The training is over: what was left open has ended."""
        if self._from_updates:
            self._rounds.finish(over=True)
            if self._is_updated_by_hand():
                self._manual.finish(self._fingerprint())

    def _work_begins(self) -> None:
        """Something with gradients runs: a step is under way, and evaluation before it lies outside."""
        self._worked = True
        if self._gaps.is_open:
            evaluated_ns = self._gaps.ends()
            if evaluated_ns is not None:
                self._exclude_until(evaluated_ns)

    def _exclude_until(self, now_ns: int) -> None:
        if self._from_updates:
            self._rounds.finish()
        self._samples.evaluated_before()
        self._excluded(now_ns)

    def _none_is_trained(self, roots: Any, inputs: Any) -> bool:
        """Return whether gradients of these are no training: an attack, a penalty, a derivative by coordinates.

        Before an optimizer has updated, what is no nn.Parameter may be one all the same: functional training has
        parameters like that. What a model was given is none, nor is anything else where the pass reaches an
        nn.Parameter and does not ask for its gradient.
        """
        if any(isinstance(unwrapped(tensor), nn.Parameter) for tensor in inputs):
            return False
        if any(
            weight is not None and weight is tensor for weight in (ref() for ref in self._weights) for tensor in inputs
        ):
            return True
        return (
            self._optimized
            or all(id(tensor) in self._given for tensor in inputs)
            or any(isinstance(leaf, nn.Parameter) for leaf in torch_private.leaves_of(roots, 2_000, 2_000))
        )

    def _is_updated_by_hand(self) -> bool:
        return self._from_updates and not self._optimized

    def _watch_leaves(self, roots: Any, inputs: Any) -> None:
        watched = {id(leaf) for leaf in (reference() for reference in self._watched or ()) if leaf is not None}
        leaves = [tensor for tensor in inputs if isinstance(tensor, torch.Tensor) and tensor.is_leaf]
        if leaves and watched.isdisjoint(map(id, leaves)):  # functional training makes parameters anew in each step
            self._watched, self._choice = [weakref.ref(leaf) for leaf in leaves[:8]], self._choice + 1
            return
        if watched:
            return
        if self._watched is None or self._manual.passes < 50 or self._manual.of_copies:  # functional training has none
            reachable = torch_private.leaves_of(roots)
            leaves = [leaf for leaf in reachable if isinstance(leaf, nn.Parameter)] or reachable  # others come and go
            self._watched, self._choice = [weakref.ref(leaf) for leaf in leaves], self._choice + 1

    def forget_tensors(self) -> None:
        """A tensor is about to be swapped with another, which torch refuses where one has weak references."""
        self._watched, self._weights = None, []
        self._gradients, self._copies, self._one_model = GradientWitness(), CopyUpdateWitness(), SharedModelWitness()
        self._optimizers.forget_parameters()
        self._samples.forget_inputs()

    def _check_manual_update(self) -> None:
        if self._manual.undecided and self._is_updated_by_hand():
            self._manual.something_else(self._fingerprint())

    def _fingerprint(self) -> Fingerprint | None:
        """Return what changes when parameters are updated or gradients reset.

        None where there is nothing to look at.
        """
        leaves = [leaf for leaf in (reference() for reference in self._watched or ()) if leaf is not None]
        if not leaves:
            return None
        others = self._trainers.others()
        with torch._C.DisableTorchFunction():
            values = [torch_private.first_bytes(leaf) for leaf in leaves]  # `.data` leaves the version as it is
            gradients = (
                () if others else [(id(leaf.grad), leaf.grad is not None and leaf.grad._version) for leaf in leaves]
            )
            return Fingerprint(
                tuple((id(leaf), leaf._version, value) for leaf, value in zip(leaves, values, strict=True)),
                tuple(gradients),
                any(value is not None for value in values),
                tuple(map(id, leaves)),
                self._of_data,
                tuple(values),
                self._choice,
            )


def _has_no_data(roots: Any) -> bool:
    """Return whether these are tensors of shapes alone, from which no training goes back."""
    root = roots[0] if type(roots) in (tuple, list) and roots else roots
    return type(root).__name__ == "FakeTensor" or (type(root) is torch.Tensor and root.is_meta)


NO_MODULE_CALLS = (
    "gradients were computed, and never of what a call of a module had computed: the training calls "
    "'forward' of its modules itself, or uses functions alone, and only calls of modules tell layers apart"
)

COMPILED_CALLS = (
    "gradients were computed, and of what compiled functions computed: the calls of modules in them are not seen, and "
    "only these tell layers apart, and the samples of a step where no data loader does"
)


def why_no_steps(signs: Mapping[str, int]) -> str:
    """The reason why no step was found, from what was seen of a training, and what helps."""
    if signs.get("passes") and not signs.get("updates"):
        return (
            f"gradients were computed {signs['passes']} times, but no optimizer of torch or Keras updated and no "
            "parameter was seen to change; wrap the loop in stepscope.profile and call scope.step() at each step"
        )
    if signs.get("forks"):
        return (
            f"this process trained nothing itself and made {signs['forks']} forked children, which are not profiled; "
            "start them with the 'spawn' method, or call stepscope.profile in the function that trains"
        )
    if signs.get("calls"):
        return (
            "models were called but no backward pass was made: that is inference, or training without one (forward "
            "mode, evolution), where stepscope.profile is told of each step by scope.step()"
        )
    return "no model was called, no gradient computed and no optimizer stepped with torch in this process"


# A step is one round of the optimizers: the step of a GAN ends with the last of its optimizers, gradients that add up
# over several batches make one step, and so does a closure that an optimizer calls many times. Where no optimizer ever
# updates, a step ends when parameters were updated by hand, which is seen before the next backward pass: the parameters
# or their gradients are not what the last one left. Evaluation without gradients, of whatever model, lies between
# steps, unless it belongs to most of them (a target network, a teacher).


class GradientWitness:
    """A parameter of each model that had a gradient after a pass: without it before the next, the pass was dropped."""

    def __init__(self) -> None:
        self._parameters: dict[int, weakref.ref[torch.Tensor]] = {}  # by model
        self._model: tuple[int, weakref.ref[nn.Module]] | None = None  # that was called first since the last pass
        self._last: weakref.ref[torch.Tensor] | None = None  # of the last pass

    def forget(self, number: int) -> None:
        """Note that the model of this number is gone."""
        self._parameters.pop(number, None)

    def called(self, number: int, module: nn.Module) -> None:
        """A model is called, the first one since the last pass."""
        with contextlib.suppress(TypeError):  # it takes no weak references
            self._model = number, weakref.ref(module)

    def passed(self, replayed: bool, may_look: bool = True) -> None:
        """A pass is done; may_look: no other thread trains, whose model and gradients these may be."""
        model, self._model, self._last = self._model, None, None
        if model is None or not may_look:
            return
        number, model_reference = model
        reference = self._parameters.get(number)
        with torch._C.DisableTorchFunction():
            parameter = None if reference is None else reference()
            if reference is None or parameter is None:
                module = model_reference()
                parts = [] if module is None or replayed else module_and_descendants(module)
                of_parts = (parameter for part in parts for parameter in parameters_of(part))
                parameter = next((candidate for candidate in of_parts if candidate.grad is not None), None)
                if parameter is None:
                    return
                reference = self._parameters[number] = weakref.ref(parameter)
            if replayed or parameter.grad is not None:
                self._last = reference

    def has_no_gradient(self) -> bool:
        """Return whether that parameter has no gradient any more."""
        parameter = None if self._last is None else self._last()
        with torch._C.DisableTorchFunction():
            return parameter is not None and parameter.grad is None


class EvaluationGaps:
    """Calls without gradients between two steps: evaluation, unless most steps begin with it."""

    def __init__(self) -> None:
        self._gaps = 0
        self._with: defaultdict[int, int] = defaultdict(int)
        self._here: dict[int, int] = {}  # models of this gap, and when their last call ended
        self._last: tuple[int, ...] = ()  # models of the last gap
        self.is_open = True  # no step's work has begun since the last step

    def forget(self, model: int) -> None:
        """Note that the model of this number is gone."""
        self._with.pop(model, None)

    def begins(self) -> None:
        """A step has ended."""
        self.is_open, self._here = True, {}

    def repeated(self, steps: int) -> None:
        """Note steps that began as the last one did."""
        self._gaps += steps
        for model in self._last:
            self._with[model] += steps

    def evaluated(self, model: int, now_ns: int) -> None:
        """A model was called without gradients."""
        if self.is_open:
            self._here[model] = now_ns

    def ends(self) -> int | None:
        """A step's work begins: when evaluation before it ended, None where there was none."""
        if not self.is_open:
            return None
        outside = [t_ns for model, t_ns in self._here.items() if self._gaps > 0 and self._with[model] <= self._gaps / 2]
        for model in self._here:
            self._with[model] += 1
        self._gaps += 1
        self.is_open, self._here, self._last = False, {}, tuple(self._here)
        return max(outside, default=None)
