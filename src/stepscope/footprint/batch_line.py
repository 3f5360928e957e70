"""Live peak of a job whose steps fake tensors cannot run: real steps of small batches, and a line through them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch.utils._pytree import tree_leaves

from stepscope.errors import StepscopeError
from stepscope.footprint.result import LivePeak
from stepscope.footprint.simulator import live_peak
from stepscope.record.dry import Job
from stepscope.record.dry.dry_run import STEPS, preserve_rng_and_hide_warnings
from stepscope.record.dry.storage_log import NO_SAVED_HOOKS, Reserve, StorageLog
from stepscope.record.dry.user_objects import model_to_train

SIZES = (2, 4, 8, 16, 32)  # samples of batches that are really trained: the first two that a step takes
_TRAINED_HERE = 512_000_000  # B of live tensors at the most


@dataclass(frozen=True)
class BatchLine:
    """Live peak as a straight line in the batch, from two measurements."""

    small: tuple[int, LivePeak]
    large: tuple[int, LivePeak]
    others: tuple[BatchLine, ...] = ()  # through other batches: what they say is within the interval

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
        sizes = [size, *(other.at(batch).bytes for other in self.others)]
        least, most = round(min(sizes) * 0.97), round(max(sizes) * 1.06)
        reserved = high.reserved
        if reserved is not None:  # as much beyond the tensors as at the larger of the two
            reserved = least + reserved[0] - high.low, most + reserved[1] - high.high
        return replace(
            high, bytes=size, low=least, high=most, least=least, most=most, breakdown=parts, reserved=reserved
        )


def measure_batch(job: Job, batch: int, reserve: Reserve | None) -> BatchLine:
    """Return the line through a batch, or the largest that may be trained here; StepscopeError where none can be."""
    try:
        line = _measure_line(job, reserve)
        while line.large[0] < batch:
            larger = batch
            while larger > line.large[0] and line.at(larger).high > _TRAINED_HERE:
                larger //= 2
            if larger <= line.large[0]:
                break
            if larger == batch:
                return BatchLine(line.large, (batch, live_peak(_measure_log(job, batch, reserve))))
            try:
                line = _line_of_larger_batches(job, larger, line, reserve)
            except Exception:  # a step may want batches that are no half of this one
                break
        return line
    except StepscopeError:
        raise
    except Exception as error:  # a user's model or batch maker may raise anything
        text = f"{type(error).__name__}: {error}"
        raise StepscopeError(f"{job.name} fails on real tensors too: {text}", "run a step of it by itself") from error


def _line_of_larger_batches(job: Job, larger: int, line: BatchLine, reserve: Reserve | None) -> BatchLine:
    """Return the line through a batch and its half, which tell what is so in large batches alone."""
    small = line.large
    half, whole = ((batch, live_peak(_measure_log(job, batch, reserve))) for batch in (larger // 2, larger))
    if half[0] <= small[0]:
        return BatchLine(small, whole)
    return BatchLine(half, whole, (BatchLine(small, half), BatchLine(small, whole)))


def _measure_line(job: Job, reserve: Reserve | None = None) -> BatchLine:
    """Run two steps at each of two small batches on real tensors; the model's own errors pass through."""
    measured: list[tuple[int, LivePeak]] = []
    failure = None
    for batch in SIZES:
        try:
            measured.append((batch, live_peak(_measure_log(job, batch, reserve))))
        except Exception as error:  # a user's step may want more samples
            failure = failure or error
        if len(measured) == 2:
            return BatchLine(measured[0], measured[1])
    assert failure is not None
    raise failure


def _measure_log(job: Job, batch: int, reserve: Reserve | None = None) -> StorageLog:
    """The log of two real steps, workspaces of kernels excluded; reserve: what a GPU's allocator takes of a log."""
    try:
        return _log_of_steps(job, batch, StorageLog(), reserve)
    except RuntimeError as error:
        if NO_SAVED_HOOKS not in str(error):
            raise
    return _log_of_steps(job, batch, StorageLog(sees_saved=False), reserve)


def _log_of_steps(job: Job, batch: int, log: StorageLog, reserve: Reserve | None) -> StorageLog:
    log.reserve = reserve
    with preserve_rng_and_hide_warnings(), model_to_train(job) as (model, optimizers):
        inputs = job.batch(batch)
        log.adopt_model(model)
        for optimizer in optimizers:
            log.adopt_optimizer(optimizer)
        log.adopt_all(tree_leaves(inputs), "input")
        with log:
            for log.step in range(STEPS):
                job.step(model, optimizers, inputs)
    return log
