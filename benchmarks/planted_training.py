"""A small training with a cause of slowness planted in it: the script that `benchmarks.planted_causes` profiles.

`stepscope run benchmarks/planted_training.py -- CAUSE SEED [--seconds 3]`. Network, sizes, optimizer, threads and the
magnitude of the cause are drawn from the seed. What comes from outside the process (load, quotas, limits) is planted by
the caller, between the files `begun` and `ended` in the folder $PLANTED; both bracket the training loop. The last line
of stdout says as JSON what the kernel counted for this process meanwhile, so that a disturbed run can be told.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import resource
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.networks import NETWORKS, Batch, Network, network

CORES = os.cpu_count() or 1
FOLDER = Path(os.environ.get("PLANTED", "."))
_SAMPLES = 256  # of the data set
_WARM = 6  # steps before a cause that begins in mid-run


class Samples(Dataset[Batch]):
    """Random samples of a network, each of which takes a while to prepare."""

    def __init__(self, made: Network, prepare: Callable[[int], None]) -> None:
        self.inputs, self.targets = made.batch(_SAMPLES)
        self.prepare = prepare

    def __len__(self) -> int:
        return _SAMPLES

    def __getitem__(self, number: int) -> Batch:
        self.prepare(number)
        return self.inputs[number], self.targets[number]


@dataclass
class Training:
    """What is trained, with hooks of the planted cause around each step; all times in seconds."""

    made: Network
    optimizer: torch.optim.Optimizer
    batches: Iterator[Batch]
    before: Callable[[int], None] = lambda step: None
    after: Callable[[int], None] = lambda step: None


def forever(batches: DataLoader[Batch]) -> Iterator[Batch]:
    """Repeat the data set, epoch after epoch."""
    while True:
        yield from batches


def optimizer_of(draw: random.Random, model: nn.Module) -> torch.optim.Optimizer:
    """Return one of four optimizers for all parameters that train."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    choices: list[Callable[[], torch.optim.Optimizer]] = [
        lambda: torch.optim.SGD(parameters, lr=1e-3),
        lambda: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
        lambda: torch.optim.Adam(parameters, lr=1e-4),
        lambda: torch.optim.AdamW(parameters, lr=1e-4),
    ]
    return draw.choice(choices)()


def usual(draw: random.Random, names: tuple[str, ...] = ("resnet", "depthwise", "vgg", "lstm", "gpt")) -> Network:
    """Return an ordinary network whose step takes some 10 to 100 ms."""
    return network(draw.choice(names), draw.uniform(1.0, 1.6), draw.uniform(0.8, 1.6))


def step_s(made: Network) -> float:
    """Estimate the time of a training step from forward passes without gradients."""
    inputs, _ = made.batch(made.samples)
    times = []
    with torch.no_grad():
        for _ in range(4):
            began = time.perf_counter()
            made.model(inputs)
            times.append(time.perf_counter() - began)
    return 3.3 * min(times)


def plain(draw: random.Random, made: Network) -> Training:
    """Train without any cause, from a loader or from batches that are there."""
    if draw.random() < 0.5:
        loader = DataLoader(Samples(made, lambda _: None), made.samples, shuffle=True)
        return Training(made, optimizer_of(draw, made.model), forever(loader))
    kept = [made.batch(made.samples) for _ in range(4)]
    return Training(made, optimizer_of(draw, made.model), (kept[step % 4] for step in range(10**9)))


def spin(seconds: float) -> None:
    """Compute for a while, in Python, as a decoder would."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        sum(range(100))


def slow_loader(draw: random.Random) -> Training:
    """Preparing a batch takes longer than training on it: by computing or by waiting, here or in workers."""
    torch.set_num_threads(draw.randint(1, CORES))
    made = usual(draw)
    workers = draw.choice((0, 0, 1, 2))
    sample_s = draw.uniform(1.3, 4.0) * step_s(made) / made.samples * max(1, workers)
    act = spin if workers < CORES and draw.random() < 0.5 else time.sleep
    loader = DataLoader(Samples(made, lambda _: act(sample_s)), made.samples, shuffle=True, num_workers=workers)
    return Training(made, optimizer_of(draw, made.model), forever(loader))


def sleep_in_loop(draw: random.Random) -> Training:
    """Somebody left a sleep in the loop."""
    training = plain(draw, usual(draw))
    pause = draw.uniform(1.2, 4.0) * step_s(training.made)

    def wait(step: int) -> None:
        time.sleep(pause)

    if draw.random() < 0.5:
        training.before = wait
    else:
        training.after = wait
    return training


def tiny_ops(draw: random.Random) -> Training:
    """Far more operators than work: deep and narrow layers, or a cell called word by word."""
    torch.set_num_threads(1)
    wide = draw.randint(8, 40)
    if draw.random() < 0.6:
        layers: list[nn.Module] = []
        for _ in range(draw.randint(30, 90)):
            layers += [nn.Linear(wide, wide), draw.choice((nn.ReLU, nn.Tanh, nn.GELU))()]
        model = nn.Sequential(*layers)
        made = Network(model, lambda n: (torch.randn(n, wide), torch.randint(wide, (n,))), draw.randint(1, 8))
    else:
        model = nn.Sequential(WordByWord(wide, draw.randint(20, 50)))
        length = draw.randint(20, 50)
        made = Network(model, lambda n: (torch.randn(n, length, wide), torch.randint(wide, (n,))), draw.randint(1, 8))
    training = plain(draw, made)
    training.optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    return training


class WordByWord(nn.Module):
    """A GRU cell in a loop of Python."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.cell, self.out = nn.GRUCell(inputs, hidden), nn.Linear(hidden, inputs)

    def forward(self, words: Tensor) -> Tensor:
        state = None
        for number in range(words.shape[1]):
            state = self.cell(words[:, number], state)
        return torch.as_tensor(self.out(state))


def large_gemm(draw: random.Random) -> Training:
    """Large matrices with many samples, hence many FLOPs a byte."""
    torch.set_num_threads(draw.choice((1, CORES)))
    wide = draw.choice((768, 1024, 1280))
    layers: list[nn.Module] = []
    for _ in range(draw.randint(2, 4)):
        layers += [nn.Linear(wide, wide, bias=draw.random() < 0.5), nn.ReLU()]
    made = Network(
        nn.Sequential(*layers), lambda n: (torch.randn(n, wide), torch.randint(wide, (n,))), draw.randint(384, 640)
    )
    training = plain(draw, made)
    training.optimizer = torch.optim.SGD(made.model.parameters(), lr=1e-3)
    return training


class Scale(nn.Module):
    """Multiply by a factor of each feature, and by a fixed mask."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(features))
        self.register_buffer("mask", torch.rand(features).round())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor + torch.as_tensor(self.mask)


def elementwise_chain(draw: random.Random) -> Training:
    """A chain of elementwise layers on tensors that are larger than every cache."""
    torch.set_num_threads(draw.choice((1, CORES)))
    features = draw.choice((1024, 2048, 4096))
    layers: list[nn.Module] = [nn.Linear(8, features, bias=False)]
    for _ in range(draw.randint(2, 4)):
        layers += [Scale(features), draw.choice((nn.ReLU, nn.LeakyReLU, nn.Hardtanh))()]
    model = nn.Sequential(*layers, nn.AvgPool1d(features // 8))
    rows = draw.randint(10, 18) * 1_000_000 // features  # 40 to 72 MB a tensor
    made = Network(model, lambda n: (torch.randn(n, 8), torch.randint(8, (n,))), rows)
    kept = made.batch(rows)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    return Training(made, optimizer, (kept for _ in range(10**9)))


def pinned(draw: random.Random) -> Training:
    """Two or more threads of torch on a single core."""
    torch.set_num_threads(draw.randint(2, 4))
    os.sched_setaffinity(0, {draw.randrange(CORES)})
    return plain(draw, usual(draw, ("resnet", "vgg", "group-norm", "gpt")))


class Stretched(nn.Module):
    """A linear layer whose operators take longer when the clock falls, while their number stays what it was."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(features, features) / features**0.5)
        self.slowness = 1.0

    def forward(self, x: Tensor) -> Tensor:
        times = max(1, round(4 * self.slowness))
        repeated = x.repeat_interleave(times, 0)  # of a clock that fell to half: twice as many rows
        return (repeated @ self.weight).view(len(x), times, -1).mean(1)


def clock_drop(draw: random.Random) -> Training:
    """The clock falls, as the files of the system below $STEPSCOPE_ROOT say, and steps become as much slower."""
    torch.set_num_threads(draw.choice((1, CORES)))
    wide = draw.choice((256, 384, 512))
    model = nn.Sequential(*[Stretched(wide) for _ in range(draw.randint(2, 4))])
    made = Network(model, lambda n: (torch.randn(n, wide), torch.randint(wide, (n,))), draw.randint(48, 96))
    training = plain(draw, made)
    remaining, heated = draw.uniform(0.35, 0.65), draw.random() < 0.7
    fall_s, began = draw.uniform(0.8, 1.6), time.monotonic()
    root = Path(os.environ["STEPSCOPE_ROOT"])

    def fall(step: int) -> None:
        if step > _WARM and model[0].slowness == 1.0 and time.monotonic() > began + fall_s:
            throttle(root, remaining, heated)
            for layer in model:
                layer.slowness = 1 / remaining  # type: ignore[assignment]

    training.before = fall
    return training


def throttle(root: Path, remaining: float, heated: bool) -> None:
    """Write what a kernel shows when it throttles: a lower clock, with heat or with a lower limit of the clock."""
    for policy in sorted(root.glob("sys/devices/system/cpu/cpufreq/policy*")):
        khz = int(int((policy / "cpuinfo_max_freq").read_text()) * remaining)
        for name in ("scaling_cur_freq", "cpuinfo_cur_freq", *(() if heated else ("scaling_max_freq",))):
            (policy / name).write_text(f"{khz}\n")
    if heated:
        for zone in sorted(root.glob("sys/class/thermal/thermal_zone*")):
            (zone / "temp").write_text(f"{int((zone / 'trip_point_0_temp').read_text()) + 500}\n")
        for count in sorted(root.glob("sys/devices/system/cpu/cpu*/thermal_throttle/*_count")):
            count.write_text(f"{int(count.read_text()) + 37}\n")


def gil(draw: random.Random) -> Training:
    """Threads of Python compute beside the training and hold the interpreter's lock."""
    torch.set_num_threads(1)
    training = plain(draw, usual(draw, ("gpt", "group-norm", "encoder", "lenet")))
    for _ in range(draw.randint(1, 3)):
        threading.Thread(target=spin, args=(1e9,), daemon=True).start()
    return training


def slow_disk(draw: random.Random) -> Training:
    """Samples are read from a disk that is slower than the training: nothing of the file is cached."""
    torch.set_num_threads(draw.randint(1, CORES))
    made = usual(draw)
    path, mib = FOLDER / "samples.bin", 256
    with path.open("wb") as file:
        for _ in range(mib):
            file.write(os.urandom(1 << 20))
        os.fsync(file.fileno())
    descriptor = os.open(path, os.O_RDONLY)
    forget(descriptor)
    began = time.perf_counter()
    for block in range(16):
        os.pread(descriptor, 1 << 18, block << 20)
    block_s = (time.perf_counter() - began) / 16
    blocks = draw.uniform(1.5, 4.0) * step_s(made) / block_s / made.samples

    def read(number: int) -> None:
        wanted = blocks * (number + 1) - int(blocks * number)  # a fraction of a block is read now and then
        for _ in range(int(wanted)):
            place = random.randrange(mib * 4) << 18
            os.posix_fadvise(descriptor, place, 1 << 18, os.POSIX_FADV_DONTNEED)
            os.pread(descriptor, 1 << 18, place)

    workers = draw.choice((0, 0, 1))
    loader = DataLoader(Samples(made, read), made.samples, shuffle=True, num_workers=workers)
    return Training(made, optimizer_of(draw, made.model), forever(loader))


def forget(descriptor: int) -> None:
    """Drop a file from the page cache."""
    os.fdatasync(descriptor)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)


class Mapped(nn.Module):
    """A frozen embedding whose table lies in a file that is mapped into memory; each sample looks up random rows."""

    def __init__(self, path: Path, rows: int, features: int, lookups: int) -> None:
        super().__init__()
        self.rows, self.lookups = rows, lookups
        with path.open("r+b") as file:
            self.mapped = mmap.mmap(file.fileno(), rows * features * 4)
        self.mapped.madvise(mmap.MADV_RANDOM)  # else each miss reads megabytes ahead
        self.table = torch.frombuffer(self.mapped, dtype=torch.float32).view(rows, features)

    def forward(self, x: Tensor) -> Tensor:
        wanted = torch.randint(self.rows, (len(x), self.lookups))
        return x + nn.functional.embedding(wanted, self.table).sum(1)


def memory_hog(draw: random.Random) -> Training:
    """Each step needs tables that are larger than the memory that the process may have."""
    torch.set_num_threads(draw.randint(1, CORES))
    features = draw.choice((64, 128, 256))
    layers: list[nn.Module] = []
    for number in range(draw.randint(2, 4)):
        path, rows = FOLDER / f"table-{number}.bin", (draw.randint(80, 140) << 20) // 4 // features
        with path.open("wb") as file:
            for _ in range(rows // 1024 + 1):
                file.write(bytes(1024 * features * 4))
            os.fsync(file.fileno())
        layers += [Mapped(path, rows, features, draw.randint(8, 24)), nn.Linear(features, features), nn.ReLU()]
    model = nn.Sequential(*layers)
    return plain(draw, Network(model, lambda n: (torch.randn(n, features), torch.randint(features, (n,))), 64))


def outside(draw: random.Random) -> Training:
    """Train as usual: the cause is outside the process."""
    torch.set_num_threads(draw.choice((1, CORES, CORES)))
    return plain(draw, usual(draw))


CAUSES: dict[str, Callable[[random.Random], Training]] = {
    "slow-loader": slow_loader,
    "sleep-in-loop": sleep_in_loop,
    "other-load": outside,
    "cgroup-quota": outside,
    "memory-hog": memory_hog,
    "tiny-ops": tiny_ops,
    "large-gemm": large_gemm,
    "elementwise-chain": elementwise_chain,
    "pinned": pinned,
    "clock-drop": clock_drop,
    "gil": gil,
    "slow-disk": slow_disk,
    "quiet": lambda draw: plain(draw, network(draw.choice(sorted(NETWORKS)), draw.uniform(1, 1.5), draw.uniform(1, 2))),
}


def waited_s() -> float:
    """Return how long all threads of this process were ready to run and did not, s."""
    files = Path("/proc/self/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[1]) for file in files) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cause", choices=list(CAUSES))
    parser.add_argument("seed", type=int)
    parser.add_argument("--seconds", type=float, default=4.0)
    options = parser.parse_args()
    draw = random.Random(f"{options.cause} {options.seed}")
    torch.manual_seed(options.seed)
    training = CAUSES[options.cause](draw)
    (FOLDER / "begun").touch()
    until, began = time.monotonic() + options.seconds, time.perf_counter()
    cpu, waited, step, loading = time.process_time(), waited_s(), 0, 0.0
    while time.monotonic() < until or step < 12:
        training.before(step)
        asked = time.perf_counter()
        inputs, targets = next(training.batches)
        loading += time.perf_counter() - asked
        training.optimizer.zero_grad()
        training.made.loss(training.made.model(inputs), targets).backward()  # type: ignore[no-untyped-call]
        training.optimizer.step()
        training.after(step)
        step += 1
    wall = time.perf_counter() - began
    counted = {
        "steps": step,
        "step_s": wall / step,
        "loading": loading / wall,
        "cores": (time.process_time() - cpu) / wall,
        "run_delay": max(0.0, waited_s() - waited) / wall,
        "major_faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
    }
    (FOLDER / "ended").touch()
    print(json.dumps(counted))


if __name__ == "__main__":
    main()
