"""The result of `fit`, sizes in B and shares of one, and the code of kernels that real steps bring in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from stepscope.analysis.memory.limits import PAGED_IN, Limit, ProcessPeak
from stepscope.record.dry.platform import Platform
from stepscope.record.dry.storage_log import StorageLog

if TYPE_CHECKING:
    from stepscope.footprint.plan import Plan

DRY_RUN = "dry run"
SMALL_BATCHES = "measured at small batches and extrapolated"
ITS_BATCH = "measured at this batch"
CANNOT_TELL = "cannot tell"  # the verdict where what was followed of a script fits, and the rest may not
OWN_BATCH = "measured at the script's own batch"


@dataclass(frozen=True)
class Holder:
    """One tensor (or kernel) that is live at the peak."""

    bytes: int
    category: str
    module: str | None
    op: str
    shape: str | None


@dataclass(frozen=True)
class LivePeak:
    """The moment with the most live bytes: who reached it and who holds what."""

    bytes: int
    low: int  # what of it becomes resident, at least
    high: int  # and at most
    mapped: int  # of these, in blocks above limits.ALWAYS_MAPPED
    op: str
    module: str | None
    phase: str
    step: int
    breakdown: dict[str, int]  # by category
    modules: dict[str, int]  # by module, largest first; "" is the model itself
    holders: tuple[Holder, ...]  # the largest
    code: KernelCode | None = None
    largest_hole: int = 0  # block below ALWAYS_MAPPED that comes and goes
    high_in_heap: int = 0  # as `high`, where blocks below ALWAYS_MAPPED lie in pages that were written to before
    heap_mark: tuple[int, int] = (0, 0)  # most that lay in the heap, which keeps it, and what was mapped then or later
    least: int = 0  # of `bytes`: what is asked for, resident or not, where a kernel's workspace is not known exactly
    most: int = 0
    reserved: tuple[int, int] | None = None  # on CUDA: what the caching allocator takes of the GPU, least and most


@dataclass(frozen=True)
class ScenePeak:
    """The most live bytes while a program builds, trains, evaluates or saves, and the op that reached them."""

    name: str
    bytes: int
    op: str
    module: str | None


@dataclass(frozen=True)
class Option:
    """One way to need less, simulated: what it gains and what it costs."""

    name: str
    peak_bytes: int
    process: ProcessPeak
    verdict: str | None
    gain_bytes: int  # of the process's peak, middle against middle
    gain: float  # the same as a share
    price: str
    compute: float  # FLOPs of a step against those of the present one
    largest_batch: int | None = None


_APART = ("events", "simulator", "options", "limit", "scenes", "plan")
_SELDOM = ("arrays that are no tensors", "workers of data loaders", "libraries on the host")


@dataclass(frozen=True)
class FitResult:
    """Answer whether a training fits, by how much, and what would make it fit."""

    name: str
    batch: int
    method: str
    live: LivePeak
    process: ProcessPeak
    allocator: str
    platform: str
    limit: Limit | None = None
    verdict: str | None = None
    largest_batch: int | None = None  # that surely fits, with a margin
    bytes_per_sample: int | None = None
    options: tuple[Option, ...] = ()
    stopped: str | None = None  # the op and layer that fake tensors could not run
    not_modelled: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    ops: int = 0
    seconds: float = 0.0
    unsure: tuple[str, ...] = ()  # why a yes can be no more than likely
    scenes: tuple[ScenePeak, ...] = ()  # of a script: what it does, each with its own peak
    at_least: bool = False  # a part of the script was followed, and the rest may take more
    likely_batch: int | None = None  # the largest whose middle of the interval is below the limit
    plan: Plan | None = None
    events: Any = field(default=None, repr=False, compare=False)  # columns as runfolder.MEMORY
    simulator: Any = field(default=None, repr=False, compare=False)  # of a script: it knows what its data take

    @property
    def peak_bytes(self) -> int:
        """Peak of live bytes: tensors and kernels' workspaces."""
        return self.live.bytes

    @property
    def interval(self) -> tuple[int, int | None]:
        """Least and most of the process's peak; None where the most is not known."""
        return self.process.low, None if self.at_least else self.process.high

    @property
    def breakdown(self) -> dict[str, int]:
        """Live bytes at the peak by category, and what comes on top; adds up to the middle of the process's peak."""
        parts = dict(self.live.breakdown)
        on_gpu = self.live.reserved is not None
        parts["CUDA context" if on_gpu else "empty process"] = sum(self.process.empty_process) // 2
        parts["libraries on the host" if on_gpu else "kernels' code"] = sum(self.process.code) // 2
        parts["arrays that are no tensors"] = sum(self.process.data) // 2
        parts["workers of data loaders"] = sum(self.process.workers) // 2
        unattributed = self.process.middle - sum(parts.values())
        halved = min(parts.get("temporary", 0), max(0, -unattributed))  # of what is there at the most, or not at all
        if halved:
            parts["temporary"] -= halved
        parts["allocator"] = unattributed + halved
        return {name: size for name, size in parts.items() if size or name not in _SELDOM}

    @property
    def peak_op(self) -> str:
        """The op that reached the peak."""
        return self.live.op

    @property
    def peak_module(self) -> str | None:
        """Return the layer of the peak; None outside any."""
        return self.live.module

    @property
    def fits(self) -> bool | None:
        """True where it surely fits, False where it does not, else None: likely, not to be told, or no limit."""
        return {"fits": True, "does not fit": False}.get(self.verdict or "")

    def as_dict(self) -> dict[str, Any]:
        """Return everything but the events as a dictionary for JSON."""
        fields = {key: value for key, value in vars(self).items() if key not in _APART}
        return {
            **{
                key: asdict(value) if hasattr(value, "__dataclass_fields__") else value for key, value in fields.items()
            },
            "peak_bytes": self.peak_bytes,
            "interval": self.interval,
            "breakdown": self.breakdown,
            "fits": self.fits,
            "limit": None if self.limit is None else asdict(self.limit),
            "options": [asdict(option) for option in self.options],
            "plan": None if self.plan is None else self.plan.as_dict(),
            "scenes": [asdict(scene) for scene in self.scenes],
        }


# On x86 (torch 2.13, oneDNN 3.12) a process that trains is larger than its tensors and an empty process by 11 to 28 MB,
# the same for a model whatever its batch: kernels that backward runs (code, primitives that oneDNN compiles for a
# shape, autograd's nodes), an LSTM's weights packed once more, products in bf16, and where forward runs again in
# backward what keeps its graphs. Fitted on 77 trainings of eleven workloads; docs/memory.md says how it holds on
# others.

_ALWAYS = 12_000_000  # B: modules of training that the tiny step does not need, and their code
_A_BACKWARD_KERNEL = 35_000  # a distinct one: op, layer and shape; a loop runs the same code again
_BF16, _A_PRODUCT_IN_BF16 = 1_950_000, 373_000
_RECOMPUTED = 3_770_000
_PACKED = 1.1  # B for each of an LSTM's weights
_HALF_WIDTH = 4_500_000
_PACKS_WEIGHTS = "mkldnn_rnn_layer"
PRODUCTS = ("aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default")


@dataclass(frozen=True)
class KernelCode:
    """Facts of a step that decide it: ops of backward alone, products that differ, B of weights that are packed."""

    backward_kernels: int
    products: int
    packed_weights: int
    bf16: bool
    recomputes: bool


def kernel_code(log: StorageLog) -> KernelCode:
    """Return the kernel code of a log of storages; an op of forward is not counted again in backward."""
    forward = {storage.op for storage in log.storages if storage.phase == "forward"}
    backward = {
        (storage.op, storage.module, storage.shape)
        for storage in log.storages
        if storage.phase == "backward" and storage.op not in forward
    }
    products = {(storage.op, storage.shape) for storage in log.storages if storage.op in PRODUCTS}
    packing = {storage.module for storage in log.storages if _PACKS_WEIGHTS in storage.op}
    weights = (s.bytes for s in log.storages if s.category == "parameter" and s.module in packing)
    return KernelCode(
        len(backward), len(products), 0 if log.in_bf16 else sum(weights), log.in_bf16, log.recomputes
    )  # fmt: skip


def code_bytes(kernels: KernelCode | None, platform: Platform) -> tuple[int, int]:
    """Least and most, B; the same wide interval for every model where the platform is not the one that was measured."""
    if kernels is None or not platform.block or not platform.is_known:
        return PAGED_IN
    size = _ALWAYS + kernels.backward_kernels * _A_BACKWARD_KERNEL + round(_PACKED * kernels.packed_weights)
    if kernels.recomputes:
        size += _RECOMPUTED
    # A CPU without AVX-512 compiles nothing for bf16: 332 MB where 336 were the least with it.
    in_bf16 = _BF16 + kernels.products * _A_PRODUCT_IN_BF16 if kernels.bf16 else 0
    return size - _HALF_WIDTH, size + in_bf16 + _HALF_WIDTH
