"""Boards that compute: how busy GPU, memory controller and cores of a board are in each state of a training.

What a state has to do (FLOP, bytes, kernels) is set against the peaks of the board's data sheet. It would last there as
long as the GPU takes, or as the core that launches its kernels, whichever is longer; each is busy for its part of that.
States last as long as they do on the machine that really trains: the board's activity, in the machine's time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from stepscope.simulate.marks import HOST, IDLE, State

GPU, MEMORY = "gpu", "emc"
_OF_THE_PEAK, _OF_THE_BANDWIDTH = 0.6, 0.75  # that large kernels reach; assumed
_SHORTEST_KERNEL_S = 4e-6
_LOADING_MEMORY = 0.1  # share of the bandwidth, while the host prepares data


@dataclass(frozen=True)
class Cluster:
    """Cores of one kind: highest clock, Hz, main identification register, and the lower clocks of its governor."""

    cores: tuple[int, ...]
    hz: int
    midr: int
    lower_hz: tuple[int, ...] = ()


@dataclass(frozen=True)
class PowerDraw:
    """Power of a component above idle, W, at full activity of the GPU, its arithmetic, the memory, and of one core.

    clocked: of the memory while anything computes, at its highest clock, however little is moved.
    """

    load: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    core: float = 0.0
    clocked: float = 0.0


@dataclass(frozen=True)
class Chip:
    """Peaks by the data sheet: FLOP/s in fp32, B/s, Hz; time to launch a kernel, s; memory, B; power by component.

    flops: of the GPU; of all cores, where the board has no GPU that torch trains on.
    """

    gpu: str | None  # its folder below sys/devices
    flops: float
    gpu_hz: int
    bandwidth: float
    memory_hz: int | None  # None: nothing states how busy the memory controller is
    launch_s: float
    clusters: tuple[Cluster, ...]
    memory_bytes: int
    system_bytes: int  # of them that the system and the desktop take
    trip_celsius: float
    celsius_per_watt: float  # with the heat sink that it is sold with; assumed
    draw: Mapping[str, PowerDraw]
    gpu_lower_hz: tuple[int, ...] = ()  # clocks that its governor takes when it has less to do
    cell_kernels: int = 2  # for a step of a recurrent layer, as cuDNN fuses it: the product, and what comes after it

    @property
    def cores(self) -> tuple[int, ...]:
        """Return the number of each core, in order."""
        return tuple(sorted(core for cluster in self.clusters for core in cluster.cores))

    @property
    def processors(self) -> tuple[str, ...]:
        """Return the names of what can be busy: the GPU, the memory controller, each core."""
        return (*(() if self.gpu is None else (GPU,)), MEMORY, *(f"core{core}" for core in self.cores))


@dataclass(frozen=True)
class ChipScaling:
    """The board's constants in times of its own: peak, bandwidth, and power of GPU, memory and cores."""

    peak: float = 1.0  # times that of the chip's data sheet
    bandwidth: float = 1.0  # likewise
    launch_ns: int | None = None  # of the core that launches a kernel; None: as the chip comes
    cell_kernels: int | None = None  # for a step of a recurrent layer; None: as the chip comes
    spread: float = 0.3  # part of the CPU's work that all cores share; the rest is one core's
    gpu_power: float = 1.0  # times the board's own, as the next two
    memory_power: float = 1.0
    core_power: float = 1.0


@dataclass(frozen=True)
class Activity:
    """Shares of time: GPU, its arithmetic, memory controller, the thread that launches, all cores at once, any."""

    gpu: float = 0.0
    compute: float = 0.0
    memory: float = 0.0
    host: float = 0.0
    cores: float = 0.0
    awake: float = 0.0

    def busy_shares(self, chip: Chip, spread: float) -> list[float]:
        """Return the busy share of each of the chip's processors."""
        count = len(chip.cores)
        shared = self.host * spread / count + self.cores
        of_gpu = [] if chip.gpu is None else [self.gpu]
        return [*of_gpu, self.memory, self.host * (1 - spread) + shared, *[shared] * (count - 1)]

    def watts_above_idle(self, draw: PowerDraw, changed: ChipScaling, cores: int = 0) -> float:
        """Return the power above idle of a component, W, of a board with so many cores."""
        of_gpu = changed.gpu_power * (draw.load * self.gpu + draw.compute * self.compute)
        of_cores = changed.core_power * draw.core * (self.host + cores * self.cores)
        of_memory = changed.memory_power * (draw.memory * self.memory + draw.clocked * self.awake)
        return of_gpu + of_memory + of_cores


def activity(chip: Chip, changed: ChipScaling, state: State, state_id: int) -> Activity:
    """Return how busy the board is in a state."""
    if state_id == IDLE:
        return Activity()
    if state_id == HOST:
        return Activity(memory=_LOADING_MEMORY, host=1.0, awake=1.0)
    compute_s = state.flops / (chip.flops * changed.peak * _OF_THE_PEAK)
    memory_s = state.moved / (chip.bandwidth * changed.bandwidth * _OF_THE_BANDWIDTH)
    of_cell = chip.cell_kernels if changed.cell_kernels is None else changed.cell_kernels
    kernels = state.kernels + state.cells * of_cell
    host_s = kernels * (chip.launch_s if changed.launch_ns is None else max(changed.launch_ns, 1) * 1e-9)
    if chip.gpu is None:  # a core calls the kernels, and all of them compute
        kernels_s = max(compute_s, memory_s)
        whole_s = kernels_s + host_s
        return Activity(memory=memory_s / whole_s, host=host_s / whole_s, cores=kernels_s / whole_s, awake=1.0)
    gpu_s = max(compute_s, memory_s, kernels * _SHORTEST_KERNEL_S)
    whole_s = max(gpu_s, host_s)
    return Activity(gpu_s / whole_s, compute_s / whole_s, memory_s / whole_s, host_s / whole_s, awake=1.0)


def governed_hz(highest: int, lower: Sequence[int], load: float) -> int:
    """Return the lowest clock that leaves a fifth of it free, as Linux's schedutil chooses (1.25 x load x highest)."""
    return next((hz for hz in sorted(lower) if hz >= 1.25 * load * highest), highest)


_TX2_GPU_MHZ = (114.75, 216.75, 318.75, 420.75, 522.75, 624.75, 726.75, 854.25, 930.75, 1032.75, 1122, 1236.75)
_XAVIER_GPU_MHZ = (114.75, 216.75, 318.75, 420.75, 522.75, 624.75, 675.75, 828.75, 905.25, 1032.75, 1198.5, 1236.75,
                   1338.75)  # fmt: skip
_ORIN_GPU_MHZ = (306, 408, 510)


def _hertz(megahertz: Sequence[float]) -> tuple[int, ...]:
    return tuple(round(1e6 * number) for number in megahertz)


# TensorFlow 1.13, with which the 2019 paper trained, runs a step of an LSTM operator by operator: concat, product,
# bias, split, forget bias, three sigmoids, two tanh, three products and a sum of its gates.
TX2 = Chip(
    cell_kernels=14,
    gpu_lower_hz=_hertz(_TX2_GPU_MHZ),
    gpu="gpu.0",
    flops=2 * 256 * 1.3005e9,
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
        "gpu": PowerDraw(load=1.8, compute=4.0),
        "soc": PowerDraw(load=0.3, memory=0.6),
        "wifi": PowerDraw(),
        "cpu": PowerDraw(core=1.0),
        "ddr": PowerDraw(
            memory=2.4, clocked=0.8
        ),  # 0.73 to 1.24 W were recorded at 1.6 and 1.87 GHz with hardly any traffic
        "rest": PowerDraw(load=0.4, compute=0.6, memory=0.4, core=0.15),
    },
)

ORIN_NANO = Chip(
    gpu_lower_hz=_hertz(_ORIN_GPU_MHZ),
    gpu="platform/bus@0/17000000.gpu",
    flops=2 * 1024 * 0.6248e9,
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
        "compute": PowerDraw(load=1.5, compute=4.5, core=1.2),
        "soc": PowerDraw(load=0.4, memory=1.6),
        "rest": PowerDraw(load=0.3, compute=0.6, memory=0.4, core=0.15),
    },
)

AGX_XAVIER = Chip(
    gpu_lower_hz=_hertz(_XAVIER_GPU_MHZ),
    gpu="17000000.gv11b",
    flops=2 * 512 * 1.377e9,
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
        "gpu": PowerDraw(load=3.5, compute=9.0),
        "cpu": PowerDraw(core=1.8),
        "soc": PowerDraw(load=0.6, memory=1.2),
        "cv": PowerDraw(),
        "ddr": PowerDraw(memory=3.2),
        "rest": PowerDraw(load=0.8, compute=1.2, memory=0.8, core=0.3),
    },
)

# Four Cortex-A76 with two pipes of 128 bits: 16 FLOP in fp32 a cycle and core. LPDDR4X-4267 on 32 bits. The firmware
# lowers clocks from 80 degrees on, further at 85. VideoCore VII trains nothing in torch.
RASPBERRY_PI_5 = Chip(
    gpu=None,
    flops=4 * 16 * 2.4e9,
    gpu_hz=0,
    bandwidth=17.1e9,
    memory_hz=None,
    launch_s=8e-6,
    clusters=(Cluster((0, 1, 2, 3), 2_400_000_000, 0x414FD0B1, _hertz(range(1500, 2400, 100))),),
    memory_bytes=8_440_000_000,
    system_bytes=700_000_000,
    trip_celsius=80.0,
    celsius_per_watt=4.5,
    draw={
        "VDD_CORE": PowerDraw(core=1.15, memory=0.5),
        "DDR_VDD2": PowerDraw(memory=0.5),
        "DDR_VDDQ": PowerDraw(memory=0.1),
        "0V8_SW": PowerDraw(memory=0.05),
        "0V8_AON": PowerDraw(),
        "1V1_SYS": PowerDraw(memory=0.02),
        "1V8_SYS": PowerDraw(memory=0.05),
        "3V3_SYS": PowerDraw(),
        "3V7_WL_SW": PowerDraw(),
        "3V3_DAC": PowerDraw(),
        "3V3_ADC": PowerDraw(),
        "HDMI": PowerDraw(),
    },
)
