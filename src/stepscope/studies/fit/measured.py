"""Where fake tensors cannot run a model: two small batches for real, and the line through them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch.utils._pytree import tree_leaves

from stepscope.record.dry_run import STEPS, quiet
from stepscope.record.job import Job
from stepscope.record.recorders.storage_log import StorageLog
from stepscope.studies.fit.live_peak import live_peak
from stepscope.studies.fit.result import LivePeak

SMALL = (2, 4)  # samples


@dataclass(frozen=True)
class Line:
    """Live peak as a straight line in the batch, from two measurements."""

    small: tuple[int, LivePeak]
    large: tuple[int, LivePeak]

    @property
    def bytes_per_sample(self) -> float:
        """The slope, B."""
        (n, low), (m, high) = self.small, self.large
        return (high.bytes - low.bytes) / (m - n)

    def at(self, batch: int) -> LivePeak:
        """Extrapolated: every category grows by its own line, and an interval of 4 % and more stands for the rest."""
        (n, low), (m, high) = self.small, self.large
        share = (batch - n) / (m - n)
        parts = {
            name: max(0, round(low.breakdown.get(name, 0) + share * (size - low.breakdown.get(name, 0))))
            for name, size in high.breakdown.items()
        }
        size = sum(parts.values())
        # the peak may move to another op on the way: up to 3.1 % from 4 and 16 to 64 samples were seen
        return replace(high, bytes=size, low=round(size * 0.97), high=round(size * 1.06), breakdown=parts)


def measured_line(job: Job) -> Line:
    """Run two steps at each of two small batches on real tensors; the model's own errors pass through."""
    (n, low), (m, high) = ((batch, measured_peak(job, batch)) for batch in SMALL)
    return Line((n, low), (m, high))


def measured_peak(job: Job, batch: int) -> LivePeak:
    """Live peak of two real steps, workspaces of kernels left out."""
    return live_peak(measured_log(job, batch))


def measured_log(job: Job, batch: int) -> StorageLog:
    """The log of two real steps."""
    log = StorageLog()
    with quiet():
        model, optimizers = job.build()
        inputs = job.batch(batch)
        log.adopt_model(model)
        for optimizer in optimizers:
            log.adopt_optimizer(optimizer)
        log.adopt_all(tree_leaves(inputs), "input")
        with log:
            for log.step in range(STEPS):
                job.step(model, optimizers, inputs)
    return log
