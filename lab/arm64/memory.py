"""Live peaks of ten workloads, predicted against measured, on this processor: a JSON line each to a file.

Runs under emulation and on the host alike; the measurement replays every allocation of two real steps.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path
from typing import Any

from benchmarks.memory_fit import measured

from stepscope import workloads
from stepscope.footprint.jobs import workload_job
from stepscope.footprint.prediction import JobQuestion, predict_fit

WORKLOADS = (
    "lenet", "resnet8-c32", "ds-cnn-kws", "autoencoder-640", "char-lstm-80", "mobilenet-v1-c32", "squeezenet-c32",
    "bert-tiny-128", "resnet18-c32", "activity-gru-6x100",
)  # fmt: skip


def predicted_and_measured(cell: dict[str, Any], cache: Path) -> dict[str, Any]:
    """Return the live peak as `stepscope fit` predicts it here, probing what no rule covers, and as it is, B."""
    job = workload_job(workloads.find(cell["workload"]), cell["optimizer"])
    answer = predict_fit(JobQuestion(job, cell["batch"], options=False, largest=False))
    live = measured(cell, "live", "", cache)
    found = {"predicted": answer.peak_bytes, "unsure": list(answer.unsure), "not_modelled": dict(answer.not_modelled)}
    if isinstance(live, str):
        return {**found, "note": live}
    return {**found, "live": live["peak"], "error": answer.peak_bytes / live["peak"] - 1}


def main() -> None:
    """Compare each workload at a batch of 4 under SGD with momentum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    for workload in WORKLOADS:
        began = time.monotonic()
        cell = {"workload": workload, "batch": 4, "optimizer": "momentum", "variant": ""}
        try:
            row = {**cell, **predicted_and_measured(cell, options.out.with_suffix(".cache"))}
        except Exception as error:
            row = {**cell, "note": f"{type(error).__name__}: {error}"}
        row |= {"machine": platform.machine(), "took_s": round(time.monotonic() - began, 1)}
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
