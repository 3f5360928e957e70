"""DataLoaders of a script: each hands out its first batches and its last, in this process whatever its workers."""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, TensorDataset, default_collate
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from stepscope.footprint.script_loop_items import batch_sizes, tensors_of
from stepscope.footprint.script_objects import object_bytes
from stepscope.footprint.script_progress import Growth, Progress, temporary_attribute
from stepscope.footprint.simulator import LoaderMemory
from stepscope.record.fault_boundary import INSTALLED

_NOTHING = object()
_ADDED_UP = 64  # batches at the most whose gradients may add up to an update
_LOOKED = 6  # passes in which arrays are looked at; those of a loop are in any case
_LOOKING_S = 2.0  # of processor time, at the samples of a loader
_STACK = ("default_collate", "default_convert", "default_data_collator")  # samples of one shape, or they fail
_REWRITTEN = frozenset(("parameter", "gradient", "optimizer", "buffer"))
_MOST_LISTED = 1_000_000  # samples of a sampler that does not say how many batches it has
_FIRST = 3  # batches of a loader, before its last: a batch that is fetched ahead and a first state are no growth


class Loaders:
    """The loaders of one script while it is followed; `loading` is what their workers take."""

    def __init__(self, progress: Progress) -> None:
        self.loading = LoaderMemory()
        self._progress, self._log = progress, progress.log
        self._loaders: dict[int, _LoaderState] = {}
        self._passes = 0  # over any of them

    @contextlib.contextmanager
    def followed_loaders(self) -> Iterator[None]:
        """Hand out the batches that can differ, in this process whatever the workers."""
        plain = DataLoader.__len__

        def length(loader: DataLoader[Any]) -> int:
            """Tell a library as many batches as it gets: it evaluates after the last. The script hears the truth."""
            whole = plain(loader)
            caller = sys._getframe(1).f_code.co_filename  # a progress bar only shows how far a loop is
            of_library = any(part in caller for part in INSTALLED) and _PROGRESS_BARS.isdisjoint(Path(caller).parts)
            by_library = of_library and not isinstance(loader.dataset, IterableDataset)
            self._state(loader).shortened |= by_library
            return min(whole, _FIRST + 1) if by_library else whole

        def batches_of(loader: DataLoader[Any]) -> Batches:
            state = self._state(loader)
            return Batches(functools.partial(self._batches, state), state.length(plain))

        batches = temporary_attribute(DataLoader, "__iter__", batches_of)
        with batches, temporary_attribute(DataLoader, "__len__", length):
            yield

    def _state(self, loader: DataLoader[Any]) -> _LoaderState:
        if id(loader) not in self._loaders:
            self._loaders[id(loader)] = _LoaderState(loader)
        return self._loaders[id(loader)]

    def _batches(self, state: _LoaderState) -> Iterator[Any]:
        if not (state.running and state.loader.persistent_workers):
            state.forked = self._progress.updates, self._log.alive_bytes(_REWRITTEN)
        state.running += 1
        try:
            yield from self._batches_of(state)
        finally:
            self._note_workers()
            state.running -= not state.loader.persistent_workers
            doubt = state.doubt_about_omitted
            if doubt:
                self._progress.note_missed(f"{state.skipped} batches of a loader {doubt}")

    def _batches_of(self, state: _LoaderState) -> Iterator[Any]:
        self._passes += 1
        growth = Growth(self._progress, at_start=True, looks=self._passes <= _LOOKED)
        updates, born = self._progress.updates, len(self._log.storages)

        def goes_on(number: int) -> bool:
            """Return whether a batch is one of the first, or of those after them whose gradients add up."""
            no_update = number < _ADDED_UP and not state.shortened and self._progress.updates == updates
            return number < _FIRST or (no_update and any(s.phase == "backward" for s in self._log.storages[born:]))

        def skip(count: int) -> None:
            growth.count_skipped_rounds(count)
            self._progress.omitted_batches = self._progress.omitted_batches + Counter({id(state): count})
            state.skipped += count
            self._progress.omitted_any = True

        state.skipped = 0
        batches = _SingleProcessDataLoaderIter(_loader_without_workers(state.loader, goes_on, skip, self._progress))
        for number in itertools.count():
            growth.note()
            if isinstance(state.loader.dataset, IterableDataset) and not goes_on(number):
                self._progress.note_missed("a data set without a length, beyond its first batches")
                return
            events = len(self._log.events)
            batch = next(batches, _NOTHING)
            if batch is _NOTHING:
                return
            state.note_batch(batch, self._log.growth_since(events))
            self._note_workers()
            yield batch

    def _note_workers(self) -> None:
        """Keep the most of all workers that run at once, and of the batches that wait for them."""
        running = [loader for loader in self._loaders.values() if loader.running]
        before, workers = self.loading, sum(loader.workers for loader in running)
        waiting = [sum(ends) for ends in zip(*(loader.waiting for loader in running), strict=True)]
        self.loading = LoaderMemory(
            max(before.workers, workers),
            (max(before.batches[0], waiting[0]), max(before.batches[1], waiting[1])),
            copied=max(before.copied, sum(loader.copied for loader in running)),
            anew=max(before.anew, sum(loader.workers for loader in running if loader.starts_anew)),
            old=max(before.old, sum(loader.stale_worker_bytes(self._progress.updates) for loader in running)),
        )


class Batches:
    """The batches of a loader that can differ; whoever asks for more by next() gets some as often as there are any."""

    def __init__(self, restart: Callable[[], Iterator[Any]], most: float) -> None:
        self._restart, self._most = restart, most
        self._batches, self._count = restart(), 0

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Any:
        batch = next(self._batches)
        self._count += 1
        return batch

    def omitted_batch(self) -> Any:
        """Return a batch of those that were omitted."""
        if self._count < self._most:
            self._batches = self._restart()
        return next(self)


def next_or_omitted(plain: Callable[[Any], Any], iterator: Any) -> Any:
    """Return the next item, as next() does where nobody expects an end; plain: what the script calls next."""
    try:
        return plain(iterator)
    except StopIteration:
        if not isinstance(iterator, Batches) or plain is not next:
            raise
    return iterator.omitted_batch()


def _start_method(loader: DataLoader[Any]) -> str:
    """Return how a loader starts its workers; asking for the default without `allow_none` would settle it."""
    context: Any = loader.multiprocessing_context
    chosen = multiprocessing.get_start_method(allow_none=True) if context is None else context.get_start_method()
    return chosen or multiprocessing.get_all_start_methods()[0]


def _plain_bytes(batch: Any) -> int:
    """Return the bytes of arrays and texts in a batch: workers hand them over as they do tensors."""
    leaves = tree_leaves(batch)
    sizes = (len(leaf) if isinstance(leaf, bytes) else getattr(leaf, "nbytes", 0) for leaf in leaves)
    return sum(size for leaf, size in zip(leaves, sizes, strict=True) if not isinstance(leaf, Tensor))


class _LoaderState:
    """A DataLoader of the script: its workers, and the batches that wait for the training."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader  # also keeps its id from being given to another
        self.workers, self._batch = loader.num_workers, 0
        self.starts_anew = bool(loader.num_workers) and _start_method(loader) != "fork"
        self._objects = object_bytes(loader.dataset, with_arrays=self.starts_anew) if loader.num_workers else 0
        self.running = 0  # iterators whose workers are there
        self._making = 0  # B that a batch took as it was made, beside itself
        self.forked = 0, 0  # updates until its workers were there, and B then of what an update writes to
        self.shortened = False  # whether a library asked for its length, and heard the one that it gets
        self.skipped = 0  # batches of this pass that were omitted
        self._sizes: list[Any] = []  # of its first batches

    def length(self, plain: Callable[[DataLoader[Any]], int]) -> float:
        """Return how many batches there are."""
        try:
            return plain(self.loader)
        except (TypeError, NotImplementedError):
            return math.inf

    def note_batch(self, batch: Any, most: int = 0) -> None:
        """Note the size of a batch, and the most that there was while it was made, B."""
        size = sum(tensor.nbytes for tensor in tensors_of(batch)) + _plain_bytes(batch)
        self._batch, self._making = max(self._batch, size), max(self._making, most - size)
        if not self.skipped and len(self._sizes) < _FIRST:
            self._sizes.append(batch_sizes(batch))

    @property
    def copied(self) -> int:
        """B at most of its data that all workers take, as they make a batch too; pickled for them once more."""
        return self.workers * (self._objects + self._making) + self._objects * self.starts_anew

    def stale_worker_bytes(self, updates: int) -> int:
        """Return what its workers keep of the memory that they were born with and updates have written to since, B."""
        return self.forked[1] if self.workers and updates > self.forked[0] and not self.starts_anew else 0

    @property
    def waiting(self) -> tuple[int, int]:
        """B in shared memory, least and most: some are taken before others are ready; the samples of one a worker."""
        if not self.workers:
            return 0, 0
        return self._batch, self.workers * ((self.loader.prefetch_factor or 2) + 2) * self._batch

    @property
    def doubt_about_omitted(self) -> str:
        """Return why batches that were omitted may be larger than those that were seen; "" where they are alike."""
        if not self.skipped or isinstance(self.loader.dataset, TensorDataset):
            return ""
        if getattr(self.loader.collate_fn, "__name__", "") in _STACK:
            if any(sizes != self._sizes[0] for sizes in self._sizes):
                return "whose batches are not of one size"
            alike = self.loader.batch_size or type(self.loader.batch_sampler) is BatchSampler
            if alike and (self.loader.batch_size or getattr(self.loader.batch_sampler, "batch_size", 1)) != 1:
                return ""  # samples of one size: a sampler of the user's own may put the large ones together
            return "" if self._samples_equal_in_size else "of one sample, which may be larger"
        return "" if self._samples_equal_in_size else "with a collate_fn of its own, which may be larger"

    @functools.cached_property
    def _samples_equal_in_size(self) -> bool:
        """Whether all samples, looked at for a while, are of one size, so that any collate_fn makes batches alike."""
        data, began, first = self.loader.dataset, time.process_time(), None
        with contextlib.suppress(Exception), torch.random.fork_rng(devices=[]), _disable_current_modes():
            for number in range(len(data)):  # type: ignore[arg-type]
                sizes = batch_sizes(data[number])
                first = first or sizes
                if sizes != first or time.process_time() - began > _LOOKING_S:
                    return False
            return True
        return False


def _loader_without_workers(
    loader: DataLoader[Any], goes_on: Callable[[int], bool], skip: Callable[[int], None], progress: Progress
) -> DataLoader[Any]:
    """A loader of the same data without workers, of the batches that can differ."""
    same = copy.copy(loader)
    same.__dict__.update(num_workers=0, timeout=0, pin_memory=False, prefetch_factor=None, _iterator=None)
    same.__dict__["persistent_workers"] = False
    if not isinstance(loader.dataset, IterableDataset):
        sampler = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        with unset_fake_temporarily():
            order = _ReducedSampler(loader.dataset, getattr(loader, sampler), goes_on, skip, progress.last_rounds)
            same.__dict__[sampler] = order
        if order.goes_on_for_ever:
            progress.note_missed("a sampler without an end in sight, beyond its first batches")
    stacks = loader.batch_sampler is not None and loader.collate_fn is default_collate
    if stacks and type(loader.dataset) is TensorDataset:
        same.__dict__.update(dataset=_WholeBatchDataset(loader.dataset), collate_fn=list)
    return same


class _WholeBatchDataset:
    """A data set of tensors that gives a batch at once, not each of its samples as a tensor to be stacked."""

    def __init__(self, data: TensorDataset) -> None:
        self._data = data

    def __len__(self) -> int:
        return len(self._data)

    def __getitems__(self, indices: Sequence[int]) -> list[Tensor]:
        """Return the samples of these numbers, as the stacked ones are."""
        places = torch.tensor(indices)
        return [tensor[places] for tensor in self._data.tensors]


class _ReducedSampler:
    """The batches of a sampler that are handed out: those with which it `goes_on`, the longest and the last."""

    def __init__(
        self, data: Any, sampler: Any, goes_on: Callable[[int], bool], skip: Callable[[int], None], last: int
    ) -> None:
        """last: how many batches are handed out at the end."""
        self._goes_on, self._skip = goes_on, skip
        self._rest: Iterator[Any] = iter(())
        self._samples = 0
        numbered = type(sampler) is BatchSampler and _gives_numbers(sampler.sampler)
        samples = _length(sampler.sampler) if numbered else None
        if samples is not None:
            self._batches: Any = _BatchRanges(samples, int(sampler.batch_size), sampler.drop_last)
            self._at_least = {0, len(self._batches) - 1}
            self._samples = min(samples, len(data) if hasattr(data, "__len__") else samples)  # it may take some twice
        else:
            self._rest = iter(sampler)
            self._batches = list(_first_batches(self._rest, _length(sampler)))
            lengths = [len(batch) if hasattr(batch, "__len__") else 0 for batch in self._batches]
            self._at_least = {len(lengths) - 1, lengths.index(max(lengths))} if lengths else set()
        self._at_least.update(range(max(0, len(self._batches) - last), len(self._batches)))
        ahead = next(self._rest, _NOTHING)
        self.goes_on_for_ever = ahead is not _NOTHING
        self._rest = itertools.chain([ahead], self._rest)

    def __iter__(self) -> Iterator[Any]:
        if self.goes_on_for_ever:
            yield from itertools.chain(self._batches, self._rest)
            return
        number = 0
        while number < len(self._batches):
            there = number if self._goes_on(number) else min(place for place in self._at_least if place >= number)
            if there > number:
                self._skip(there - number)
            batch = self._batches[there]
            yield [place % self._samples for place in batch] if isinstance(batch, range) else batch
            number = there + 1


class _BatchRanges:
    """The batches of so many samples by their places, however many there are: a sampler may say 10**10."""

    def __init__(self, samples: int, size: int, drop_last: bool) -> None:
        self._starts, self._samples = range(0, samples - size + 1 if drop_last else samples, size), samples

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, number: int) -> range:
        return range(self._starts[number], min(self._samples, self._starts[number] + self._starts.step))


def _gives_numbers(sampler: Any) -> bool:
    """Return whether a sampler gives numbers of samples; one of the user's may give keys, or pairs with a size."""
    if type(sampler).__module__.startswith("torch."):
        return True
    with contextlib.suppress(Exception):
        return isinstance(next(iter(sampler)), int)
    return True


def _length(sampler: Any) -> int | None:
    """Return how many samples or batches a sampler says it has; None where it, or one within it, does not say."""
    try:
        return len(sampler)
    except (TypeError, NotImplementedError):
        return None


def _first_batches(batches: Iterator[Any], most: int | None) -> Iterator[Any]:
    """Yield the batches of a sampler: as many as it says, or those of so many samples that it must have an end."""
    samples = 0
    for batch in itertools.islice(batches, _MOST_LISTED if most is None else min(most, _MOST_LISTED)):
        yield batch
        samples += len(batch) if hasattr(batch, "__len__") else 1
        if most is None and samples >= _MOST_LISTED:
            return


_PROGRESS_BARS = frozenset(("tqdm", "rich", "alive_progress", "progressbar", "fastprogress", "enlighten"))
