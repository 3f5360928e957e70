"""Two gloo ranks that train under `profile`; rank 1 is late in each step. Writes what each saw by its own clock.

Run as `python two_ranks.py FOLDER`: FOLDER/<mode>/<rank>/ gets a run, FOLDER/<mode>-<rank>.json the times, ns:
when each step called its first collective, and when it had the result of the last.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

import stepscope

DELAY_S = 0.05
TOGETHER = 3  # first steps, in one of which DDP agrees on its buckets: rank 0 makes no call before rank 1 is there
STEPS = 24
WIDTH = 256


def train(rank: int, folder: str) -> None:
    """Train in both modes, one run each."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    for mode in ("sync", "ddp"):
        _train(rank, Path(folder), mode)
    dist.destroy_process_group()


def _train(rank: int, folder: Path, mode: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(6)))
    called: list[int] = []
    seen: list[tuple[int, int]] = []

    def call() -> None:
        """Note when a collective is called; rank 1 sees the first one of a step."""
        called.append(time.monotonic_ns())
        if rank == 0 and len(called) == 1:
            (folder / f"{mode}-called-{len(seen)}").touch()

    net: nn.Module = model
    if mode == "ddp":
        net = DistributedDataParallel(model, bucket_cap_mb=0.5)
        net.register_comm_hook(call, _averaged)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    inputs = torch.randn(32, WIDTH)
    dist.barrier()
    with stepscope.profile(model, optimizer, out=folder / mode / str(rank), record="all", steps="optimizer"):
        for step in range(STEPS):
            if rank == 1:
                while step >= TOGETHER and not (folder / f"{mode}-called-{step}").exists():
                    time.sleep(0.001)
                time.sleep(DELAY_S)
            optimizer.zero_grad()
            loss = net(inputs).square().mean()
            called.clear()
            loss.backward()
            if mode == "sync":
                flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
                call()
                dist.all_reduce(flat)
            seen.append((called[0], time.monotonic_ns()))
            optimizer.step()
    (folder / f"{mode}-{rank}.json").write_text(json.dumps(seen), encoding="utf-8")


def _averaged(call: Callable[[], None], bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore[name-defined]
    """The all-reduce of a bucket, its time noted, and the mean of it, which a thread of the backend takes."""
    call()
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    mean: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0].div_(2))
    return mean


if __name__ == "__main__":
    start_processes(train, (sys.argv[1],), nprocs=2, start_method="spawn")  # type: ignore[no-untyped-call]
