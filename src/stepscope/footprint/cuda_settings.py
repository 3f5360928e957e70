"""Settings of CUDA's caching allocator, as PYTORCH_CUDA_ALLOC_CONF says them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.errors import UsageError

_MIB = 1 << 20
LARGE_SEGMENT = 20 << 20  # B


@dataclass(frozen=True)
class Settings:
    """Settings of PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF); sizes in B, None: no such limit."""

    expandable_segments: bool = False
    max_split_size: int | None = None
    max_non_split_rounding: int = LARGE_SEGMENT
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: tuple[int, ...] = ()  # of 1 to 2 MiB and below, 2 to 4, ... 32 GiB and above
    capacity: int | None = None  # B that the device gives this process


INTERVALS = 16  # between powers of two, of which each has its own divisions
_LEAST_SPLIT = 20  # MiB

# Keys that are simulated and those that say nothing of how much a step reserves, with what a value must be; and those
# that do, and are not simulated.
_NUMBER, _SHARE, _TRUTH = r"\d+", r"\d*\.?\d+", r"true|false"
_VALUES = {
    "expandable_segments": _TRUTH,
    "max_split_size_mb": _NUMBER,
    "max_non_split_rounding_mb": _NUMBER,
    "garbage_collection_threshold": _SHARE,
    "roundup_power2_divisions": r"\d+|\[.*\]",
    "backend": "native",
    "release_lock_on_cudamalloc": _TRUTH,
    "graph_capture_record_stream_reuse": _TRUTH,
    "throw_on_cudamalloc_oom": _TRUTH,
    "pinned_use_cuda_host_register": _TRUTH,
    "pinned_use_background_threads": _TRUTH,
    "pinned_num_register_threads": _NUMBER,
    "pinned_reserve_segment_size_mb": _NUMBER,
    "pinned_free_catch_all": _TRUTH,
}
_NOT_SIMULATED = ("large_segment_size_mb", "per_process_memory_fraction")


def parse_settings(text: str, capacity: int | None = None) -> Settings:
    """Return the settings of "expandable_segments:True,max_split_size_mb:128"; UsageError at what torch refuses too."""
    values = {}
    for part in filter(None, re.split(r",(?![^\[]*\])", text.replace(" ", ""))):
        key, _, value = part.partition(":")
        if key not in _VALUES:
            reason = "is not simulated" if key in _NOT_SIMULATED else f"no setting of the caching allocator is '{key}'"
            hint = f"on cuda PYTORCH_CUDA_ALLOC_CONF is simulated with: {', '.join(_VALUES)}"
            raise UsageError(f"'{part}': {reason}", hint)
        if not re.fullmatch(_VALUES[key], value, re.IGNORECASE):
            raise UsageError(f"'{part}': {key} takes no '{value}'", "write it as in PYTORCH_CUDA_ALLOC_CONF")
        values[key] = value
    try:
        return Settings(
            values.get("expandable_segments", "").lower() == "true",
            _bytes_of_setting(values, "max_split_size_mb", None),
            _bytes_of_setting(values, "max_non_split_rounding_mb", LARGE_SEGMENT) or LARGE_SEGMENT,
            _garbage_threshold(values.get("garbage_collection_threshold")),
            _roundup_divisions(values.get("roundup_power2_divisions", "")),
            capacity,
        )
    except ValueError as error:
        raise UsageError(f"'{text}': {error}", "write it as in PYTORCH_CUDA_ALLOC_CONF") from None


def _bytes_of_setting(values: Mapping[str, str], key: str, default: int | None) -> int | None:
    """Return a size in B; ValueError where it is smaller than torch allows."""
    if key not in values:
        return default
    if int(values[key]) < _LEAST_SPLIT:
        raise ValueError(f"{key} is at least {_LEAST_SPLIT}")
    return int(values[key]) * _MIB


def _garbage_threshold(text: str | None) -> float:
    if text is not None and not 0 < float(text) < 1:
        raise ValueError("garbage_collection_threshold lies between 0 and 1")
    return float(text or 0)


def _roundup_divisions(text: str) -> tuple[int, ...]:
    """Return so many steps within each interval between powers of two, as torch reads them.

    The first boundary holds for all below it, any other for its own interval alone, and ">" for all above the last.
    """
    if not text:
        return ()
    if not text.startswith("["):
        return (_require_power_of_two(int(text)),) * INTERVALS
    divisions, last = [0] * INTERVALS, -1
    for place, (size, steps) in enumerate(part.split(":") for part in text.strip("[]").split(",")):
        count = int(steps) and _require_power_of_two(int(steps))
        if size == ">":
            divisions[last + 1 :] = [count] * (INTERVALS - last - 1)
            continue
        last = min(_require_power_of_two(int(size)).bit_length() - 1, INTERVALS - 1)
        first = 0 if place == 0 else last
        divisions[first : last + 1] = [count] * (last + 1 - first)
    return tuple(divisions)


def _require_power_of_two(number: int) -> int:
    if number.bit_count() != 1:
        raise ValueError(f"roundup_power2_divisions takes powers of two, which {number} is not")
    return number
