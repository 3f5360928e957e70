"""What the page of a running run says: a look at its folder, as names and values."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from stepscope.report.live.now import Now, Watch
from stepscope.units import bytes_, duration, number, percent, si


class Watches:
    """The runs that are being looked at; each is followed, not read anew."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        self._of: dict[Path, Watch] = {}
        self._lock = threading.Lock()

    def look(self, run: Path) -> dict[str, Any]:
        """Status, facts and warnings of a run at this moment, ready for JSON."""
        with self._lock:
            if run not in self._of:
                while len(self._of) >= self._most:
                    self._of.pop(next(iter(self._of))).close()
                self._of[run] = Watch(run)
            now = self._of[run].look()
            if now.ended:
                self._of.pop(run).close()
        return {"status": now.status, "ended": now.ended, "rows": _rows(now), "warnings": list(now.warnings)}

    def close(self) -> None:
        """Let go of all files."""
        with self._lock:
            for watch in self._of.values():
                watch.close()
            self._of.clear()


def _rows(now: Now) -> list[tuple[str, str]]:
    pace, planned = now.pace, f" of {now.planned:,}" if now.planned is not None else ""
    rows = [
        ("Status", f"{now.status}: {now.reason}" if now.reason else now.status),
        ("Steps", f"{pace.done:,}{planned}"),
        ("Step time, of the last steps", duration(pace.step_ns)),
        ("Throughput", "-" if pace.samples_per_s is None else f"{number(pace.samples_per_s)} samples/s"),
        ("Loss", number(pace.loss, 4)),
        ("Time left", "-" if now.left_s is None else duration(now.left_s * 1e9)),
        ("Cores", " · ".join(percent(share, 0) for _, share in now.cores) or "-"),
        *((f"Accelerator {name}", percent(share, 0)) for name, share in now.accelerators),
        ("Memory of the process", bytes_(now.resident_bytes)),
        ("Memory available", bytes_(now.available_bytes)),
        *((f"Memory of {name}", bytes_(used)) for name, used, _ in now.accelerator_memory),
        ("Power, whole device", si(now.total_w, "W")),
        *((f"Power of {name}", si(watts, "W")) for name, watts in now.rails),
        *((f"Temperature of {name}", f"{number(value)} degC") for name, value in now.temperatures),
    ]
    if now.left_j is not None:
        rows.append(("Energy left", si(now.left_j, "J")))
    if now.simulated is not None:
        rows.insert(0, ("SIMULATED sensors", now.simulated))
    return rows
