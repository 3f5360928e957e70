"""A child of the study in a test: does what its orders say without torch, in no time."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.fabricate import STEP, fabricate_run


def main(orders: dict[str, Any]) -> None:
    """A run folder, bytes that grow, or days that get better; a model called "large" finds no memory."""
    ended: dict[str, Any] = {"status": "ok", "reason": None}
    if orders.get("workload") == "large":
        ended = {"status": "oom", "reason": "7 GB were asked for"}
    elif orders["task"].endswith(":train_run"):
        workload = {"name": orders["workload"], "batch_size": orders["batch"], "device": "cpu"}
        header = {"workload": workload, "threads": orders["threads"]}
        length_us = 20_000 + 500 * orders["batch"] + orders["seed"]
        out = Path(orders["out"])
        fabricate_run(out, steps=12, ops=STEP[:1], residual_us=length_us, batch=orders["batch"], header=header)
    elif orders["task"].endswith(":count_memory"):
        ended["result"] = {"rows": _memory(orders)}
    else:
        ended["result"] = _days(orders["routine"], orders["seed"])
    Path(orders["ended"]).write_text(json.dumps(ended), encoding="utf-8")


def _memory(orders: dict[str, Any]) -> list[dict[str, Any]]:
    bytes_of = {"parameters": 100, "gradients": 100, "input data": 1, "intermediate data": 1}
    return [
        {"workload": orders["workload"], "batch": batch, "part": part, "bytes": size * (1 if size == 100 else batch)}
        for batch in orders["batches"]
        for part, size in {**bytes_of, "intermediate data": 50}.items()
    ]


def _days(routine: dict[str, Any], seed: int) -> dict[str, Any]:
    days = [{"day": day, "accuracy": 0.6 + day * (0.001 + 0.0001 * seed)} for day in range(routine["days"] + 1)]
    return {"seed": seed, "batch": routine["batch"], "days": days}


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
