"""A child of a sweep that ends as its workload is called, at once and without torch: `python child.py ORDERS`."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

TUNED = {
    "answer": "fused: faster", "changes": ["fused"], "code": {"fused": "torch.optim.SGD(..., fused=True)"},
    "checked": "yes", "wall_s": 61.0, "as_is_ms": 10.0, "step_ms": 7.5,
    "gain_percent": 25.0, "gain_percent_low": 21.0, "gain_percent_high": 29.0,
}  # fmt: skip


def main() -> None:
    orders = json.loads(sys.argv[1])
    name, _, least = orders["workload"].partition("-from-")
    if least and orders["batch"] < int(least):
        name = "ok"
    with Path(orders["out"], "..", "started.txt").open("a", encoding="utf-8") as file:
        file.write(f"{Path(orders['out']).name}\n")
    ends: dict[str, tuple[str, str | None]] = {
        "ok": ("ok", None),
        "tuned": ("ok", None),
        "disk": ("ok", None),
        "oom": ("oom", "RuntimeError: can't allocate memory"),
        "missing": ("not installed", "needs x (pip install 'stepscope[atari]')"),
    }
    if name == "hang":
        time.sleep(60)
    if name == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if name == "starved":
        sys.exit("terminate called after throwing an instance of 'std::bad_alloc'")
    if name == "disk":
        sys.stdout.write("OSError: [Errno 28] No space left on device\n")
    if name == "tuned" and orders["repeat"] == 0:
        Path(orders["out"], "tune.json").write_text(json.dumps({"status": "ok", "reason": None, "result": TUNED}))
    if name not in ends:
        raise RuntimeError(f"nothing is known of {name}")
    status, reason = ends[name]
    Path(orders["ended"]).write_text(json.dumps({"status": status, "reason": reason}), encoding="utf-8")


if __name__ == "__main__":
    main()
