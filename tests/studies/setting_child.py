"""A child of the studies of trainings in a test: leaves the run that its orders ask for without torch, in no time.

A sample takes the less time the larger the batch, and bfloat16 halves the step; a batch of 666 finds no memory.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fabricate import STEP, fabricate_run


def main(orders: dict[str, Any]) -> None:
    """A run folder with 20 steps, and what the optimizer keeps: nothing for SGD."""
    out, batch = Path(orders["out"]), orders["batch"] or 16
    ended: dict[str, Any] = {"status": "ok", "reason": None}
    if batch == 666:
        ended = {"status": "oom", "reason": "7 GB were asked for"}
    else:
        length_us = (20_000 + 500 * batch + 10 * orders["seed"]) // (2 if orders["precision"] == "bf16" else 1)
        ops = STEP if orders["kind"] == "training" else STEP[1:3]
        header = {
            "workload": {"name": orders["workload"], "batch_size": batch, "device": "cpu", "kind": orders["kind"]}
        }
        power = None if orders["mode"] is None else 5.0 + orders["mode"]
        fabricate_run(out, steps=20, ops=ops, residual_us=length_us, batch=batch, header=header, power_w=power)
        ended["result"] = {"state_bytes": 0 if orders["optimizer"] == "sgd" else 1000}
    Path(orders["ended"]).write_text(json.dumps(ended), encoding="utf-8")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
