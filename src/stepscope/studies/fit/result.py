"""What `fit` answers: sizes in B, shares of one."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from stepscope.analysis.memory_model import Limit, ProcessPeak
from stepscope.studies.fit.code import CodeSeen

DRY_RUN = "dry run"
SMALL_BATCHES = "measured at small batches and extrapolated"
OWN_BATCH = "measured at the script's own batch"


@dataclass(frozen=True)
class Holder:
    """One tensor (or kernel) that is alive at the peak."""

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
    mapped: int  # of these, in blocks above memory_model.ALWAYS_MAPPED
    op: str
    module: str | None
    phase: str
    step: int
    breakdown: dict[str, int]  # by category
    modules: dict[str, int]  # by module, largest first; "" is the model itself
    holders: tuple[Holder, ...]  # the largest
    code: CodeSeen | None = None
    largest_hole: int = 0  # block below ALWAYS_MAPPED that comes and goes
    high_in_heap: int = 0  # as `high`, where blocks below ALWAYS_MAPPED lie in pages that were written to before


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


@dataclass(frozen=True)
class FitResult:
    """Whether a training fits, by how much, and what would make it fit."""

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
    likely_batch: int | None = None  # the largest whose middle of the interval is below the limit
    events: Any = field(default=None, repr=False, compare=False)  # columns as runfolder.MEMORY

    @property
    def peak_bytes(self) -> int:
        """Peak of live bytes: tensors and kernels' workspaces."""
        return self.live.bytes

    @property
    def interval(self) -> tuple[int, int]:
        """Least and most of the process's peak."""
        return self.process.low, self.process.high

    @property
    def breakdown(self) -> dict[str, int]:
        """Live bytes at the peak by category, and what comes on top; adds up to the middle of the process's peak."""
        parts = dict(self.live.breakdown)
        parts["empty process"] = sum(self.process.empty_process) // 2
        parts["kernels' code"] = sum(self.process.code) // 2
        parts["allocator"] = self.process.middle - sum(parts.values())
        return parts

    @property
    def peak_op(self) -> str:
        """The op that reached the peak."""
        return self.live.op

    @property
    def peak_module(self) -> str | None:
        """Its layer; None outside any."""
        return self.live.module

    @property
    def fits(self) -> bool | None:
        """True, False, or None where it is too close to say or no limit was given."""
        return {"fits": True, "does not fit": False}.get(self.verdict or "")

    def as_dict(self) -> dict[str, Any]:
        """For JSON: everything but the events."""
        fields = {key: value for key, value in vars(self).items() if key not in ("events", "options", "limit")}
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
        }
