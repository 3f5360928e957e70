"""Dry runs of one request: the live peak, the peak of the process or of a GPU, and the largest batch that fits."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import polars as pl
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from stepscope.analysis.memory.events import peak
from stepscope.analysis.memory.limits import (
    ADDRESSES,
    ALWAYS_MAPPED,
    CHARGED,
    DATA,
    MARGIN,
    RESIDENT,
    Allocator,
    BaselineMemory,
    Limit,
    ProcessPeak,
    allocator_of,
    process_peak,
    worst_verdict,
)
from stepscope.footprint.calibration import DeviceCalibration
from stepscope.footprint.cuda_allocator import replay_allocations
from stepscope.footprint.cuda_settings import Settings, parse_settings
from stepscope.footprint.result import PRODUCTS, Holder, LivePeak, ScenePeak, code_bytes, kernel_code
from stepscope.record.dry import Job, Optimizers
from stepscope.record.dry.dry_run import Change, DryRun, DryRunStopped, dry_run
from stepscope.record.dry.platform import Platform
from stepscope.record.dry.storage_log import Storage, StorageLog, peak_of
from stepscope.record.dry.workspaces import Workspaces

# A training as a GPU would dispatch it, and what it takes of the GPU's memory beside its tensors.
#
# The dry run goes through the CPU's dispatch; three things that CUDA does otherwise are put in: optimizers take all
# parameters in one call (foreach), dropout keeps a mask of one byte an element, and attention with dropout stays
# fused. cuBLAS keeps a workspace for each thread that multiplies: forward's and backward's, none where nothing does.
# Recordings of GPUs showed two of 8,519,680 B, on Hopper two of 33,554,432 B (`benchmarks/cuda_snapshots.py`).

_CUBLAS = (8_519_680, 33_554_432)  # B of a workspace: least, most
_THREADS = 2
_SCALAR = 8  # B at the most; an optimizer's count of steps lies on the host

# What 11 trainings reserved on an H100 beside the simulated ends (`benchmarks/cuda_memory.py`): as little as 0.97 of
# the least, and up to 21 MB more than the most, since small requests come in another order than in a dry run.
_RESERVED_LESS, _RESERVED_MORE, _RESERVED_SEGMENT = 0.95, 1.05, 20 << 20

# Taken by the driver and by kernels that are loaded, beside the allocator's segments. Loaded lazily (CUDA 11.7 and
# later) 0.2 to 0.7 GB are reported, and 661 MB (without cuBLAS) to 797 were seen on an H100 with CUDA 13.
CONTEXT = (200_000_000, 900_000_000)
CONTEXT_OF_A_BOARD = (200_000_000, 1_200_000_000)
LIBRARIES_ON_HOST = (0, 2_000_000_000)  # cuDNN and cuBLAS bring their code into the host's memory, on a board the same


def use_foreach(change: Change | None = None) -> Change:
    """Return a change of a dry run's copy, after another one: optimizers that nobody told otherwise use foreach."""

    def apply(model: nn.Module, optimizers: Optimizers) -> Optimizers:
        changed = optimizers if change is None else change(model, optimizers)
        choosing = (optimizer for optimizer in changed if not isinstance(optimizer, _ONE_BY_ONE))
        for group in (group for optimizer in choosing for group in optimizer.param_groups):
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True
        return changed

    return apply


# Optimizers that take their parameters one by one on a GPU too, unless told otherwise.
_ONE_BY_ONE = tuple(getattr(torch.optim, name) for name in ("Adafactor", "Muon") if hasattr(torch.optim, name))


def as_on_cuda(job: Job) -> Job:
    """Return the job with what dropout and attention do on a GPU."""

    def step(model: nn.Module, optimizers: Optimizers, batch: Any) -> None:
        with _CudaDispatchMode(), _autocast_of_cuda():
            job.step(model, optimizers, batch)

    return replace(job, step=step)


@contextlib.contextmanager
def _autocast_of_cuda() -> Iterator[None]:
    """Let `torch.autocast("cuda")` cast tensors of the dry run, which lie on the CPU."""
    plain = torch.autocast.__init__

    def init(self: Any, device_type: str, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        if device_type == "cuda":
            device_type, dtype = "cpu", dtype or torch.get_autocast_dtype("cuda")
        plain(self, device_type, dtype, *args, **kwargs)

    torch.autocast.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        torch.autocast.__init__ = plain  # type: ignore[method-assign]


@contextlib.contextmanager
def _call_not_overridden() -> Iterator[None]:
    """Let the next function of torch.nn.functional that asks whether a mode takes its place go on itself."""
    plain: Any = nn.functional.has_torch_function  # type: ignore[attr-defined]

    def answer_once(_tensors: Any) -> bool:
        nn.functional.has_torch_function = plain  # type: ignore[attr-defined]
        return False

    nn.functional.has_torch_function = answer_once  # type: ignore[attr-defined]
    try:
        yield
    finally:
        nn.functional.has_torch_function = plain  # type: ignore[attr-defined]


class _CudaDispatchMode(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is nn.functional.multi_head_attention_forward:
            with self, _call_not_overridden():  # for what its body calls: a mode is off while it is asked
                return func(*args, **kwargs)
        if func is nn.functional.dropout:
            arguments = {**dict(zip(_DROPOUT, args, strict=False)), **kwargs}
            if arguments.get("training", True) and 0 < arguments.get("p", 0.5) < 1 and not arguments.get("inplace"):
                return torch.native_dropout(arguments["input"], arguments.get("p", 0.5), True)[0]
        if func is nn.functional.scaled_dot_product_attention:
            return func(**{**dict(zip(_ATTENTION, args, strict=False)), **kwargs, "dropout_p": 0.0})
        return func(*args, **kwargs)


_DROPOUT = ("input", "p", "training", "inplace")
_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")


def reserved_of(log: StorageLog, settings: Settings) -> tuple[int, int]:
    """Return least and most that the caching allocator reserves for a log, B.

    cuDNN and cuBLAS decide how much they take: the log is replayed with the least and with the most of it.
    """
    events = [(number, sign) for _, _, number, sign in log.events if not _is_on_host(log.storages[number])]
    threads = _THREADS if any(storage.op in PRODUCTS for storage in log.storages) else 0
    ends = []
    for bound, cublas in zip(("low", "high"), _CUBLAS, strict=True):
        sizes = [int(getattr(storage, bound)) for storage in log.storages]
        first = len(sizes)
        sizes += [cublas] * threads
        ends.append(replay_allocations([*((first + n, +1) for n in range(threads)), *events], sizes, settings).peak)
    return round(_RESERVED_LESS * min(ends)), round(_RESERVED_MORE * max(ends)) + _RESERVED_SEGMENT


def _is_on_host(storage: Storage) -> bool:
    return storage.category == "optimizer" and storage.bytes <= _SCALAR


# Dry runs of one request: the live peak, the peak of the process, and the largest batch that fits.

_PARTLY_TOUCHED = 1.02  # of what is resident lies in a heap: so much of it is never written to that holes cost little
_FEWER_HOLES = 0.06  # of a heap: what is freed early leaves room, which may be used again
_SURELY_ABOVE = 1.15  # times the least of a heap that gives hardly anything back: its most, however much lies in it
_HOLES_OF_SAVING = 0.9  # of a heap of which a share is saved by running forward again, so much more at the least
_CODE_WITHOUT_FILE = 0.3  # of kernels' code at the least: primitives and autograd; the rest lies in files of torch
_PAGE_TABLES = 0.004  # of resident bytes: 8 B of each page of 4 KiB, and as much for what the kernel notes of it
_STACK, _ARENA = 8 << 20, 64 << 20  # of a thread, as Linux and glibc have it, B
_OF_A_NEW_WORKER = 0.5  # of an empty process's pages without a file, at the least; 0.68 was measured
_ADDRESSES_OF_A_KERNEL = 1_500_000  # B at most: primitives of oneDNN take 256 KiB each and use little of them


@dataclass(frozen=True)
class LoaderMemory:
    """Memory of a data loader and the data beside the tensors: workers, batches that wait, arrays that are no tensors.

    B, least and most; `batches` lie in shared memory, and once more in the workers that make them. `earlier`: at most
    before the first update, all that is beyond an empty process, as tables that come and go. `copied`: at most
    by all workers, of Python's objects of the data (who looks at one counts a reference in it, and so writes to its
    page), and as they make a batch. `old`: at most what workers keep of the memory that they were born with, once the
    training has written to it. `anew`: workers that are no forks (spawn, forkserver): each imports all that the script
    does, and has the data unpickled. `mapped`: of files (np.memmap), whose pages the kernel takes back before it kills.
    """

    workers: int = 0  # at once
    batches: tuple[int, int] = (0, 0)
    arrays: tuple[int, int] = (0, 0)
    earlier: int = 0
    copied: int = 0
    old: int = 0
    workers_at_most: int = 0  # where another pass through the script has more
    anew: int = 0
    mapped: tuple[int, int] = (0, 0)

    def or_more(self, other: LoaderMemory) -> LoaderMemory:
        """Return this one, at the most as much as another."""
        batches, arrays = (
            (self.batches[0], max(self.batches[1], other.batches[1])),
            (self.arrays[0], max(self.arrays[1], other.arrays[1])),
        )
        return replace(
            self, batches=batches, arrays=arrays, workers_at_most=max(self._most, other._most),
            earlier=max(self.earlier, other.earlier), copied=max(self.copied, other.copied),
            old=max(self.old, other.old), anew=max(self.anew, other.anew),
            mapped=(self.mapped[0], max(self.mapped[1], other.mapped[1])),
        )  # fmt: skip

    def bytes(self, environment: BaselineMemory) -> tuple[int, int]:
        """Return the bytes of all workers: what each has for itself, batches that wait, and data."""
        low, high = environment.worker
        of_a_new_one = max(low, round(_OF_A_NEW_WORKER * environment.charged[0])), max(high, environment.resident[1])
        anew = min(self.anew, self.workers)
        low = (self.workers - anew) * low + anew * of_a_new_one[0] + self.batches[0]
        high = (self._most - self.anew) * high + self.anew * of_a_new_one[1] + self.batches[1]
        return low, high + self.copied + self.old

    def private_bytes(self, account: str) -> tuple[int, int]:
        """Return what workers add to an account that has each process by itself: how their batches come here.

        The training has a thread a worker that hands out work, with its stack and, in addresses, an arena of glibc's.
        """
        arena = _ARENA if account == ADDRESSES else 0
        return 0, self._most * (_STACK + arena) + (self.batches[1] if account == ADDRESSES else 0)

    @property
    def _most(self) -> int:
        return max(self.workers, self.workers_at_most)


class Simulator:
    """Dry runs of one question, and what their live bytes mean for a process."""

    def __init__(self, platform: Platform, calibration: DeviceCalibration, allocator: str) -> None:
        self.on_gpu = platform.kind == "cuda"
        self.allocator = allocator_of("default" if self.on_gpu else allocator)
        self.allocator_name = allocator
        settings = parse_settings("" if allocator == "default" else allocator) if self.on_gpu else None
        self.reserve = None if settings is None else partial(reserved_of, settings=settings)
        self.workspaces = Workspaces(platform, calibration.probed)
        self._calibration = calibration
        self.loading = LoaderMemory()

    @property
    def measured(self) -> bool:
        """Return whether the environment of the training is known from a measurement."""
        return self._calibration.environment.measured

    def run(self, job: Job, batch: int, change: Change | None = None) -> DryRun:
        """A dry run; DryRunStopped where it cannot be made."""
        if self.reserve is None:
            return dry_run(job, batch, self.workspaces, change)
        run = dry_run(as_on_cuda(job), batch, self.workspaces, use_foreach(change))
        run.log.reserve = self.reserve
        return run

    def _process_on_gpu(self, live: LivePeak, reserved: tuple[int, int]) -> ProcessPeak:
        """What a GPU's memory holds: segments and context. A board has one memory, also for the host's process."""
        beyond = (reserved[0] - live.low, reserved[1] - live.high)
        if self.workspaces.platform.is_known:
            return ProcessPeak((live.low, live.high), beyond, CONTEXT, (0, 0))
        host, context = self._calibration.environment.resident, CONTEXT_OF_A_BOARD
        beside = (host[0] + context[0], host[1] + context[1])
        return ProcessPeak((live.low, live.high), beyond, beside, LIBRARIES_ON_HOST)

    def peak_of_process(
        self,
        live: LivePeak,
        allocator: Allocator | None = None,
        plain: LivePeak | None = None,
        account: str = RESIDENT,
    ) -> ProcessPeak:
        """Peak of the process of these live bytes by an account, corrected by what probes of this device have shown.

        `plain`: the same training where nothing runs forward again; its heap bounds that of one where something does.
        """
        if live.reserved is not None:
            return self._process_on_gpu(live, live.reserved)
        by = allocator or self.allocator
        if by.holes and live.code is not None and live.code.recomputes:
            by = _allocator_when_recomputing(by, live, plain)
        most = max(live.high, live.high_in_heap) if by.holes else live.high
        if most > _PARTLY_TOUCHED * live.high:
            by = replace(by, low=1.0)
        low, high = self._calibration.widened_by_errors(live.low, most)
        platform = self.workspaces.platform
        code = code_bytes(live.code, platform)
        if account in (ADDRESSES, DATA):  # what is asked for counts, touched or not
            low, high = live.least or live.bytes, max(live.bytes, live.most, high)
            code = (code[0], code[1] + _ADDRESSES_OF_A_KERNEL * (live.code.backward_kernels if live.code else 0))
        if account == CHARGED:
            code = (round(_CODE_WITHOUT_FILE * code[0]), code[1] + round(_PAGE_TABLES * high))
        environment, loading = self._calibration.environment, self.loading
        own, hole, mark = environment.of(account), live.largest_hole, live.heap_mark
        peak = process_peak((low, high), live.mapped, by, own, code, hole, mark)
        alone = account in (ADDRESSES, DATA)
        workers = loading.private_bytes(account) if alone else loading.bytes(environment)
        mapped = loading.mapped if account == ADDRESSES else (0, 0)
        earlier = loading.earlier - peak.live[1] - peak.allocator[1] - peak.code[1]
        data = loading.arrays[0] + mapped[0], max(loading.arrays[1], earlier) + mapped[1]
        return replace(peak, data=data, workers=workers)

    def verdict(self, live: LivePeak, limit: Limit, sure: bool, allocator: Allocator | None = None) -> str:
        """The worst of the verdicts under a limit and those beside it."""
        return worst_verdict(lambda account: self.peak_of_process(live, allocator, None, account), limit, sure)[0]

    def largest(self, job: Job, limit: Limit, start: int, peaks: dict[int, LivePeak] | None = None) -> tuple[int, int]:
        """The largest batches that surely and that likely fit: the interval's upper end with a margin, its middle.

        known: live peaks by batch, to which those of its own dry runs are added.
        """
        peaks = {} if peaks is None else peaks

        def peak(batch: int, account: str) -> ProcessPeak:
            if batch not in peaks:
                peaks[batch] = live_peak(self.run(job, batch).log)
            return self.peak_of_process(peaks[batch], account=account)

        def runs(batch: int) -> bool:
            with contextlib.suppress(DryRunStopped):
                return peak(batch, RESIDENT) is not None
            return False

        def of_units(count: int, account: str) -> ProcessPeak:
            return peak(count * unit, account)

        unit = _batch_multiple(runs, start)
        first = max(1, start // unit)
        # batch statistics of a single pixel need two samples, and what was asked for is known to run
        smallest = next((count for count in (1, 2) if runs(count * unit)), first)
        batches = [_largest_sure_and_likely(of_units, single, first, smallest) for single in limit.all]
        return unit * min(sure for sure, _ in batches), unit * min(likely for _, likely in batches)


def _batch_multiple(runs: Callable[[int], bool], start: int) -> int:
    """Return of how many samples batches are multiples, as a model's groups may want: 1 where any number runs."""
    if runs(start + 1):
        return 1
    powers = [1 << power for power in range(1, start.bit_length()) if start % (1 << power) == 0]
    return next((unit for unit in (*powers, start) if runs(unit) and runs(start + unit)), 1)


def _allocator_when_recomputing(by: Allocator, live: LivePeak, plain: LivePeak | None) -> Allocator:
    """Return an allocator that gives hardly anything back: what the second forward keeps lies in between."""
    low = by.low - _FEWER_HOLES
    if plain is None:
        return replace(by, low=low, high=max(by.high, by.high_recomputed))
    saved = max(0.0, 1 - live.bytes / plain.bytes)
    as_before = by.high * plain.bytes / live.bytes
    low, high = low + _HOLES_OF_SAVING * saved, max(by.high, min(by.high_recomputed, as_before))
    return replace(by, low=low, high=high, high_of_much=max(by.high_of_much, min(high, _SURELY_ABOVE * low)))


_NO_SUCH_BATCH = 1 << 62  # B: fits nowhere


def _largest_sure_and_likely(
    peak: Callable[[int, str], ProcessPeak], limit: Limit, start: int, smallest: int
) -> tuple[int, int]:
    by = limit.account

    def of(batch: int, end: str) -> int:
        try:
            return int(getattr(peak(batch, by), end))
        except DryRunStopped:
            if batch <= smallest:
                raise
            return _NO_SUCH_BATCH  # whoever makes it has not so many samples

    sure = largest_batch(lambda batch: of(batch, "high"), limit.bytes * (1 - MARGIN), start, smallest)
    likely = largest_batch(lambda batch: of(batch, "middle"), limit.bytes, max(start, sure), smallest)
    return sure, max(sure, likely)


_LARGEST_HOLDERS = 20


def live_peak(log: StorageLog) -> LivePeak:
    """The first moment with the most live bytes; ValueError where nothing was ever alive."""
    moment = peak(log.frame())
    if moment is None:
        raise ValueError("a step without a tensor has no peak")
    tensors = moment.tensors
    by_module = tensors.drop_nulls("module").group_by("module").agg(pl.col("bytes").sum())
    largest = tensors.head(_LARGEST_HOLDERS).select("bytes", "category", "module", "op", "shape")
    return LivePeak(
        moment.bytes,
        peak_of(log, "low"),
        peak_of(log, "high"),
        _most_mapped_bytes(log),
        moment.op or "",
        moment.module,
        moment.phase or "",
        moment.step,
        _bytes_by(moment.categories, "category"),
        _bytes_by(by_module, "module"),
        tuple(Holder(*row) for row in largest.rows()),
        kernel_code(log),
        _largest_hole(log),
        peak_of(log, _in_heap),
        _heap_and_mapped_at_peak(log),
        peak_of(log, "least"),
        peak_of(log, "most"),
        None if log.reserve is None else log.reserve(log),
    )


def scene_peaks(log: StorageLog) -> tuple[ScenePeak, ...]:
    """The most live bytes of each thing that a program does, in the order in which it first does it."""
    starts = [*log.scenes, (len(log.events), "")]
    most: dict[str, ScenePeak] = {}
    alive = 0
    for (start, name), (end, _) in itertools.pairwise(starts):
        best, by = most[name].bytes if name in most else -1, -1
        if alive > best:
            best, by = alive, max(0, start - 1)
        for place in range(start, end):
            _, _, number, sign = log.events[place]
            alive += sign * log.storages[number].bytes
            if alive > best:
                best, by = alive, place
        if by >= 0 and log.events:
            storage = log.storages[log.events[by][2]]
            most[name] = ScenePeak(name, best, storage.op, storage.module)
    return tuple(most.values())


def _most_mapped_bytes(log: StorageLog) -> int:
    """Return what is resident at the peak of blocks that glibc maps one by one, B."""
    alive = most = mapped = at_peak = 0
    for _, _, number, sign in log.events:
        storage = log.storages[number]
        alive += sign * storage.bytes
        mapped += sign * storage.high if _is_mapped(storage) else 0
        if alive > most:
            most, at_peak = alive, mapped
    return at_peak


def _largest_hole(log: StorageLog) -> int:
    """The largest block that comes and goes in glibc's heap, B; one that is not all written to costs less."""
    ended = (log.storages[number] for _, _, number, sign in log.events if sign < 0)
    whole = (storage.largest or storage.bytes for storage in ended if storage.high == storage.bytes < ALWAYS_MAPPED)
    return max(whole, default=0)


def _heap_and_mapped_at_peak(log: StorageLog) -> tuple[int, int]:
    """The most that lay in glibc's heap, and what is mapped then or later, where both together are most, B."""
    heap = mark = mapped = 0
    largest = (0, 0)
    for _, _, number, sign in log.events:
        storage = log.storages[number]
        if not _is_mapped(storage):
            heap += sign * storage.bytes
            mark = max(mark, heap)
        else:
            mapped += sign * storage.high
        largest = max(largest, (mark, mapped), key=sum)
    return largest


def _in_heap(storage: Storage) -> int:
    return storage.high if _is_mapped(storage) else storage.bytes


def _is_mapped(storage: Storage) -> bool:
    return (storage.largest or storage.bytes) >= ALWAYS_MAPPED


def _bytes_by(frame: pl.DataFrame, by: str) -> dict[str, int]:
    rows = frame.filter(pl.col("bytes") > 0).sort("bytes", descending=True).select(by, "bytes").rows()
    return {str(name): int(size) for name, size in rows}


_LINES = 5  # dry runs at guesses of a line, before halving makes sure of an end
MOST = 1 << 20  # samples: beyond this nobody trains on a small device
Peak = Callable[[int], int]  # the most that a process may take with so many samples, B


def largest_batch(peak: Peak, limit: float, start: int, smallest: int = 1) -> int:
    """The largest batch whose peak is at most `limit`; 0 where not even the smallest fits.

    Peaks do not fall with the batch, so once a batch fits and the next does not, that is the answer. Each question is
    a dry run; the line through two of them brings the third within a few samples.
    """
    peaks: dict[int, int] = {}

    def of(batch: int) -> int:
        if batch not in peaks:
            peaks[batch] = peak(batch)
        return peaks[batch]

    if of(smallest) > limit:
        return 0
    low, high = smallest, MOST + 1
    guess = max(smallest + 1, start)
    while high - low > 1:
        width = high - low
        guess = min(max(guess, low + 1), high - 1)
        if of(guess) <= limit:
            low = guess
        else:
            high = guess
        halved = 2 * (high - low) <= width
        guess = (
            _batch_at_limit_on_line(peaks, limit, low, high)
            if halved or high > MOST or len(peaks) < _LINES
            else (low + high) // 2
        )
    return low


def _batch_at_limit_on_line(peaks: dict[int, int], limit: float, low: int, high: int) -> int:
    """The last batch below the limit on the line through the two nearest to it, or the one after if that is known."""
    first, second = sorted(sorted(peaks, key=lambda batch: abs(peaks[batch] - limit))[:2])
    slope = (peaks[second] - peaks[first]) / (second - first)
    if slope <= 0:
        return 2 * low if high > MOST else (low + high) // 2
    met = int((limit - peaks[first]) / slope + first)
    return met + 1 if met <= low else met
