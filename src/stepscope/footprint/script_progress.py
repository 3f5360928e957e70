"""Progress of a script that is followed, and growth of its rounds."""

from __future__ import annotations

import contextlib
import functools
import gc
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves

from stepscope.footprint.script_objects import AddedObjects
from stepscope.record.dry.storage_log import StorageLog
from stepscope.record.fault_boundary import is_foreign
from stepscope.units import bytes_

_MOST_UPDATES = 60
OWN_OF_AN_OP = 2_000  # B at most that this process grows by to follow an op
_SEEN = 3  # ends of rounds at which arrays are looked at
_WORTH = 10_000_000  # B of what rounds make anew that are worth a word
_FEWER_OBJECTS, _LATER, _WITHOUT_COLLECTION = 2, 20, 1 << 62  # rounds
_OWN = 30_000_000  # B besides; 0 to 10 MB were seen after the first update


class Progress:
    """Updates that a script made, and what was not followed, in words.

    allowed: updates until it is left. omitted_batches: their number by loader. rest_unknown: whether what was not
    followed may take more than what was, such as an evaluation.
    """

    def __init__(self, log: StorageLog) -> None:
        self.log = log
        self.updates, self.allowed, self.omitted_batches = 0, _MOST_UPDATES, Counter[int]()
        self.rest_unknown = False
        self.omitted_any = False  # whether rounds or batches were omitted
        self.ended_early = False  # whether a `while` was
        self.last_rounds = 1  # of a loop; 2 where a branch is taken by force: what it changes works in the next round
        self.times = 0.0  # how many were omitted for each that was followed, at most
        self.missed: list[str] = []
        self.arrays: Callable[[], tuple[int, int]] = lambda: (0, 0)  # of arrays and texts now: bytes and number
        self.arrays_kept = 0  # B at most that rounds keep which were omitted
        self.kept: dict[tuple[int, int], tuple[int, float]] = {}  # by container: its length, and what it would hold, B
        self.objects_kept = 0  # B at most of that, of what is kept at once
        self.arrays_of_rounds: dict[int, int] = {}  # the same by how many rounds were followed

    @property
    def update_and_eval_counts(self) -> tuple[int, int]:
        """Return the updates and the evaluations so far."""
        return self.updates, self.log.evaluations

    def note_missed(self, what: str) -> None:
        """Note what was not followed, once."""
        if what not in self.missed:
            self.missed.append(what)

    def keep_objects(self, added: AddedObjects, skipped: int) -> None:
        """Count what skipped rounds would add to containers as long as these are there: others go with their round."""
        lengths = added.lengths
        self.kept = {key: row for key, row in self.kept.items() if lengths.get(key, 0) >= row[0]}
        for key, size in added.bytes_per_round().items():
            length, before = self.kept.get(key, (lengths[key], 0.0))
            self.kept[key] = lengths[key], size * skipped + before * (lengths[key] > length)
        self.objects_kept = max(self.objects_kept, round(sum(size for _, size in self.kept.values())))

    @contextlib.contextmanager
    def allow_extra_updates(self) -> Iterator[None]:
        """Allow as many updates again, for a round that is followed besides the first ones and the last."""
        self.allowed += _MOST_UPDATES
        before = self.updates
        yield
        self.allowed -= max(0, _MOST_UPDATES - (self.updates - before))


class Growth:
    """Memory that each round of a loop keeps (outputs, losses with their graphs, models), by three ends of rounds.

    A first state, or a batch that is fetched ahead, is kept by one round alone and is no growth. Where rounds make what
    they keep anew (`bank = torch.cat([bank, rows])`), a round also takes more by that, while it runs.
    """

    def __init__(self, progress: Progress, at_start: bool = False, looks: bool = True) -> None:
        """at_start: whether the first note is of the start of the first round, not of its end. looks: at arrays too."""
        self._progress, self._log, self._first = progress, progress.log, int(at_start)
        self._resident = self._ops = 0  # at the end of the first round
        self._ends: list[tuple[int, int]] = []  # B that are live, and how many storages there were until then
        self._newest: list[Counter[int]] = []  # sizes of the storages that a round made and left
        self._last: list[_LastRound] = []
        self._work = progress.update_and_eval_counts
        self._objects = AddedObjects()
        self._arrays: list[tuple[int, int]] = []  # bytes and number at the ends of the first rounds that did any
        self._looks = looks

    def note(self) -> None:
        """Note the end of a round."""
        self._last.clear()
        if len(self._ends) <= self._first:
            self._resident, self._ops = resident_bytes(), self._log.ops
        if self._looks and self._progress.update_and_eval_counts != self._work and len(self._arrays) < _SEEN:
            self._work = self._progress.update_and_eval_counts
            self._arrays.append(self._progress.arrays())
            self._objects.look()
        self._newest.append(self._log.sizes_since(self._ends[-1][1]) if self._ends else Counter())
        self._ends.append((self._log.alive_bytes(), len(self._log.storages)))

    @property
    def rounds(self) -> int:
        """Return how many were noted."""
        return len(self._ends)

    @property
    def last(self) -> int:
        """Return by how much more there is at the end of the last round than one before, B."""
        return self._ends[-1][0] - self._ends[-2][0] if len(self._ends) > 1 else 0

    @property
    def bytes_per_round(self) -> int:
        """Return what each of the last rounds kept, B; 0 of less than three."""
        ends = self._ends[-3:]
        grown = [after - before for (before, _), (after, _) in itertools.pairwise(ends)]
        return max(0, min(grown)) if len(ends) == 3 else 0

    def count_skipped_rounds(self, skipped: int) -> None:
        """Count for skipped rounds what each keeps, for as long as what the last but one has kept is there."""
        self._progress.times = max(self._progress.times, skipped / max(1, len(self._ends)))
        self._note_untracked_growth(skipped)
        self._keep_arrays(skipped)
        self._progress.keep_objects(self._objects, skipped)
        ends, growth = self._ends[-3:], self.bytes_per_round
        if growth <= 0 or skipped <= 0:
            return
        alive, unreachable = self._log.alive_bytes(), gc.collect()
        freed = (alive - self._log.alive_bytes()) // (len(self._ends) - 1)  # the last round's is not garbage yet
        if freed > 0:
            self._count_garbage(max(growth, freed), min(skipped, _rounds_to_collection(unreachable / len(self._ends))))
            growth -= freed
        if growth > 0:
            holder = self._log.largest_of(ends[0][1], ends[1][1])
            self._log.represent_more(ends[0][1], ends[1][1], skipped)
            largest = 0 if holder is None else holder.nbytes()
            self._log.add_extra_bytes(growth * skipped, f"kept by {skipped} rounds of a loop", holder, largest)
        larger, smaller = self._newest[-1] - self._newest[-2], self._newest[-2] - self._newest[-1]
        anew = min(growth, max(larger) - max(smaller)) if larger and smaller else 0
        if anew * skipped > _WORTH:  # in place of the one before, not beside it
            self._progress.note_missed(f"what is computed from what {skipped} rounds of a loop add to")
            self._last.append(_LastRound())
            self._log.add_extra_bytes(
                anew * skipped, f"made anew by each of {skipped} rounds of a loop", self._last[-1]
            )

    def _count_garbage(self, size: int, rounds: int) -> None:
        """Count what so many rounds leave in cycles of references, which goes by itself some rounds later."""
        self._last.append(_LastRound())
        self._log.add_extra_bytes(size * rounds, f"left in cycles by {rounds} rounds", self._last[-1], size)
        if size * rounds > _WORTH:
            text = f"{rounds} rounds before Python collects the cycles of references that each leaves: {bytes_(size)}"
            self._progress.note_missed(text)

    def _keep_arrays(self, skipped: int) -> None:
        grown = [after - before for (before, _), (after, _) in itertools.pairwise(self._arrays)]
        if len(grown) < _SEEN - 1 or min(grown) <= 0:
            return
        anew = len({number for _, number in self._arrays}) == 1  # as many: larger ones, made of those before
        self._progress.arrays_kept += min(grown) * skipped * (2 if anew else 1)
        self._progress.arrays_of_rounds[len(self._ends) - self._first + 1] = min(grown) * skipped

    def _note_untracked_growth(self, skipped: int) -> None:
        """Say where this process grew within rounds that are seen, by what is no tensor: a replay buffer, a cache."""
        own = _OWN + OWN_OF_AN_OP * (self._log.ops - self._ops)
        grown = resident_bytes() - self._resident - own
        if skipped > 0 and len(self._ends) > 1 and grown > 0:
            self._progress.note_missed(
                f"what {skipped} rounds keep beside tensors: {len(self._ends)} took {bytes_(grown)}"
            )


def _rounds_to_collection(objects: float) -> int:
    """Return after how many rounds at most Python collects the garbage of those that leave so many objects each.

    A real round leaves fewer than one that is followed; those that were in use at a collection wait for a later one.
    """
    threshold = gc.get_threshold()[0] if gc.isenabled() else 0
    return round(_FEWER_OBJECTS * threshold / max(1.0, objects)) + _LATER if threshold else _WITHOUT_COLLECTION


class _LastRound:
    """What lasts as long as the round after those that were omitted."""


def resident_bytes(at_most: bool = False, process: str = "self") -> int:
    """Return the resident memory of a process, now or at its highest, B; 0 where the system does not say."""
    try:
        text = Path(f"/proc/{process}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    name = "VmHWM:" if at_most else "VmRSS:"
    return next((int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith(name)), 0)


@contextlib.contextmanager
def temporary_attribute(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Give an attribute another value for a while."""
    plain = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, plain)


@contextlib.contextmanager
def note_compiled_models(progress: Progress) -> Iterator[None]:
    """Say where a model is compiled or traced: it is followed as it is written, kernels that are generated are not."""

    def watched(plain: Callable[..., Any]) -> Callable[..., Any]:
        def compiled(*arguments: Any, **options: Any) -> Any:
            of_a_model = bool(arguments) and isinstance(arguments[0], torch.nn.Module)
            if of_a_model or is_foreign(sys._getframe(1).f_code.co_filename):
                progress.note_missed("what torch.compile makes of it")
            return plain(*arguments, **options)

        return compiled

    def trace(plain: Callable[..., Any], func: Any, example_inputs: Any = None, *more: Any, **options: Any) -> Any:
        inputs = example_inputs if isinstance(example_inputs, (tuple, list)) else (example_inputs,)
        if not any(isinstance(leaf, FakeTensor) for leaf in tree_leaves(inputs)):
            return plain(func, example_inputs, *more, **options)
        progress.note_missed("what torch.jit.trace makes of it")
        func(*inputs)
        with torch.no_grad():  # it compares what both give
            _both = func(*inputs), func(*inputs)
        return _Traced(func)

    of_models = temporary_attribute(torch.nn.Module, "compile", watched(torch.nn.Module.compile))
    traces = temporary_attribute(torch.jit, "trace", functools.partial(trace, torch.jit.trace))
    with temporary_attribute(torch, "compile", watched(torch.compile)), of_models, traces:
        yield


class _Traced(torch.nn.Module):
    """A model in the place of what torch.jit.trace makes of it: a trace has no sizes of tensors without numbers."""

    def __init__(self, traced: Callable[..., Any]) -> None:
        super().__init__()
        self.traced = traced

    def forward(self, *inputs: Any) -> Any:
        return self.traced(*inputs)

    def save(self, file: Any, **_options: Any) -> None:
        torch.save(self.state_dict(), file)
