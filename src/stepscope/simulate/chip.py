"""Boards that compute: how busy GPU, memory controller and cores of a board are in each state of a training.

What a state has to do (FLOP, bytes, kernels) is set against the peaks of the board's data sheet. It would last there as
long as the GPU takes, or as the core that launches its kernels, whichever is longer; each is busy for its part of that.
States last as long as they do on the machine that really trains: the board's activity, in the machine's time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepscope.simulate.marks import HOST, IDLE, State

GPU, MEMORY = "gpu", "emc"
_OF_THE_PEAK, _OF_THE_BANDWIDTH = 0.6, 0.75  # that large kernels reach; assumed
_SHORTEST_KERNEL_S = 4e-6
_LOADING_MEMORY = 0.1  # share of the bandwidth, while the host prepares data


@dataclass(frozen=True)
class Cluster:
    """Cores of one kind: highest clock, Hz, and main identification register."""

    cores: tuple[int, ...]
    hz: int
    midr: int


@dataclass(frozen=True)
class Draw:
    """Power of a component above idle, W, at full activity of the GPU, its arithmetic, the memory, and of one core."""

    load: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    core: float = 0.0


@dataclass(frozen=True)
class Chip:
    """Peaks by the data sheet: FLOP/s in fp32, B/s, Hz; time to launch a kernel, s; memory, B; power by component."""

    gpu: str  # its folder below sys/devices
    gpu_flops: float
    gpu_hz: int
    bandwidth: float
    memory_hz: int
    launch_s: float
    clusters: tuple[Cluster, ...]
    memory_bytes: int
    system_bytes: int  # of them that the system and the desktop take
    trip_celsius: float
    celsius_per_watt: float  # with the heat sink that it is sold with; assumed
    draw: Mapping[str, Draw]

    @property
    def cores(self) -> tuple[int, ...]:
        """Return the number of each core, in order."""
        return tuple(sorted(core for cluster in self.clusters for core in cluster.cores))

    @property
    def processors(self) -> tuple[str, ...]:
        """Return the names of what can be busy: the GPU, the memory controller, each core."""
        return (GPU, MEMORY, *(f"core{core}" for core in self.cores))


@dataclass(frozen=True)
class Changed:
    """The board's constants in times of its own: peak, bandwidth, and power of GPU, memory and cores.

    launch_s: None is the board's own. spread: the part of the CPU's work that all cores share; the rest is one core's.
    """

    peak: float = 1.0
    bandwidth: float = 1.0
    launch_s: float | None = None
    spread: float = 0.3
    gpu_power: float = 1.0
    memory_power: float = 1.0
    core_power: float = 1.0


@dataclass(frozen=True)
class Activity:
    """Shares of time: GPU, its arithmetic, memory controller, and the thread that launches."""

    gpu: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    host: float = 0.0

    def by_processor(self, chip: Chip, spread: float) -> list[float]:
        """Return the busy share of each of the chip's processors."""
        cores = chip.cores
        shared = self.host * spread / len(cores)
        return [self.gpu, self.memory, self.host * (1 - spread) + shared, *[shared] * (len(cores) - 1)]

    def watts(self, draw: Draw, changed: Changed) -> float:
        """Return the power above idle of a component, W."""
        of_gpu = changed.gpu_power * (draw.load * self.gpu + draw.compute * self.compute)
        return of_gpu + changed.memory_power * draw.memory * self.memory + changed.core_power * draw.core * self.host


def activity(chip: Chip, changed: Changed, state: State, state_id: int) -> Activity:
    """Return how busy the board is in a state."""
    if state_id == IDLE:
        return Activity()
    if state_id == HOST:
        return Activity(memory=_LOADING_MEMORY, host=1.0)
    compute_s = state.flops / (chip.gpu_flops * changed.peak * _OF_THE_PEAK)
    memory_s = state.moved / (chip.bandwidth * changed.bandwidth * _OF_THE_BANDWIDTH)
    gpu_s = max(compute_s, memory_s, state.kernels * _SHORTEST_KERNEL_S)
    host_s = state.kernels * (chip.launch_s if changed.launch_s is None else changed.launch_s)
    whole_s = max(gpu_s, host_s)
    return Activity(gpu_s / whole_s, compute_s / whole_s, memory_s / whole_s, host_s / whole_s)


TX2 = Chip(
    gpu="gpu.0",
    gpu_flops=2 * 256 * 1.3005e9,
    gpu_hz=1_300_500_000,
    bandwidth=59.7e9,
    memory_hz=1_866_000_000,
    launch_s=60e-6,
    clusters=(Cluster((0, 3, 4, 5), 2_035_200_000, 0x411FD073), Cluster((1, 2), 2_035_200_000, 0x4E0F0030)),
    memory_bytes=8_243_000_000,
    system_bytes=1_400_000_000,
    trip_celsius=95.5,
    celsius_per_watt=3.5,
    draw={
        "gpu": Draw(load=1.8, compute=4.0),
        "soc": Draw(load=0.3, memory=0.6),
        "wifi": Draw(),
        "cpu": Draw(core=1.0),
        "ddr": Draw(memory=2.4),
        "rest": Draw(load=0.4, compute=0.6, memory=0.4, core=0.15),
    },
)

ORIN_NANO = Chip(
    gpu="platform/bus@0/17000000.gpu",
    gpu_flops=2 * 1024 * 0.6248e9,
    gpu_hz=624_750_000,
    bandwidth=68e9,
    memory_hz=2_133_000_000,
    launch_s=25e-6,
    clusters=(Cluster((0, 1, 2, 3, 4, 5), 1_510_400_000, 0x410FD421),),
    memory_bytes=7_990_000_000,
    system_bytes=1_500_000_000,
    trip_celsius=99.0,
    celsius_per_watt=3.0,
    draw={
        "compute": Draw(load=1.5, compute=4.5, core=1.2),
        "soc": Draw(load=0.4, memory=1.6),
        "rest": Draw(load=0.3, compute=0.6, memory=0.4, core=0.15),
    },
)

AGX_XAVIER = Chip(
    gpu="17000000.gv11b",
    gpu_flops=2 * 512 * 1.377e9,
    gpu_hz=1_377_000_000,
    bandwidth=136.5e9,
    memory_hz=2_133_000_000,
    launch_s=40e-6,
    clusters=(Cluster(tuple(range(8)), 2_265_600_000, 0x4E0F0040),),
    memory_bytes=33_500_000_000,
    system_bytes=1_600_000_000,
    trip_celsius=86.0,
    celsius_per_watt=1.4,
    draw={
        "gpu": Draw(load=3.5, compute=9.0),
        "cpu": Draw(core=1.8),
        "soc": Draw(load=0.6, memory=1.2),
        "cv": Draw(),
        "ddr": Draw(memory=3.2),
        "rest": Draw(load=0.8, compute=1.2, memory=0.8, core=0.3),
    },
)
