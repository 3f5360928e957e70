"""Frozen trees of /proc and /sys for the sensors' tests."""

from __future__ import annotations

from pathlib import Path


def write(root: Path, files: dict[str, str]) -> Path:
    """Write the files below root, making their folders; returns root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def cpuidle(root: Path, idle_us: dict[int, list[int]]) -> Path:
    """Cores with their idle states' times, us, all online."""
    cpu = "sys/devices/system/cpu"
    files = {f"{cpu}/online": f"{min(idle_us)}-{max(idle_us)}\n"}
    for core, states in idle_us.items():
        files |= {f"{cpu}/cpu{core}/cpuidle/state{n}/time": f"{us}\n" for n, us in enumerate(states)}
    return write(root, files)
