"""A child of a fleet's sweep, without torch: `python fleet_child.py ORDERS`; its workload says what it does."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

BIG_BYTES = 9_000_000  # several pieces


def main() -> None:
    orders = json.loads(sys.argv[1])
    out, name = Path(orders["out"]), str(orders["workload"])
    place = f"{name}-{orders['batch']}-{orders['repeat']}"
    with Path(os.environ["STARTED"]).open("a", encoding="utf-8") as file:
        file.write(f"{place}\n")
    if name.startswith("wait-"):
        time.sleep(float(name.removeprefix("wait-")))
    while name == "held" and not Path(os.environ["STARTED"]).with_suffix(".go").exists():
        time.sleep(0.005)
    if name == "big":
        (out / "parts").mkdir()
        (out / "parts" / "blob.bin").write_bytes(bytes(range(250)) * (BIG_BYTES // 250))
        (out / "parts" / "empty.bin").touch()
        (out / "leads-out").symlink_to("/etc/passwd")
    if name == "run":
        from stepscope.runfolder import RunWriter

        writer = RunWriter.create(out, "run")
        writer.close("ok")
    Path(orders["ended"]).write_text(json.dumps({"status": "ok", "reason": None}), encoding="utf-8")


if __name__ == "__main__":
    main()
