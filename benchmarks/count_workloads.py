"""Parameters and FLOPs of every workload, counted into workloads/counted.json: python -m benchmarks.count_workloads."""

from __future__ import annotations

import json

import torch
from rich.progress import track

from stepscope import workloads
from stepscope.api.workloads import count_workload, counting_digest
from stepscope.workloads import FILE, files_digest


def main() -> None:
    """Write the file that the package ships."""
    rows = {workload.name: count_workload(workload) for workload in track(workloads.every(), "counting")}
    facts = {"torch": torch.__version__.partition("+")[0], "workloads": files_digest(), "counting": counting_digest()}
    FILE.write_text(json.dumps({**facts, "rows": rows}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
