"""Changes of the whole device: clocks, the governor and power limits. They are made with --apply-power alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stepscope.experiments.tune.changes import Change, Facts
from stepscope.experiments.tune.device_settings import SHARES

_GOVERNOR = "performance"
_POLICIES = "/sys/devices/system/cpu/cpufreq/policy*"
_KINDS = {  # what it is, what lacks where there is none, and where it would be
    "cpu-clock": ("CPU clocks", "the kernel offers no limit of CPU clocks here (cpufreq)",
                  f"{_POLICIES}/scaling_max_freq"),
    "gpu-clock": ("GPU clock", "the kernel offers no limit of a GPU clock here (devfreq)",
                  "/sys/class/devfreq/*/max_freq"),
    "power-limit": ("power limit", "no power limit is found here (RAPL, amdgpu)",
                    "/sys/class/powercap/intel-rapl:0/constraint_0_power_limit_uw"),
}  # fmt: skip


def changes(facts: Facts) -> Iterator[Change]:
    """Yield lower clocks and power limits, which may save energy, and the governor that keeps clocks high."""
    settings, allowed = facts["device_settings"], facts["apply_power"]
    for kind, (title, lack, path) in _KINDS.items():
        for share in SHARES:
            rows = settings.get(kind, [])
            writes = _writes(rows, str(share))
            refused = lack if not rows else "nothing lower can be chosen" if not writes else _refusal(rows, allowed)
            yield Change(
                f"{kind}={share}%", f"{title} limited to {share} % of the limit now", kind,
                _shell(writes or {path: f"{share} % of $(cat {path})"}),
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
        return "it changes the whole device: --apply-power allows it"
    return "" if all(row["writable"] for row in rows) else "only root may change it: sudo"


def _shell(writes: Mapping[str, str]) -> str:
    """Return the lines that set these values until the next start of the device."""
    return "\n".join(f"echo {value} | sudo tee {path}" for path, value in writes.items())
