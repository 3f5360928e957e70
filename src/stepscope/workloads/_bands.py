"""Where the loss of each workload lies after some seeded steps: what says that it still learns as it did."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Band:
    """Where the mean loss of the last fifth of `steps` steps must lie: seed 0, default optimizer, the named data."""

    data: str
    batch: int
    steps: int
    low: float
    high: float

    def holds(self, losses: list[float]) -> bool:
        """Whether the losses of exactly these steps end within the band."""
        last = losses[-max(1, self.steps // 5) :]
        return len(losses) == self.steps and self.low <= sum(last) / len(last) <= self.high


BANDS: dict[str, Band] = {}
