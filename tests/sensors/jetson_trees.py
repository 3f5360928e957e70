"""Trees of sysfs files as Jetson boards have them, with values that such boards have shown; built below a root."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.sensors.test_sensor_readings import write

Reading = tuple[str, int, int]  # rail, mV, mA
TX2_40: Sequence[Reading] = [("VDD_SYS_GPU", 19096, 8), ("VDD_SYS_SOC", 19096, 36), ("VDD_4V0_WIFI", 19088, 0)]
TX2_41: Sequence[Reading] = [("VDD_IN", 19096, 160), ("VDD_SYS_CPU", 19096, 8), ("VDD_SYS_DDR", 4800, 184)]
CONTINUOUS_64 = 0x7727  # three inputs, 64 samples, 1.1 ms each conversion
ORIN_DRIVER = "sys/bus/i2c/drivers/ina3221"
JP4_DRIVER = "sys/bus/i2c/drivers/ina3221x"


def iio(root: Path, device: str, number: int, rails: Sequence[Reading], power_alone: bool = False) -> Path:
    """One INA3221 under JetPack 4; returns the folder with its files."""
    folder = f"{JP4_DRIVER}/{device}/iio:device{number}"
    files = {f"{folder}/running_mode": "1\n"}
    for place, (name, millivolt, milliampere) in enumerate(rails):
        files[f"{folder}/rail_name_{place}"] = f"{name}\n"
        files[f"{folder}/in_power{place}_input"] = f"{millivolt * milliampere // 1000}\n"
        files[f"{folder}/in_voltage{place}_input"] = f"{millivolt}\n"
        files[f"{folder}/in_current{place}_input"] = f"{milliampere}\n"
        files[f"{folder}/polling_delay_{place}"] = "0 ms\n"
        files[f"{folder}/crit_power_limit_{place}"] = "15000 mw\n"
        if not power_alone:
            files[f"{folder}/ui_input_{place}"] = f"{millivolt} {milliampere}\n"
    write(root, files)
    return root / folder


def configured(root: Path, device: str, word: int, milliohm: Sequence[int]) -> None:
    """The device tree's node of a chip under JetPack 4."""
    node = root / JP4_DRIVER / device / "of_node"
    for place, shunt in enumerate(milliohm):
        channel = node / f"channel@{place}"
        channel.mkdir(parents=True)
        (channel / "reg").write_bytes(place.to_bytes(4, "big"))
        (channel / "ti,shunt-resistor-mohm").write_bytes(shunt.to_bytes(4, "big"))
    (node / "ti,continuous-config").write_bytes(word.to_bytes(4, "big"))


def hwmon(
    root: Path, device: str, number: int, rails: Sequence[Reading], microohm: int = 5000, samples: int = 1, ms: int = 7
) -> Path:
    """One INA3221 under JetPack 5 and later, with the shunt voltages and the sum that the driver adds."""
    folder = f"{ORIN_DRIVER}/{device}/hwmon/hwmon{number}"
    files = {
        f"{folder}/name": "ina3221\n",
        f"{folder}/samples": f"{samples}\n",
        f"{folder}/update_interval": f"{ms}\n",
        f"{folder}/in7_label": "sum of shunt voltages\n",
        f"{folder}/in7_input": "760\n",
        f"{folder}/curr4_input": "360\n",
    }
    for place, (name, millivolt, milliampere) in enumerate(rails, start=1):
        files[f"{folder}/in{place}_label"] = f"{name}\n"
        files[f"{folder}/in{place}_enable"] = "1\n"
        files[f"{folder}/in{place}_input"] = f"{millivolt}\n"
        files[f"{folder}/curr{place}_input"] = f"{milliampere}\n"
        files[f"{folder}/in{place + 3}_input"] = f"{milliampere * microohm // 1000}\n"
        files[f"{folder}/shunt{place}_resistor"] = f"{microohm}\n"
    write(root, files)
    return root / folder


def gpu(root: Path, device: str, node: str, load: int, hertz: int) -> Path:
    """A GPU: its device with `load`, and its devfreq, linked from the class as the kernel does."""
    folder = root / "sys/devices" / device
    name = Path(device).name
    write(folder, {"load": f"{load}\n", "of_node/name": f"{node}\0", f"devfreq/{name}/cur_freq": f"{hertz}\n"})
    (folder / f"devfreq/{name}/device").symlink_to(folder)
    (root / "sys/class/devfreq").mkdir(parents=True, exist_ok=True)
    (root / f"sys/class/devfreq/{name}").symlink_to(folder / f"devfreq/{name}")
    return folder


def compatible(root: Path, *names: str) -> None:
    """The board's names in the device tree, each ended by a NUL."""
    write(root, {"proc/device-tree/compatible": "\0".join(names) + "\0"})


def tx2(root: Path) -> Path:
    """TX2, JetPack 4: two chips with three rails each."""
    compatible(root, "nvidia,p2771-0000", "nvidia,p3310-1000", "nvidia,tegra186")
    iio(root, "0-0040", 0, TX2_40)
    iio(root, "0-0041", 1, TX2_41)
    gpu(root, "17000000.gp10b", "gp10b", 0, 624_750_000)
    return root


def nano(root: Path) -> Path:
    """Nano, JetPack 4."""
    compatible(root, "nvidia,p3450-0000", "nvidia,jetson-nano", "nvidia,tegra210")
    iio(root, "6-0040", 0, [("POM_5V_IN", 5000, 350), ("POM_5V_GPU", 5000, 0), ("POM_5V_CPU", 5000, 72)])
    gpu(root, "57000000.gpu", "gpu", 0, 76_800_000)
    return root


def xavier_nx(root: Path) -> Path:
    """Xavier NX, JetPack 4, of which only the power files are there."""
    compatible(root, "nvidia,p3449-0000+p3668-0000", "nvidia,tegra194")
    rails = [("VDD_IN", 5000, 780), ("VDD_CPU_GPU_CV", 5000, 266), ("VDD_SOC", 5000, 199)]
    iio(root, "7-0040", 0, rails, power_alone=True)
    gpu(root, "gpu.0", "gv11b", 330, 1_109_250_000)
    return root


def agx_xavier(root: Path) -> Path:
    """AGX Xavier, JetPack 4: six rails without a parent."""
    compatible(root, "nvidia,p2972-0000", "nvidia,tegra194")
    iio(root, "1-0040", 0, [("GPU", 19312, 24), ("CPU", 19312, 16), ("SOC", 19312, 45)])
    iio(root, "1-0041", 1, [("CV", 19312, 0), ("VDDRQ", 19312, 7), ("SYS5V", 19312, 98)])
    gpu(root, "17000000.gv11b", "gv11b", 0, 318_750_000)
    return root


def orin_nano(root: Path) -> Path:
    """Orin Nano or Orin NX, JetPack 5 and later: one chip, 5 mOhm."""
    compatible(root, "nvidia,p3768-0000+p3767-0005", "nvidia,p3767-0005", "nvidia,tegra234")
    rails = [("VDD_IN", 4960, 960), ("VDD_CPU_GPU_CV", 4960, 104), ("VDD_SOC", 4960, 288)]
    hwmon(root, "1-0040", 1, rails)
    gpu(root, "platform/bus@0/17000000.gpu", "gpu", 630, 621_000_000)
    return root


def agx_orin(root: Path) -> Path:
    """AGX Orin, JetPack 5 and later: 2 mOhm at 0x40, one of three inputs of 0x41 connected."""
    compatible(root, "nvidia,p3737-0000+p3701-0005", "nvidia,p3701-0005", "nvidia,tegra234")
    rails = [("VDD_GPU_SOC", 12008, 280), ("VDD_CPU_CV", 12008, 40), ("VIN_SYS_5V0", 4968, 980)]
    hwmon(root, "1-0040", 3, rails, microohm=2000)
    hwmon(root, "1-0041", 4, [("NC", 0, 0), ("VDDQ_VDD2_1V8AO", 4968, 80), ("NC", 0, 0)], microohm=2000)
    gpu(root, "platform/bus@0/17000000.gpu", "ga10b", 120, 1_300_500_000)
    return root


def thor(root: Path) -> Path:
    """AGX Thor, JetPack 7: three rails, and the INA238 of the carrier board; its GPU answers through NVML."""
    compatible(root, "nvidia,p3971-0050+p3834-0008", "nvidia,tegra264")
    rails = [("VDD_GPU", 12040, 640), ("VDD_CPU_SOC_MSS", 12040, 960), ("VIN_SYS_5V0", 5088, 1740)]
    hwmon(root, "2-0040", 3, rails)
    files = {"name": "ina238\n", "power1_input": "28470000\n", "in0_input": "3\n", "in1_input": "20010\n"}
    write(root / "sys/class/hwmon/hwmon5", {**files, "curr1_input": "1422\n"})
    return root


BOARDS: dict[str, Callable[[Path], Path]] = {
    board.__name__: board for board in (tx2, nano, xavier_nx, agx_xavier, orin_nano, agx_orin, thor)
}


def refusing(paths: Sequence[Path], error: int) -> Callable[..., int]:
    """An os.open that fails with this error number on these paths, since root may open what others may not."""
    allowed, closed = os.open, {str(path) for path in paths}

    def opening(path: str | Path, *arguments: int, **more: int) -> int:
        if str(path) in closed:
            raise OSError(error, os.strerror(error), str(path))
        return allowed(path, *arguments, **more)

    return opening
