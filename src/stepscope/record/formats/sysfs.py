"""What a one-value file of sysfs, or a field of proc, says: a whole number, or nothing that may be believed.

Python's own int() would also take a plus, an underscore between digits (1_000) and other scripts' digits.
"""

from __future__ import annotations

from collections.abc import Sequence

from stepscope.record.sensors.contract import NAN

READ_BYTES = 64  # more than any value that is believed; a longer text is cut, and then too great
_COUNT_DIGITS = 15  # 31 years in us; a thousand petabytes in kB


def natural(text: bytes, most: float) -> float:
    """The whole number that a file states, 0 to `most`; NaN for text, an empty file, a sign, or more than can be."""
    digits = text.strip()
    if not digits.isdigit():
        return NAN
    value = int(digits)
    return float(value) if value <= most else NAN


def signed(text: bytes, least: float, most: float) -> float:
    """The whole number that a file states, `least` (below 0) to `most`; NaN as for `natural`."""
    digits = text.strip()
    if digits[:1] != b"-":
        return natural(digits, most)
    return 0.0 - natural(digits[1:], -least) if digits[1:].isdigit() else NAN


def count(field: bytes) -> int:
    """A field of /proc (ticks, pages, kB); raises ValueError where it is no whole number, or more than can be."""
    if not field.isdigit() or len(field) > _COUNT_DIGITS:
        raise ValueError(f"{field[:20]!r} is no count")
    return int(field)


def unless_all_failed(values: Sequence[float | OSError]) -> list[float]:
    """NaN for each failed read; raises the first error where all failed and none is worth waiting for (EAGAIN)."""
    errors = [value for value in values if isinstance(value, OSError)]
    if errors and len(errors) == len(values) and not any(isinstance(error, BlockingIOError) for error in errors):
        raise errors[0]
    return [NAN if isinstance(value, OSError) else value for value in values]
