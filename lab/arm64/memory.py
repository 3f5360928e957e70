"""Live peaks of ten workloads, predicted against measured, on this processor: a JSON line each to a file.

Runs under emulation and on the host alike; the measurement replays every allocation of two real steps.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.memory_truth import measured
from lab.arm64.warm import forked, torch

from stepscope import workloads
from stepscope.footprint.jobs import workload_job
from stepscope.footprint.prediction import JobQuestion, predict_fit

WORKLOADS = (
    "lenet", "resnet8-c32", "ds-cnn-kws", "autoencoder-640", "char-lstm-80", "mobilenet-v1-c32", "squeezenet-c32",
    "bert-tiny-128", "activity-cnn-6x100", "activity-gru-6x100",
)  # fmt: skip


def compare(cell: dict[str, Any], out: Path) -> None:
    """Add a line: the live peak as `stepscope fit` predicts it here, probing what no rule covers, and as it is, B."""
    torch.set_num_threads(1)
    began = time.monotonic()
    job = workload_job(workloads.find(cell["workload"]), cell["optimizer"])
    answer = predict_fit(JobQuestion(job, cell["batch"], options=False, largest=False))
    predicted_s = time.monotonic() - began
    live = measured({**cell, "variant": "", "what": "live"})["peak"]
    row = {
        **cell, "predicted": answer.peak_bytes, "low": answer.live.low, "high": answer.live.high, "live": live,
        "error": answer.peak_bytes / live - 1, "unsure": answer.unsure, "not_modelled": dict(answer.not_modelled),
        "machine": platform.machine(), "torch": torch.__version__, "predicted_s": round(predicted_s, 1),
        "took_s": round(time.monotonic() - began, 1),
    }  # fmt: skip
    with out.open("a") as file:
        file.write(json.dumps(row) + "\n")


def main() -> None:
    """Compare each workload at a small batch under SGD with momentum."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    options = parser.parse_args()
    out = options.out.absolute()
    logs = out.with_suffix(".logs")
    logs.mkdir(parents=True, exist_ok=True)
    out.write_text("")
    for workload in options.workloads.split(","):
        cell = {"workload": workload, "batch": options.batch, "optimizer": "momentum"}
        code, seconds = forked(partial(compare, cell, out), logs, workload)
        if code:
            said = (logs / f"{workload}.err").read_text().strip().splitlines()
            row = {**cell, "note": (said or [f"exit code {code}"])[-1], "took_s": round(seconds, 1)}
            with out.open("a") as file:
                file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
