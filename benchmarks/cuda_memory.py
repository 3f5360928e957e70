"""`stepscope fit --device cuda` against a GPU: `python -m benchmarks.cuda_memory --write FILE [WORKLOAD:BATCH ...]`.

Each training makes its steps in a process of its own on the first GPU, with the caching allocator's history recorded.
Kept of it: the reserved and allocated peak, what the driver says that the process takes, the host's resident peak, and
the replay of the recording (`benchmarks.cuda_snapshots`). Then the same is asked of `stepscope fit`. Without a GPU,
`--kept benchmarks/cuda_memory_h100.json` asks it anew of what a GPU has shown.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.cuda_snapshots import replay

_STEPS = 6
_TIMEOUT_S = 120
_TRAININGS = (
    "lenet:64", "resnet18-c32:32", "mobilenet-v1-c32:32", "char-gpt-64:12", "char-gpt-256:8", "char-lstm-80:64",
    "bert-small-128:8", "distilbert-128:4", "dcgan-64:32", "diffusion-unet64-c32:16", "dqn-nature-84:32",
    "squeezenet-c32:32", "resnet50-224:32", "mobilenet-v2-224:32", "efficientnet-b0-224:16", "activity-gru-6x100:32",
)  # fmt: skip
Row = dict[str, Any]


def trained(name: str, batch: int, precision: str = "fp32") -> Row:
    """Train on the GPU, here, and return what it took, B."""
    import torch

    from stepscope import workloads

    training = workloads.find(name).prepare(batch=batch, device="cuda")
    torch.cuda.memory._record_memory_history(context=None, max_entries=2_000_000)
    batches = training.batches()
    for _ in range(_STEPS):
        training.step(next(batches))
    torch.cuda.synchronize()
    row = {
        "reserved": torch.cuda.max_memory_reserved(),
        "allocated": torch.cuda.max_memory_allocated(),
        "context": _used() - torch.cuda.memory_reserved(),
        "host": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
    }
    simulated = replay(name, recording := torch.cuda.memory._snapshot(), 0)
    if simulated is not None:
        row |= {"replayed": simulated.said, "recorded": simulated.took, "events": simulated.events}
        trace: list[dict[str, Any]] = recording["device_traces"][0]
        sizes = sorted((e["size"] for e in trace if e["action"] == "alloc"), reverse=True)
        row["largest"] = sizes[:12]
    return row


def _used() -> int:
    """What the driver says that this process has of the GPU, B."""
    pynvml: Any = importlib.import_module("pynvml")
    pynvml.nvmlInit()
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    return sum(int(process.usedGpuMemory) for process in processes if process.pid == os.getpid())


def predicted(name: str, batch: int) -> Row:
    """Return what fit says of the same: live bytes, reserved least and most, and all of the GPU."""
    told = [sys.executable, "-m", "stepscope", "fit", name, "--batch", str(batch), "--memory", "80GB"]
    answer = subprocess.run([*told, "--device", "cuda", "--json"], capture_output=True, text=True, timeout=_TIMEOUT_S)
    if answer.returncode not in (0, 1):
        return {"fit_failed": answer.stderr[-600:]}
    said = json.loads(answer.stdout)
    live = said["live"]
    return {
        "said_live": [live["low"], live["bytes"], live["high"]],
        "said_reserved": live["reserved"],
        "said": said["interval"],
    }


def measured(name: str, batch: int) -> Row:
    """Return what the training took in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "row.json"
        told = [sys.executable, "-m", "benchmarks.cuda_memory", "--child", str(out), f"{name}:{batch}"]
        child = subprocess.run(told, capture_output=True, text=True, timeout=_TIMEOUT_S)
        if child.returncode:
            return {"failed": child.stderr[-600:]}
        row: Row = json.loads(out.read_text())
        return row


def compared(asked: tuple[str, int], kept: Row | None) -> Row:
    """Return what the training takes, or took as kept, beside what fit says of it."""
    name, batch = asked
    try:
        return {"name": f"{name}:{batch}", **(kept or measured(name, batch)), **predicted(name, batch)}
    except subprocess.TimeoutExpired:
        return {"name": f"{name}:{batch}", "failed": f"not done in {_TIMEOUT_S} s"}


def table(rows: list[Row]) -> str:
    """Markdown: said beside taken, MB."""
    lines = [
        "| training | tensors said | taken | reserved said | taken | replayed | context | host | in the interval |",
        "| --- |" + " --- |" * 8,
    ]
    for row in rows:
        if "failed" in row or "fit_failed" in row:
            lines.append(f"| {row['name']} | {str(row.get('failed') or row.get('fit_failed'))[-200:]!r} |")
            continue
        low, high = row["said_reserved"]
        inside = low <= row["reserved"] <= high
        replayed = f"{row['replayed'] / row['recorded'] - 1:+.2%}" if "replayed" in row else "-"
        lines.append(
            f"| {row['name']} | {' / '.join(f'{part / 1e6:.1f}' for part in row['said_live'])} |"
            f" {row['allocated'] / 1e6:.1f} | {low / 1e6:.1f} to {high / 1e6:.1f} | {row['reserved'] / 1e6:.1f} |"
            f" {replayed} | {row['context'] / 1e6:.0f} | {row['host'] / 1e6:.0f} | {'yes' if inside else 'no'} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainings", nargs="*", default=list(_TRAININGS), help="WORKLOAD:BATCH")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--kept", type=Path, help="measurements of a GPU that was here once")
    parser.add_argument("--processes", type=int, default=4, help="trainings at once")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    told = parser.parse_args()
    asked = [(name, int(batch)) for name, _, batch in (text.partition(":") for text in told.trainings)]
    if told.child:
        told.child.write_text(json.dumps(trained(*asked[0])))
        return
    kept = {row["name"]: row for row in json.loads(told.kept.read_text())} if told.kept else {}
    asked = [(name, int(batch)) for name, _, batch in (text.partition(":") for text in kept)] or asked
    rows: list[Row] = []
    with ThreadPoolExecutor(told.processes) as pool:
        for row in pool.map(lambda one: compared(one, kept.get(f"{one[0]}:{one[1]}")), asked):
            rows.append(row)
            if told.write:
                told.write.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
