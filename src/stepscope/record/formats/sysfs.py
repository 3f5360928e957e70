"""What a one-value file of sysfs says: a whole number, or nothing that may be believed."""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.record.sensors.contract import NAN

READ_BYTES = 64  # more than any value that is believed; a longer text is cut, and then too great


def natural(text: bytes, most: float) -> float:
    """The whole number that a file states, 0 to `most`; NaN for text, an empty file, a sign, or more than can be."""
    digits = text.strip()
    if not digits.isdigit():
        return NAN
    value = int(digits)
    return float(value) if value <= most else NAN


def unless_all_failed(values: Sequence[float | OSError]) -> list[float]:
    """NaN for each failed read; raises the first error where all failed and none is worth waiting for (EAGAIN)."""
    errors = [value for value in values if isinstance(value, OSError)]
    if errors and len(errors) == len(values) and not any(isinstance(error, BlockingIOError) for error in errors):
        raise errors[0]
    return [NAN if isinstance(value, OSError) else value for value in values]
