"""The question of `stepscope fit`: its fields are the options of the command."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from stepscope.request import REQUIRED, Request, option


@dataclass(frozen=True)
class FitRequest(Request):
    """Say without training whether it fits: peak memory, largest batch, and what would make it fit.

    `stepscope fit resnet18-c32 --batch 64 --board tx2` makes one step on tensors without numbers. A script is followed
    to its end, with long loops cut. `--plan` looks for the cheapest combination of changes that fits, `--prove` trains
    it. `--probe` trains for real in child processes until one fails, and what it finds corrects later answers on this
    device. `--allocators` runs the step for real under each allocator.
    """

    target: str = option(REQUIRED, "A workload, module:function, or a script; its options after --.", argument=True)
    memory: str | None = option(None, "Memory the process may take: 8GB, 512MB, 7.5GiB.")
    account: str = option(
        "resident", "Who counts --memory: resident (RAM), cgroup, address-space (ulimit -v), data (-d)."
    )
    board: str | None = option(None, "A board: tx2, orin-nano, rpi5; its memory less what its system keeps.")
    here: bool = option(None, "What is available on this machine now.")
    batch: int | None = option(None, "Samples per step.", short="--batch-size")
    optimizer: str | None = option(None, "Optimizer: sgd, momentum, adam, adamw, rmsprop.")
    precision: str = option("float32", "float32, or bf16 for everything.")
    malloc: str = option("default", "Allocator: default (glibc), pinned, tcmalloc; on cuda PYTORCH_CUDA_ALLOC_CONF.")
    device: str = option("cpu", "Device of torch whose memory and kernels count: cpu, or cuda (a GPU's own).")
    threads: int | None = option(None, "Threads that torch computes with.")
    options: bool = option(True, "Look for what would make it fit.")
    plan: bool = option(None, "Look for the cheapest combination of changes that fits.")
    prove: bool = option(None, "Train three steps of the plan, under the limit where the kernel can keep it.")
    calibrate: bool = option(None, "Measure single operators here first.")
    probe: bool = option(None, "Really train with more and more samples.")
    allocators: bool = option(None, "Really train under each allocator: memory against time.")
    figures: Path | None = option(None, "Folder that pictures of the answer are written into.")
    beside: tuple[str, ...] | None = option(
        None, "Another workload to draw beside it; may be given repeatedly.", separate=True
    )
    format: tuple[str, ...] | None = option(None, "Of pictures: png (default), svg, pdf or vega.", separate=True)
