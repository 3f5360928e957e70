"""Processor time of the dry run of every workload at its own batch, in one process: `python -m benchmarks.dry_runs`."""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from stepscope import workloads
from stepscope.footprint.calibration import DeviceCalibration
from stepscope.footprint.jobs import workload_job
from stepscope.footprint.simulator import Simulator, live_peak
from stepscope.record.dry.platform import this_platform

_MEDIAN_S, _MOST_S = 4.0, 10.0


def took_s(name: str) -> tuple[float, int]:
    """Return the processor time of two steps without numbers and of looking for their peak, s, and their ops."""
    job = workload_job(workloads.find(name), None)
    simulator = Simulator(this_platform(), DeviceCalibration(), "default")
    began = time.process_time()
    run = simulator.run(job, job.default_batch)
    live_peak(run.log)
    return time.process_time() - began, run.log.ops


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--only", help="workloads, with commas")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    took_s("lenet")  # what is imported at the first dry run is nobody's
    found = {}
    for name in options.only.split(",") if options.only else sorted(workloads.names()):
        found[name] = took_s(name)
        print(f"{name} {found[name][0]:.2f} s, {found[name][1]} ops", flush=True)
    seconds = [each for each, _ in found.values()]
    ops = sum(count for _, count in found.values())
    print(
        f"{len(seconds)} workloads: median {statistics.median(seconds):.2f} s (bar {_MEDIAN_S:.0f}), most"
        f" {max(seconds):.2f} s (bar {_MOST_S:.0f}), {sum(seconds) / ops * 1e6:.0f} us an op"
    )


if __name__ == "__main__":
    main()
