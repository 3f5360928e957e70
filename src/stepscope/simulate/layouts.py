"""Files of each board, and the sensor models that drive them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.arrays import Floats
from stepscope.simulate.boards import SAMPLES, Board, Options
from stepscope.simulate.chip import GPU, Chip
from stepscope.simulate.file_tree import ProcFolder, Tree
from stepscope.simulate.sensors import (
    ADC_BYTES,
    CONVERSION_NS,
    DEGREES_PER_W,
    RAPL_UNIT_J,
    UEVENT_BYTES,
    BatteryFiles,
    BatteryGauge,
    ChipFiles,
    ChipState,
    ClockFile,
    CounterKind,
    EnergyCounters,
    Ina3221,
    Pmic,
    PmicRail,
    Publish,
    SensorModel,
    ThermalZones,
    Wiring,
)


@dataclass(frozen=True)
class BuildContext:
    """The board that is built, its tree, and the moment it starts."""

    board: Board
    tree: Tree
    options: Options
    idle_w: Floats  # by rail
    rng: np.random.Generator
    t0_ns: int
    resident: Callable[[], int]  # what the training holds, B

    def column(self, rail: str) -> int:
        """Column of a rail in the power table."""
        return list(self.board.rails).index(rail)


@dataclass(frozen=True)
class Built:
    """The sensors of a board, and its /proc where that is not simply the real one."""

    sensors: Sequence[SensorModel]
    proc: ProcFolder | None = None
    too_hot: Callable[[], bool] = lambda: False


Build = Callable[[BuildContext], Built]


def link_real_machine(tree: Tree) -> None:
    """CPU, memory and operating system are those of the machine that really trains."""
    for path in ("sys/devices/system/cpu", "sys/devices/system/node", "sys/fs/cgroup", "etc/os-release"):
        tree.link_real(path)


_CHANNELS = 3
_MEMINFO_BYTES = 256
# Address on bus 0: rail, shunt mOhm and supply V by channel. Steps: VDD_IN 38 mW, DDR and WIFI 19 mW, the others 76.
_TX2_CHIPS = {
    "0-0040": (("VDD_SYS_GPU", 10, 19.1), ("VDD_SYS_SOC", 10, 19.1), ("VDD_4V0_WIFI", 10, 4.8)),
    "0-0041": (("VDD_IN", 20, 19.1), ("VDD_SYS_CPU", 10, 19.1), ("VDD_SYS_DDR", 10, 4.8)),
}
_TX2_COMPATIBLE = ("nvidia,p2597-0000+p3310-1000", "nvidia,quill", "nvidia,tegra186")
_ORIN_COMPATIBLE = ("nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234")
_XAVIER_CHIPS = {  # 154 mW a step of GPU, CPU, SOC and VDDRQ
    "1-0040": (("GPU", 5, 19.2), ("CPU", 5, 19.2), ("SOC", 5, 19.2)),
    "1-0041": (("CV", 5, 19.2), ("VDDRQ", 5, 19.2), ("SYS5V", 5, 19.2)),
}
_XAVIER_COMPATIBLE = ("nvidia,p2972-0000", "nvidia,tegra194")
_TX2_SAMPLES = 64  # 0x7727, the default of NVIDIA's driver
_ORIN_CHIP = (("VDD_IN", 5, 5.1), ("VDD_CPU_GPU_CV", 5, 5.1), ("VDD_SOC", 5, 5.1))
_ORIN_SAMPLES = 1  # 0x7127, the chip's own


_Chips = Mapping[str, tuple[tuple[str, int, float], ...]]  # by address: rail, shunt mOhm and supply V of each channel


def build_tx2(site: BuildContext) -> Built:
    """/sys/bus/i2c/drivers/ina3221x/0-004{0,1}/iio:device{0,1}, with the device tree nodes of the channels."""
    sensors = _iio_chips(site, "3160000.i2c/i2c-0", _TX2_CHIPS)
    return _jetson(site, sensors, ("BCPU-therm", "MCPU-therm", "GPU-therm"), "quill", _TX2_COMPATIBLE)


def build_agx_xavier(site: BuildContext) -> Built:
    """/sys/bus/i2c/drivers/ina3221x/1-004{0,1}/iio:device{0,1}, under JetPack 4."""
    sensors = _iio_chips(site, "c240000.i2c/i2c-1", _XAVIER_CHIPS)
    return _jetson(site, sensors, ("CPU-therm", "GPU-therm", "AUX-therm"), "Jetson-AGX", _XAVIER_COMPATIBLE)


def _iio_chips(site: BuildContext, bus: str, chips: _Chips) -> list[SensorModel]:
    """The INA3221 of a board under JetPack 4, each an iio device of NVIDIA's driver."""
    tree, samples = site.tree, site.options.samples or _TX2_SAMPLES
    tree.write_static_files(
        "etc", {"nv_tegra_release": "# R32 (release), REVISION: 7.1, BOARD: t186ref, EABI: aarch64"}
    )
    sensors: list[SensorModel] = []
    for number, (address, rails) in enumerate(chips.items()):
        device = f"sys/devices/{bus}/{address}"
        _iio_static(tree, device, f"{device}/iio:device{number}", rails, samples)
        tree.link(f"sys/bus/i2c/drivers/ina3221x/{address}", device)
        tree.link(f"sys/bus/iio/devices/iio:device{number}", f"{device}/iio:device{number}")
        publish = [_iio_files(tree, f"{device}/iio:device{number}", channel) for channel in range(_CHANNELS)]
        sensors.append(_make_ina3221(site, rails, publish, samples))
    return sensors


def build_orin_nano(site: BuildContext) -> Built:
    """/sys/bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon1, as the kernel's own driver lays it out."""
    tree, device = site.tree, "sys/devices/platform/bus@0/c240000.i2c/i2c-1/1-0040"
    samples = site.options.samples or _ORIN_SAMPLES
    tree.write_static_files(
        "etc", {"nv_tegra_release": "# R35 (release), REVISION: 4.1, BOARD: t186ref, EABI: aarch64"}
    )
    _hwmon_static(tree, f"{device}/hwmon/hwmon1", samples)
    tree.link("sys/bus/i2c/drivers/ina3221/1-0040", device)
    tree.link("sys/class/hwmon/hwmon1", f"{device}/hwmon/hwmon1")
    publish = [_hwmon_files(tree, f"{device}/hwmon/hwmon1", channel + 1) for channel in range(_CHANNELS)]
    zones = ("cpu-thermal", "gpu-thermal", "tj-thermal")
    sensors = [_make_ina3221(site, _ORIN_CHIP, publish, samples)]
    return _jetson(site, sensors, zones, "NVIDIA Orin Nano Developer Kit", _ORIN_COMPATIBLE)


def _make_ina3221(
    site: BuildContext, rails: Sequence[tuple[str, int, float]], publish: Sequence[Publish], samples: int
) -> Ina3221:
    wiring = [Wiring(site.column(rail), shunt_mohm, supply_v) for rail, shunt_mohm, supply_v in rails]
    return Ina3221(wiring, publish, samples, site.options, site.rng, site.t0_ns)


def _iio_static(tree: Tree, device: str, folder: str, rails: Sequence[tuple[str, int, float]], samples: int) -> None:
    tree.write_static_files(folder, {"name": "ina3221x", "running_mode": 1})
    config = 0x7000 | SAMPLES.index(samples) << 9 | 4 << 6 | 4 << 3 | 7  # three channels, 1.1 ms and 1.1 ms
    tree.write_device_tree_cells(f"{device}/of_node", {"ti,continuous-config": config})
    for channel, (rail, shunt_mohm, _) in enumerate(rails):
        limits = {f"{kind}_{channel}": "32760 ma" for kind in ("crit_current_limit", "warn_current_limit")}
        tree.write_static_files(folder, {f"rail_name_{channel}": rail, f"polling_delay_{channel}": "0 ms", **limits})
        tree.write_static_files(folder, {f"crit_power_limit_{channel}": "622440 mw"})
        tree.write_device_tree_cells(
            f"{device}/of_node/channel@{channel}", {"reg": channel, "ti,shunt-resistor-mohm": shunt_mohm}
        )


def _iio_files(tree: Tree, folder: str, channel: int) -> Publish:
    """The driver computes power from both registers, as integers."""
    both, power = tree.put_live(f"{folder}/ui_input_{channel}"), tree.put_live(f"{folder}/in_power{channel}_input")
    current = tree.put_live(f"{folder}/in_current{channel}_input")
    voltage = tree.put_live(f"{folder}/in_voltage{channel}_input")

    def publish(current_ma: int, voltage_mv: int) -> None:
        both.write(f"{voltage_mv} {current_ma}")
        power.write(str(current_ma * voltage_mv // 1000))
        current.write(str(current_ma))
        voltage.write(str(voltage_mv))

    return publish


def _hwmon_static(tree: Tree, folder: str, samples: int) -> None:
    round_ms = round(2 * _CHANNELS * CONVERSION_NS * samples / 1e6)
    tree.write_static_files(folder, {"name": "ina3221", "samples": samples, "update_interval": round_ms})
    tree.write_static_files(folder, {"in7_label": "sum of shunt voltages", "in7_input": 0, "curr4_input": 0})
    for number, (rail, shunt_mohm, _) in enumerate(_ORIN_CHIP, 1):
        tree.write_static_files(folder, {f"in{number}_label": rail, f"in{number}_enable": 1})
        tree.write_static_files(folder, {f"shunt{number}_resistor": shunt_mohm * 1000, f"curr{number}_max": 32760})


def _hwmon_files(tree: Tree, folder: str, number: int) -> Publish:
    current, voltage = tree.put_live(f"{folder}/curr{number}_input"), tree.put_live(f"{folder}/in{number}_input")
    shunt = tree.put_live(f"{folder}/in{number + _CHANNELS}_input")
    shunt_mohm = _ORIN_CHIP[number - 1][1]

    def publish(current_ma: int, voltage_mv: int) -> None:
        current.write(str(current_ma))
        voltage.write(str(voltage_mv))
        shunt.write(str(current_ma * shunt_mohm))

    return publish


def _jetson(
    site: BuildContext, meters: Sequence[SensorModel], zones: Sequence[str], model: str, compatible: tuple[str, ...]
) -> Built:
    """What all Jetsons have: zones, the device tree's names, and, where they compute, their own cores and memory."""
    chip = site.board.chip if site.options.computed else None
    return _board(site, meters, _zones(site, zones, chip), model, compatible)


def _board(
    site: BuildContext, meters: Sequence[SensorModel], heat: ThermalZones, model: str, compatible: tuple[str, ...]
) -> Built:
    """A board that is known by its device tree; its own cores and memory where it computes, else the machine's."""
    chip = site.board.chip if site.options.computed else None
    proc = ProcFolder(site.tree.root, model, compatible, () if chip is None else ("meminfo",))
    if chip is None:
        link_real_machine(site.tree)
        return Built([*meters, heat], proc)
    for path in ("sys/devices/system/node", "sys/fs/cgroup", "etc/os-release"):
        site.tree.link_real(path)
    files = _chip_files(site.tree, chip)
    state = ChipState(chip, files, site.options.throttle, site.t0_ns, site.resident)
    return Built([*meters, heat, state], proc, lambda: heat.hot)


_PI_5_COMPATIBLE = ("raspberrypi,5-model-b", "brcm,bcm2712")
_PI_5_RAILS = {  # supply V, and the numbers of its current and its voltage
    "3V7_WL_SW": (3.7, 0, 8),
    "3V3_SYS": (3.31, 1, 9),
    "1V8_SYS": (1.8, 2, 10),
    "DDR_VDD2": (1.104, 3, 11),
    "DDR_VDDQ": (0.603, 4, 12),
    "1V1_SYS": (1.107, 5, 13),
    "0V8_SW": (0.802, 6, 14),
    "VDD_CORE": (0.87, 7, 15),
    "3V3_DAC": (3.309, 17, 20),
    "3V3_ADC": (3.304, 18, 21),
    "0V8_AON": (0.799, 16, 19),
    "HDMI": (5.08, 22, 23),
}
_VCGENCMD = """#!/bin/sh
root=${0%/usr/bin/vcgencmd}
case $1 in
pmic_read_adc | get_throttled) exec cat "$root/firmware/$1" ;;
*) echo 'error=1 error_msg="Command not registered"' ;;
esac
"""


def build_raspberry_pi_5(site: BuildContext) -> Built:
    """usr/bin/vcgencmd, which answers what the firmware would; zone and cores in /sys."""
    tree = site.tree
    heat = _zones(site, ("cpu-thermal",), site.board.chip if site.options.computed else None)
    tree.write_program("usr/bin/vcgencmd", _VCGENCMD)
    rails = [PmicRail(name, site.column(name), *facts) for name, facts in _PI_5_RAILS.items()]
    adc, throttled = tree.put_live("firmware/pmic_read_adc", ADC_BYTES), tree.put_live("firmware/get_throttled")
    pmic = Pmic(rails, adc, throttled, heat, site.t0_ns)
    return _board(site, [pmic], heat, "Raspberry Pi 5 Model B Rev 1.0", _PI_5_COMPATIBLE)


def _zones(site: BuildContext, names: Sequence[str], chip: Chip | None) -> ThermalZones:
    folders = [f"sys/class/thermal/thermal_zone{number}" for number in range(len(names))]
    trip_c = math.inf if chip is None else chip.trip_celsius
    for folder, name in zip(folders, names, strict=True):
        site.tree.write_static_files(folder, {"type": name})
        if chip is not None:
            trip = {"trip_point_0_type": "passive", "trip_point_0_temp": round(1000 * trip_c)}
            site.tree.write_static_files(folder, trip)
    files = [site.tree.put_live(f"{folder}/temp") for folder in folders]
    rails = list(site.board.rails)
    heating = [rails.index("VDD_IN")] if "VDD_IN" in rails else list(range(len(rails)))
    per_watt = DEGREES_PER_W if chip is None else chip.celsius_per_watt
    return ThermalZones(heating, files, site.t0_ns, site.options.ambient, per_watt, trip_c)


def _chip_files(tree: Tree, chip: Chip) -> ChipFiles:
    """Cores with their clusters, idle time and clocks; load and clock of GPU and memory controller; memory."""
    cpus, debug = "sys/devices/system/cpu", "sys/kernel/debug"
    cores, clocks = chip.cores, list[ClockFile]()
    places = {name: index for index, name in enumerate(chip.processors)}
    tree.write_static_files(cpus, {"online": f"{cores[0]}-{cores[-1]}", "possible": f"{cores[0]}-{cores[-1]}"})
    for number, cluster in enumerate(chip.clusters):
        policy = f"{cpus}/cpufreq/policy{cluster.cores[0]}"
        names = {"cpuinfo_max_freq": cluster.hz // 1000, "scaling_governor": "schedutil"}
        tree.write_static_files(policy, {**names, "related_cpus": " ".join(map(str, cluster.cores))})
        driven = tuple(places[f"core{core}"] for core in cluster.cores)
        now, limit = (tree.put_live(f"{policy}/scaling_{name}_freq") for name in ("cur", "max"))
        clocks += [ClockFile(now, cluster.hz, 1000, cluster.lower_hz, driven), ClockFile(limit, cluster.hz, 1000)]
        for core in cluster.cores:
            folder = f"{cpus}/cpu{core}"
            tree.write_static_files(f"{folder}/topology", {"physical_package_id": 0, "cluster_id": number})
            tree.write_static_files(f"{folder}/regs/identification", {"midr_el1": f"0x{cluster.midr:016x}"})
            tree.link(f"{folder}/cpufreq", policy)
    load = activity = None
    if chip.gpu is not None:
        gpu = f"sys/devices/{chip.gpu}"
        clock = tree.put_live(f"{gpu}/devfreq/{chip.gpu.rpartition('/')[2]}/cur_freq")
        clocks.append(ClockFile(clock, chip.gpu_hz, 1, chip.gpu_lower_hz, (places[GPU],)))
        load = tree.put_live(f"{gpu}/load")
    if chip.memory_hz is not None:
        tree.write_static_files(f"{debug}/bpmp/debug/clk/emc", {"rate": chip.memory_hz})
        activity = tree.put_live(f"{debug}/cactmon/mc_all")
    return ChipFiles(
        gpu_load=load,
        memory_activity=activity,
        clocks=clocks,
        idle_us=[tree.put_live(f"{cpus}/cpu{core}/cpuidle/state0/time") for core in cores],
        meminfo=tree.put_live("proc/meminfo", _MEMINFO_BYTES),
    )


_ZONES = {
    "intel-rapl:0": "package-0",
    "intel-rapl:0:0": "core",
    "intel-rapl:0:1": "uncore",
    "intel-rapl:0:2": "dram",
    "intel-rapl:1": "psys",
}
_RAPL_RANGE_UJ = 262_143_328_850  # of Core processors: 2^32 - 1 units of 61 uJ
_LIMIT_UW = 65_000_000


def build_rapl(site: BuildContext) -> Built:
    """/sys/class/powercap/intel-rapl:N[:M] as links into /sys/devices/virtual/powercap, subzones inside their zone."""
    tree, options = site.tree, site.options
    range_uj = options.counter_range_uj or _RAPL_RANGE_UJ
    files = []
    for zone, name in _ZONES.items():
        outer = zone.rpartition(":")[0] if zone.count(":") == 2 else ""
        folder = "/".join(["sys/devices/virtual/powercap/intel-rapl", *([outer] if outer else []), zone])
        tree.write_static_files(folder, {"name": name, "max_energy_range_uj": range_uj, "enabled": int(not outer)})
        if not outer:
            limits = {"constraint_0_name": "long_term", "constraint_0_power_limit_uw": _LIMIT_UW}
            tree.write_static_files(folder, {**limits, "constraint_0_time_window_us": 27_983_872})
        files.append(tree.put_live(f"{folder}/energy_uj"))
        tree.link(f"sys/class/powercap/{zone}", folder)
    tree.write_static_files("sys/devices/virtual/powercap/intel-rapl", {"enabled": 1})
    tree.link("sys/class/powercap/intel-rapl", "sys/devices/virtual/powercap/intel-rapl")
    kind = CounterKind(options.refresh_ns or 1_000_000, RAPL_UNIT_J, range_uj)
    rails = [site.column(name) for name in _ZONES.values()]
    counters = EnergyCounters(kind, rails, files, options, site.rng, site.t0_ns)
    tree.link_real("proc")
    link_real_machine(tree)
    return Built([counters])


def build_battery(site: BuildContext) -> Built:
    """/sys/class/power_supply/BAT0 and the mains adapter AC."""
    tree = site.tree
    battery, mains = (
        "sys/devices/LNXSYSTM:00/PNP0C0A:00/power_supply/BAT0",
        "sys/devices/LNXSYSTM:00/ACPI0003:00/power_supply/AC",
    )
    tree.write_static_files(battery, {"type": "Battery", "present": 1})
    tree.write_static_files(mains, {"type": "Mains", "uevent": "POWER_SUPPLY_NAME=AC\nPOWER_SUPPLY_TYPE=Mains"})
    for folder in (battery, mains):
        tree.link(f"sys/class/power_supply/{folder.rpartition('/')[2]}", folder)
    files = BatteryFiles(
        tree.put_live(f"{battery}/uevent", UEVENT_BYTES),
        tree.put_live(f"{battery}/status"),
        tree.put_live(f"{mains}/online"),
    )
    rail = site.column("BAT0")
    gauge = BatteryGauge(rail, files, float(site.idle_w[rail]), site.options, site.rng, site.t0_ns)
    tree.link_real("proc")
    link_real_machine(tree)
    return Built([gauge])


_REFRESH_NS = 100_000_000
_UNIT_J = 1e-3  # NVML counts millijoules
_CARD_RANGE_UJ = 2**63


def build_card(site: BuildContext) -> Built:
    """/sys/class/hwmon/hwmon2 with energy1_input, uJ."""
    tree, options = site.tree, site.options
    device = "sys/devices/pci0000:00/0000:00:01.0/0000:03:00.0"
    tree.write_static_files(
        f"{device}/hwmon/hwmon2", {"name": "xe", "energy1_label": "card", "power1_max": 190_000_000}
    )
    tree.link("sys/class/hwmon/hwmon2", f"{device}/hwmon/hwmon2")
    tree.link(f"{device}/hwmon/hwmon2/device", device)
    file = tree.put_live(f"{device}/hwmon/hwmon2/energy1_input")
    kind = CounterKind(options.refresh_ns or _REFRESH_NS, _UNIT_J, options.counter_range_uj or _CARD_RANGE_UJ)
    counter = EnergyCounters(kind, [site.column("card")], [file], options, site.rng, site.t0_ns)
    tree.link_real("proc")
    link_real_machine(tree)
    return Built([counter])


BUILDS: dict[str, Build] = {
    **{"jetson-tx2": build_tx2, "jetson-agx-xavier": build_agx_xavier, "jetson-orin-nano": build_orin_nano},
    **{"raspberry-pi-5": build_raspberry_pi_5, "laptop-rapl": build_rapl, "laptop-battery": build_battery},
    "gpu-counter": build_card,
}
