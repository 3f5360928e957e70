"""Where and in which number format a training does most of its arithmetic, by what its run.json states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# What a probe of ceilings computes in. Of float32: torch's switches let products (and convolutions of a GPU) round to
# fewer digits. "high" and "medium" as in `torch.set_float32_matmul_precision`; "ieee" is without TF32 in convolutions.
PROBED = ("float32", "float32-high", "float32-medium", "float32-ieee", "float64", "bfloat16", "float16")


@dataclass(frozen=True)
class Computation:
    """The device and the number format with most FLOPs: "cuda:0", "bfloat16"."""

    device: str
    precision: str

    @property
    def is_probed(self) -> bool:
        """Return whether ceilings are measured in this number format."""
        return self.precision in PROBED


def main_computation(meta: Mapping[str, Any]) -> Computation | None:
    """Return the device and format of most FLOPs; None where no step with FLOPs was profiled with its shapes."""
    recorder = meta.get("recorder")
    stated = recorder.get("flops_by_format") if isinstance(recorder, Mapping) else None
    flops = {
        Computation(str(device), str(precision)): count
        for device, counts in (stated.items() if isinstance(stated, Mapping) else ())
        for precision, count in (counts.items() if isinstance(counts, Mapping) else ())
        if isinstance(count, int | float) and count > 0
    }
    return max(flops, key=lambda computation: flops[computation], default=None)


def calls_in_other_formats(meta: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """Return op and layer (null outside of any) of what a training computes in other formats than the main one."""
    recorder = meta.get("recorder")
    stated = recorder.get("other_formats") if isinstance(recorder, Mapping) else None
    calls = [call for call in stated if isinstance(call, list) and call] if isinstance(stated, list) else []
    return [(str(call[0]), str(call[1]) if len(call) > 1 else None) for call in calls]
