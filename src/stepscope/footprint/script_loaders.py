"""DataLoaders of a script: each hands out its first batches and its last, in this process whatever its workers."""

from __future__ import annotations

import contextlib
import copy
import itertools
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils._pytree import tree_leaves
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from stepscope.footprint.script_progress import Growth, Progress, instead
from stepscope.footprint.simulator import Loading

_FIRST = 3  # batches of a loader, before its last: a batch that is fetched ahead and a first state are no growth


class Loaders:
    """The loaders of one script while it is followed; `loading` is what their workers take."""

    def __init__(self, progress: Progress) -> None:
        self.loading = Loading()
        self._progress, self._log = progress, progress.log
        self._loaders: dict[int, _Loader] = {}

    @contextlib.contextmanager
    def own_loaders(self) -> Iterator[None]:
        """Hand out the batches that can differ, in this process whatever the workers."""
        plain = DataLoader.__len__

        def length(loader: DataLoader[Any]) -> int:
            """Tell a library as many batches as it gets: it evaluates after the last. The script hears the truth."""
            whole = plain(loader)
            by_library = not isinstance(loader.dataset, IterableDataset) and _is_library(sys._getframe(1))
            return min(whole, _FIRST + 1) if by_library else whole

        batches = instead(DataLoader, "__iter__", lambda loader: self._batches(loader))
        with batches, instead(DataLoader, "__len__", length):
            yield

    def _batches(self, loader: DataLoader[Any]) -> Iterator[Any]:
        known = self._loaders.get(id(loader))
        if known is None:
            known = self._loaders[id(loader)] = _Loader(loader)
        known.running += 1
        try:
            yield from self._batches_of(known)
        finally:
            known.running -= not loader.persistent_workers

    def _batches_of(self, known: _Loader) -> Iterator[Any]:
        loader = known.loader
        alone, skipped = _alone(loader)
        growth, batches = Growth(self._log), iter(_iterator_of(alone))
        for number in itertools.count():
            growth.note()
            if number == _FIRST:
                if skipped is None:
                    self._progress.miss("a data set without a length, beyond its first batches")
                    return
                growth.keep(skipped)
            batch = next(batches, None)
            if batch is None:
                return
            known.see(batch)
            self._note_workers()
            yield batch

    def _note_workers(self) -> None:
        """Keep the most of all workers that run at once, and of the batches that wait for them."""
        running = [loader for loader in self._loaders.values() if loader.running]
        before, workers = self.loading, sum(loader.workers for loader in running)
        waiting = [sum(ends) for ends in zip(*(loader.waiting for loader in running), strict=True)]
        self.loading = Loading(
            max(before.workers, workers),
            (max(before.batches[0], waiting[0]), max(before.batches[1], waiting[1])),
        )


class _Loader:
    """A DataLoader of the script: its workers, and the batches that wait for the training."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader  # also keeps its id from being given to another
        self.workers, self._batch = loader.num_workers, 0
        self.running = 0  # iterators whose workers are there

    def see(self, batch: Any) -> None:
        """Note the size of a batch."""
        size = sum(leaf.nbytes for leaf in tree_leaves(batch) if isinstance(leaf, Tensor))
        self._batch = max(self._batch, size)

    @property
    def waiting(self) -> tuple[int, int]:
        """B in shared memory, least and most: some are taken before others are ready; the samples of one a worker."""
        if not self.workers:
            return 0, 0
        return self._batch, self.workers * ((self.loader.prefetch_factor or 2) + 2) * self._batch


def _alone(loader: DataLoader[Any]) -> tuple[DataLoader[Any], int | None]:
    """A loader of the same data without workers, of the batches that can differ, and how many it skips.

    None where the data have no length.
    """
    same = copy.copy(loader)
    same.__dict__.update(num_workers=0, timeout=0, pin_memory=False, prefetch_factor=None, _iterator=None)
    same.__dict__["persistent_workers"] = False
    if isinstance(loader.dataset, IterableDataset):
        return same, None
    with unset_fake_temporarily():
        sampler = "batch_sampler" if loader.batch_sampler is not None else "sampler"
        chosen, count = _differing(getattr(loader, sampler))
    same.__dict__[sampler] = chosen
    return same, count - len(chosen)


def _differing(sampler: Any) -> tuple[list[Any], int]:
    """The first, the longest and the last of what a sampler gives, and how many those are."""
    if type(sampler) is BatchSampler and hasattr(sampler.sampler, "__len__"):
        samples, size = len(sampler.sampler), int(sampler.batch_size)  # type: ignore[arg-type]
        starts = range(0, samples - size + 1 if sampler.drop_last else samples, size)
        chosen = [*starts[:_FIRST], *starts[max(_FIRST, len(starts) - 1) :]]
        return [list(range(start, min(samples, start + size))) for start in chosen], len(starts)
    every = list(sampler)
    chosen = [*every[:_FIRST], *every[max(_FIRST, len(every) - 1) :]]
    longest = max(every, key=lambda batch: len(batch) if hasattr(batch, "__len__") else 0, default=None)
    return ([*chosen[:-1], longest, chosen[-1]] if longest not in (None, *chosen) else chosen), len(every)


def _is_library(frame: types.FrameType) -> bool:
    return any(part in ("site-packages", "dist-packages") for part in Path(frame.f_code.co_filename).parts)


def _iterator_of(loader: DataLoader[Any]) -> Any:
    from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

    return _SingleProcessDataLoaderIter(loader)
