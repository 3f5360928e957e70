"""The live view as one line, for a log or a pipe."""

from __future__ import annotations

from stepscope.report.live.now import Now
from stepscope.units import bytes_, duration, number, percent, si


def line_of(now: Now) -> str:
    """Step, speed, time left, power, memory, load and heat, as far as they are known."""
    pace = now.pace
    known = [share for _, share in now.cores if share is not None]
    hottest = max((value for _, value in now.temperatures if value is not None), default=None)
    parts = (
        now.name if now.simulated is None else f"{now.name} (SIMULATED {now.simulated})",
        f"step {pace.done}" + (f"/{now.planned}" if now.planned is not None else ""),
        None if pace.step_ns is None else f"{duration(pace.step_ns)} a step",
        None if pace.samples_per_s is None else f"{number(pace.samples_per_s)} samples/s",
        None if now.left_s is None else f"left {duration(now.left_s * 1e9, 2)}",
        None if now.left_j is None else f"{si(now.left_j, 'J', 2)} left",
        None if now.total_w is None else si(now.total_w, "W"),
        f"cores {percent(sum(known) / len(known), 0)}" if known else None,
        None if now.resident_bytes is None else f"memory {bytes_(now.resident_bytes)}",
        None if hottest is None else f"{hottest:.0f} °C",
    )
    text = ", ".join(part for part in parts if part is not None)
    return "".join(character if character.isprintable() else "?" for character in text)


def ending_of(now: Now) -> str:
    """How the run ended."""
    reason = f" ({now.reason})" if now.reason else ""
    return f"{now.run}: {now.status}{reason}"
