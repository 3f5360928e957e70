"""Changes of the whole device: clocks, the governor and power limits. They are made with --apply-power alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepscope.experiments.tune.changes import Change, Facts
from stepscope.experiments.tune.device_settings import SHARES, command_line

_NOT_ALLOWED = "it changes the whole device: --apply-power allows it"
_GOVERNOR = "performance"
_POLICIES = "/sys/devices/system/cpu/cpufreq/policy*"
_KINDS = {  # what it is, what lacks where there is none, and where it would be
    "cpu-clock": ("CPU clocks", "the kernel offers no limit of CPU clocks here (cpufreq)",
                  f"{_POLICIES}/scaling_max_freq"),
    "gpu-clock": ("GPU clock", "the kernel offers no limit of a GPU clock here (devfreq)",
                  "/sys/class/devfreq/*/max_freq"),
    "power-limit": ("power limit", "no power limit is found here (RAPL, amdgpu)",
                    "/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"),
    "gpu-power-limit": ("power limit of the NVIDIA card", "nvidia-smi states no power limit here", "nvidia-smi -i 0"),
}  # fmt: skip


def changes(facts: Facts) -> Iterator[Change]:
    """Yield lower clocks and power limits, which may save energy, and the governor that keeps clocks high."""
    settings, allowed = facts["device_settings"], facts["apply_power"]
    for kind, (title, lack, path) in _KINDS.items():
        for share in SHARES:
            rows = settings.get(kind, [])
            writes = _writes(rows, str(share))
            refused = lack if not rows else "nothing lower can be chosen" if not writes else _refusal(rows, allowed)
            if kind == "gpu-power-limit" and not rows:  # whose driver is only asked where it may be changed
                refused = _NOT_ALLOWED if facts["gpu"] and not allowed else lack
            yield Change(
                f"{kind}={share}%", f"{title} limited to {share} % of the limit now", kind,
                _shell(writes or {path: f"{share} % of the limit"}),
                goal="energy", refused=refused, writes=writes,
            )  # fmt: skip
    rows = settings.get("governor", [])
    writes = _writes(rows, _GOVERNOR)
    lack = "" if writes else "it is in force already" if rows else "the kernel offers no governors here (cpufreq)"
    yield Change(
        f"governor={_GOVERNOR}", "CPU clocks kept high by the governor", "governor",
        _shell(writes or {f"{_POLICIES}/scaling_governor": _GOVERNOR}),
        "more power and heat", refused=lack or _refusal(rows, allowed), writes=writes,
    )  # fmt: skip


def _writes(rows: Sequence[Mapping[str, Any]], value: str) -> dict[str, str]:
    return {row["path"]: row["values"][value] for row in rows if value in row["values"]}


def _refusal(rows: Sequence[Mapping[str, Any]], allowed: bool) -> str:
    if not allowed:
        return _NOT_ALLOWED
    return "" if all(row["writable"] for row in rows) else "only root may change it: sudo"


def _shell(writes: Mapping[str, str]) -> str:
    """Return the lines that set these values until the next start of the device."""
    return "\n".join(command_line(path, value) for path, value in writes.items())
