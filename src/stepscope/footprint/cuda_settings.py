"""Settings of CUDA's caching allocator, as PYTORCH_CUDA_ALLOC_CONF says them."""

from __future__ import annotations

import re
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
    roundup_power2_divisions: tuple[tuple[int, int], ...] = ()  # from so many B on, so many steps to the next power
    capacity: int | None = None  # B that the device gives this process


# Keys that are simulated, those that say nothing of the GPU's memory, and what a value must be.
_NUMBER, _SHARE, _TRUTH = r"\d+", r"\d*\.?\d+", r"true|false"
_VALUES = {
    "expandable_segments": _TRUTH,
    "max_split_size_mb": _NUMBER,
    "max_non_split_rounding_mb": _NUMBER,
    "garbage_collection_threshold": _SHARE,
    "roundup_power2_divisions": r"\d+|\[.*\]",
    "backend": "native",
    "release_lock_on_cudamalloc": _TRUTH,
    "pinned_use_cuda_host_register": _TRUTH,
    "pinned_use_background_threads": _TRUTH,
    "pinned_num_register_threads": _NUMBER,
}


def parse_settings(text: str, capacity: int | None = None) -> Settings:
    """Return the settings of "expandable_segments:True,max_split_size_mb:128"; UsageError at what is none of them."""
    found: dict[str, str] = {}
    for part in filter(None, re.split(r",(?![^\[]*\])", text.replace(" ", ""))):
        key, _, value = part.partition(":")
        if key not in _VALUES:
            hint = f"on cuda PYTORCH_CUDA_ALLOC_CONF is simulated with: {', '.join(_VALUES)}"
            raise UsageError(f"'{part}': no setting of the caching allocator is called '{key}'", hint)
        if not re.fullmatch(_VALUES[key], value, re.IGNORECASE):
            raise UsageError(f"'{part}': {key} takes no '{value}'", "write it as in PYTORCH_CUDA_ALLOC_CONF")
        found[key] = value
    try:
        most = found.get("max_split_size_mb")
        rounding = found.get("max_non_split_rounding_mb")
        return Settings(
            found.get("expandable_segments", "").lower() == "true",
            None if most is None else int(most) * _MIB,
            LARGE_SEGMENT if rounding is None else int(rounding) * _MIB,
            float(found.get("garbage_collection_threshold", 0)),
            _divisions(found.get("roundup_power2_divisions", "")),
            capacity,
        )
    except ValueError as error:
        raise UsageError(f"'{text}': {error}", "write it as in PYTORCH_CUDA_ALLOC_CONF") from None


def _divisions(text: str) -> tuple[tuple[int, int], ...]:
    if not text:
        return ()
    if not text.startswith("["):
        return ((0, int(text)),)
    parts = [part.split(":") for part in text.strip("[]").replace(" ", "").split(",")]
    starts = [0 if size == ">" else int(size) * _MIB for size, _ in parts]
    return tuple(sorted((max(starts) if size == ">" else int(size) * _MIB, int(steps)) for size, steps in parts))
