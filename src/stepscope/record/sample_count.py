"""The samples of each step: counted in tensors, and assigned to the step that trains on them.

They come from the batches of data loaders and from the inputs that models are called with (`call_samples`).
"""

from __future__ import annotations

import contextlib
import weakref
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence

_MOST_MODELS = 256
_MOST_CALLS = 10_000  # of a model before a backward pass
_AHEAD = 2  # batches that a loader's wrapper fetches before they are trained on


class _Update(NamedTuple):
    """An update of a step: its passes and their samples, 0 where unknown; numbers of the last batches before both.

    new_inputs: models were called with tensors that no earlier pass of the step had.
    """

    passes: int
    samples: int
    batch_before_passes: int
    last_batch: int
    optimizer: int | None
    new_inputs: bool


class SampleCount:
    """The samples of a step: those of the data loader's batches, else those of the calls that gradients go back to.

    A batch of a loader is trained on once: as many batches as there were backward passes belong to a step, the others
    were fetched ahead. Where later steps fetch none and are called with just what is left of it, calls count. Without
    a loader a pass counts the largest batch that its first model was called with, of those that counted before if
    there are any (an export or an average may be called between steps). Twin networks and unrolled ones are called
    many times with the same samples; of unbatched calls each is a sample. Passes add up to an update. Of several
    updates in a step (a GAN) the one with the fewest samples counts, since a discriminator is shown real and made
    ones; those of one optimizer, each with samples of its own, add up.
    """

    def __init__(self) -> None:
        self._fetched: dict[int, deque[tuple[int, int]]] = defaultdict(deque)  # number of a batch, and its samples
        self._batches = 0  # numbered so far
        self._skipped = SkippedBatches()
        self._trained_on: set[int] = set()  # loaders
        self._aside: set[int] = set()  # loaders that another thread reads for the one that trains
        self._gone: set[int] = set()  # loaders whose iterator is gone, and not all that it gave is taken
        self._used: set[int] = set()  # loaders that steps had batches of
        self._interleaved: set[int] = set()  # loaders that gave a batch behind a call that no pass had followed
        self._last_batch = 0  # number of the last batch that the last step could take
        self._since: set[int] = set()  # loaders that gave a batch since the last call without gradients
        self._evaluated: set[int] = set()  # loaders whose batches a model that is not trained was called with, perhaps
        self._shown_to: set[int] = set()  # such models, since the last pass
        self._with_gradients: set[int] = set()  # loaders whose batches a model in evaluation was called with, perhaps
        self._calls: dict[int, list[tuple[int | None, bool]]] = {}
        self._counted: set[int] = set()  # models whose calls counted before
        self._inputs: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}  # of passes since the last update
        self._inputs_since = self._inputs.copy()  # of models since the last pass
        self._new_input = False  # of them one that is not among the former
        self._before_pass: tuple[int, int, bool] | None = None  # what the last pass added to
        self._batch_before_passes = 0  # number of the last batch before the first pass since the last update
        self._passes = 0  # and their samples, since the last update
        self._samples = 0
        self._known = True  # in all of those passes
        self._updates: list[_Update] = []  # of this step
        self._of_step: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}  # inputs of its passes
        self._new_to_step = False  # one of those since the last update is not among them
        self._updating = False
        self._in_chunks = False  # a loader's batch is trained on in several steps, which their calls tell
        self._left_of_batch = 0  # samples of the last batch that no step has had, as far as calls tell

    def batch(self, loader: int, samples: int, aside: bool = False) -> None:
        """Note a batch of a loader with so many samples; aside: another thread than the one that trains fetched it."""
        if loader in self._evaluated:
            self._evaluated.remove(loader)
            self._fetched.pop(loader, None)
        self._batches += 1
        self._fetched[loader].append((self._batches, samples))
        self._since.add(loader)
        if self._calls:
            self._interleaved.add(loader)
        if aside:
            self._aside.add(loader)
        else:
            self._skipped.fetched(loader, bool(self._calls))

    def forget(self, loader: int) -> None:
        """Note that the iterator of this number is gone."""
        if loader in self._fetched or loader in self._trained_on:
            self._gone.add(loader)

    def called(self, model: int, samples: int | None, batched: bool) -> None:
        """Note a call of a model with gradients and its samples; None where they are unknown."""
        calls = self._calls.setdefault(model, [])
        if len(calls) < _MOST_CALLS:  # of a training without a backward pass there is no end of them
            calls.append((samples, batched))

    def note_input(self, tensor: torch.Tensor) -> None:
        """A model is called with this: passes of the very tensor, unchanged, are of the same samples."""
        version = -1 if tensor.is_inference() else tensor._version
        reference, version_before = self._inputs.get(id(tensor), (None, None))
        if reference is None or reference() is not tensor or version_before != version:
            self._new_input, reference = True, weakref.ref(tensor)
        earlier, version_before = self._of_step.get(id(tensor), (None, None))
        self._new_to_step |= earlier is None or earlier() is not tensor or version_before != version
        if len(self._inputs_since) < _MOST_MODELS:
            self._inputs_since[id(tensor)] = reference, version

    def forget_inputs(self) -> None:
        """Hold no reference to a tensor any more."""
        for inputs in (self._inputs, self._inputs_since, self._of_step):
            inputs.clear()

    def raised(self, model: int, counted: bool) -> None:
        """The last call of a model ended with an exception: nothing comes of it, nor of the batch that it was given.

        Where that is tried again, its calls tell. counted: `called` was told of it.
        """
        if counted and self._calls.get(model):
            self._calls[model].pop()
        for waiting in self._fetched.values():
            if len(waiting) > self._passes:
                waiting.pop()

    def backward(self) -> None:
        """Gradients are computed: those calls counted."""
        if not self._shown_to.isdisjoint(self._calls) or sum(map(bool, self._fetched.values())) > 1:
            for loader in self._evaluated:
                self._fetched.pop(loader, None)
        self._evaluated.clear()
        self._shown_to.clear()
        self._with_gradients.clear()
        sources = [loader for loader, waiting in self._fetched.items() if waiting]
        if len(sources) == 1:
            self._trained_on.update(sources)
        for loader, batches in self._skipped.before_pass():
            waiting = self._fetched[loader]
            newest = waiting.pop() if len(waiting) > batches else None
            for _ in range(batches if newest else 0):
                waiting.pop()
            waiting.extend([newest] if newest else [])
        model = next((model for model in self._calls if model in self._counted), next(iter(self._calls), None))
        calls = [] if model is None else self._calls[model]
        self._calls = {}
        if model is not None and len(self._counted) < _MOST_MODELS:
            self._counted.add(model)
        self._before_pass = self._passes, self._samples, self._known
        if self._updating and self._passes:
            return  # a closure is called again, with the same samples
        again, self._new_input = self._passes > 0 and bool(calls) and not self._new_input, False
        if len(self._inputs) < _MOST_MODELS:
            self._inputs |= self._inputs_since
            self._of_step |= self._inputs_since
        self._inputs_since.clear()
        if not self._passes:
            self._batch_before_passes = self._batches
        self._passes += 1
        if again:
            return  # as for a product with the Hessian
        self._known = self._known and all(samples is not None for samples, _ in calls)
        of_batches = [samples or 0 for samples, batched in calls if batched]
        self._samples += max(of_batches) if of_batches else len(calls)

    def pass_raised(self) -> None:
        """The last pass ended with an exception: nothing comes of it, nor of the batch that it was made of."""
        if self._before_pass is None:
            return
        more = self._passes > self._before_pass[0]
        (self._passes, self._samples, self._known), self._before_pass = self._before_pass, None
        if more:
            for waiting in self._fetched.values():
                if len(waiting) > self._passes:
                    waiting.popleft()

    @property
    def has_pending_pass(self) -> bool:
        """Return whether a pass was made since the last update, and none is under way."""
        return self._passes > 0 and not self._updating

    @property
    def has_batch_aside(self) -> bool:
        """Return whether batches wait that another thread has fetched: each step takes its own from them."""
        return any(self._fetched.get(loader) for loader in self._aside)

    def passes_dropped(self) -> None:
        """The gradients of the passes since the last update are gone: nothing comes of their batches."""
        dropped, self._before_pass = self._passes, None
        self._passes, self._samples, self._known = 0, 0, True
        last = self._updates[-1].last_batch if self._updates else 0
        for loader, waiting in self._fetched.items():
            since = [batch for batch in waiting if batch[0] > last]
            batches = since[: min(dropped, max(len(since) - self._skipped.since_pass[loader], 0))]
            for batch in batches:
                waiting.remove(batch)

    def updating(self) -> None:
        """An optimizer begins to update, and may call a closure."""
        self._updating = True

    def updated(self, optimizer: object = None, penalty: bool = False) -> None:
        """Note an update, by an optimizer; one for a penalty is of samples that another one is of."""
        self._updating = False
        self._new_to_step &= not penalty
        self._record_update(id(optimizer))

    def evaluated(self) -> None:
        """Count as evaluation what was fetched from loaders that are not trained on."""
        self._since.clear()
        self.evaluated_before()

    def evaluated_before(self) -> None:
        """Drop, as evaluated, what was fetched before the last call without gradients."""
        for loader in [loader for loader in self._fetched if loader not in self._trained_on | self._since]:
            del self._fetched[loader]
        self._evaluated.clear()

    def note_untrained_call(self, model: int) -> None:
        """A model that is not trained was called: a teacher, where gradients are computed next, else an evaluation.

        Where they are of this very model, it was looked at before it was trained.
        """
        self._evaluated |= self._fetched.keys() - self._trained_on
        self._shown_to.add(model)
        self._since.clear()

    def in_evaluation(self) -> None:
        """A model is called with gradients, though it is in evaluation: its batch may be trained on or not."""
        self._with_gradients |= self._fetched.keys() - self._trained_on

    def was_evaluated(self, model: int) -> None:
        """It was not: the model is in training again, and no gradient was computed."""
        for loader in self._with_gradients:
            self._fetched.pop(loader, None)
        self._with_gradients.clear()
        self._calls.pop(model, None)

    def take(self, ahead: int = 0) -> int | None:
        """The samples of the step that has ended, None where nothing tells; `ahead` updates are of the next step."""
        if not ahead and self._passes:
            self._record_update(None)
        cut = len(self._updates) - ahead
        updates, self._updates = self._updates[:cut], self._updates[cut:]
        if not self._updates:
            self._of_step.clear()
        passes = sum(update.passes for update in updates)
        waiting = sum(update.passes for update in self._updates)
        last = updates[-1].last_batch if updates else self._batches
        of_calls = _samples_of_calls(updates)
        self._drop_unused(passes + waiting, of_calls is not None)
        most = of_calls if updates and updates[0].batch_before_passes == last else None  # passes of parts of a batch
        fetched = sum(self._take_batches(loader, passes, waiting, last, most) for loader in list(self._fetched))
        if fetched:
            self._left_of_batch = fetched - of_calls if of_calls else 0
        elif of_calls and self._left_of_batch > 0:
            self._left_of_batch -= of_calls
            self._in_chunks |= self._left_of_batch == 0
        self._last_batch = last
        return of_calls if of_calls and self._in_chunks else fetched or of_calls

    def _drop_unused(self, passes: int, calls_tell: bool) -> None:
        """Drop what is left of an iterator that is gone, where no pass can be of it, or calls tell the samples.

        A mean is taken of all, or some are shown, before the training; `zip` drops one where another loader ends; all
        are put into a list, which is trained on.
        """
        for loader in list(self._gone):
            waiting = self._fetched.get(loader)
            is_list = calls_tell and loader not in self._interleaved | self._aside
            if waiting and (is_list or waiting[-1][0] < self._batches):
                is_ended_early = passes == 1 and loader in self._used and waiting[0][0] > self._last_batch
                if is_ended_early or len(waiting) > max(passes, _AHEAD):
                    waiting.clear()
            if not waiting:
                for loaders in (self._gone, self._since, self._trained_on, self._used, self._interleaved):
                    loaders.discard(loader)
                self._fetched.pop(loader, None)

    def _record_update(self, optimizer: int | None) -> None:
        samples = self._samples if self._known else 0
        batches = self._batch_before_passes, self._batches
        self._updates.append(_Update(self._passes, samples, *batches, optimizer, self._new_to_step))
        self._passes, self._samples, self._known, self._new_to_step = 0, 0, True, False
        self._inputs.clear()

    def _take_batches(self, loader: int, passes: int, ahead: int, last: int, most: int | None) -> int:
        """Return the samples of the batches that are of this step.

        last: the last batch that may be; most: samples that are all of it where the first batches have just so many.
        """
        waiting = self._fetched[loader]
        batches = min(len(waiting), max(passes, 1))
        sums = list(accumulate(samples for _, samples in islice(waiting, batches)))
        batches = sums.index(most) + 1 if most in sums else batches
        if loader not in self._aside:
            batches = max(batches, len(waiting) - _AHEAD - ahead)
        self._trained_on.add(loader)
        if batches:
            self._used.add(loader)
        samples = sum(waiting.popleft()[1] for _ in range(min(batches, sum(number <= last for number, _ in waiting))))
        if not waiting and len(self._fetched) > 8:  # of epochs that are over
            del self._fetched[loader]
        return samples


def _samples_of_calls(updates: list[_Update]) -> int | None:
    """Return the samples of a step by the calls of its updates; None where they are not known."""
    by_optimizer: dict[int | None, list[_Update]] = {}
    for update in updates:
        if update.passes:
            by_optimizer.setdefault(update.optimizer, []).append(update)
    sums = []
    for own in by_optimizer.values():
        counted = [update.samples for update in own if update.new_inputs] or [own[0].samples]
        sums.append(sum(counted) if all(counted) else 0)
    return min(filter(None, sums), default=None)


class SkippedBatches:
    """Batches that a model was called with and that no pass followed, since a loss was not finite, for one.

    That is seen where a loader gives one batch before most passes, and now and then another one after such a call.
    """

    _MOST = 8  # loaders that are remembered

    def __init__(self) -> None:
        self.since_pass: defaultdict[int, int] = defaultdict(int)  # batches of each loader
        self._more: defaultdict[int, int] = defaultdict(int)  # of them, those that came after a call
        self._passes: dict[int, list[int]] = {}  # passes with one batch of a loader, and with more

    def fetched(self, loader: int, after_call: bool) -> None:
        """A loader gave a batch; after_call: a model was called with gradients since the last pass."""
        self._more[loader] += after_call and self.since_pass[loader] > 0
        self.since_pass[loader] += 1

    def before_pass(self) -> list[tuple[int, int]]:
        """Return the loaders that gave batches that were skipped before this pass, and how many."""
        loaders = []
        for loader in self.since_pass:
            alone, more = self._passes.pop(loader, [0, 0])
            skipped = self._more[loader]
            if skipped and alone > max(more, 1):
                loaders.append((loader, skipped))
            self._passes[loader] = [alone + (not skipped), more + (skipped > 0)]
        for loader in list(self._passes)[: -self._MOST]:
            del self._passes[loader]
        self.since_pass.clear()
        self._more.clear()
        return loaders


def first_dimension(tensor: torch.Tensor) -> int | None:
    """Return the first dimension, if it is a plain number (not a symbol of a tracer), nested or not."""
    size = tensor.size(0) if tensor.dim() else None
    return size if type(size) is int else None


def telling_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The tensor among the inputs of a model that tells its samples; None where there is none."""
    return args[0] if args and isinstance(args[0], torch.Tensor) else first_tensor((args, kwargs))


def first_tensor(value: Any) -> Any:
    """The first tensor in nested arguments, depth first; None where there is none."""
    return next(tensors_in(value), None)


def hash_of_shapes(value: Any) -> int:
    """Return a hash of the shapes of all tensors in nested arguments."""
    with torch._C.DisableTorchFunction():
        return hash(tuple(tuple(tensor.shape) for tensor in tensors_in(value) if not tensor.is_nested))


def tensors_in(value: Any, depth: int = 0, passed: set[int] | None = None) -> Iterator[Any]:
    """Yield the tensors in nested arguments, depth first; passed: lists and dictionaries that need no second look."""
    if isinstance(value, torch.Tensor):
        yield value
    elif type(value) is PackedSequence:
        yield value.data
    elif depth < 8 and type(value) in (dict, list, tuple):
        if depth > 2:  # a graph, in which each refers to its neighbours: there are too many ways through it
            if id(value) in (passed := set() if passed is None else passed):
                return
            passed.add(id(value))
        elif depth == 2 and passed is None:
            passed = set()
        for item in list(value.values() if isinstance(value, dict) else value):  # other threads may change it
            yield from tensors_in(item, depth + 1, passed)
    elif depth < 3 and issubclass(type(value), Mapping):  # its attributes: to ask it would run the training's code
        with contextlib.suppress(AttributeError):
            yield from tensors_in(object.__getattribute__(value, "__dict__"), depth + 1, passed)
