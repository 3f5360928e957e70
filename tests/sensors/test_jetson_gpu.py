"""GPU, memory controller and shared memory of Jetson boards."""

from __future__ import annotations

import errno
import math
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sensors.jetson_trees import BOARDS, compatible, gpu, orin_nano, refusing, tx2
from tests.sensors.test_sensor_readings import found, write

from stepscope.record.sensors import load_sensors, number_files
from stepscope.record.sensors.contract import NoSensor, OpenSensor, Target

jetson_gpu, jetson_memory, jetson_emc = (load_sensors()[name] for name in ("jetson_gpu", "jetson_memory", "jetson_emc"))
ME = Target(4711)
CLIENTS = """CLIENT                        PROCESS      PID        SIZE
user                       Xorg      812     28672K
user                    python3     4711   1048576K
user                 my (a) app     4711      1024K
user                    python3    14711      4096K
total                                      1081344K
"""


@pytest.mark.parametrize(
    ("board", "share", "hertz"),
    [
        ("tx2", 0.0, 624_750_000),
        ("nano", 0.0, 76_800_000),
        ("xavier_nx", 0.33, 1_109_250_000),
        ("agx_xavier", 0.0, 318_750_000),
        ("orin_nano", 0.63, 621_000_000),
        ("agx_orin", 0.12, 1_300_500_000),
    ],
)
def test_the_gpu_of_a_board_states_its_busy_share_and_clock(
    board: str, share: float, hertz: float, tmp_path: Path
) -> None:
    sensor = found(jetson_gpu.discover(BOARDS[board](tmp_path), ME))
    assert list(sensor.read()) == [pytest.approx(share), hertz]
    sensor.close()
    assert [(channel.id, channel.unit) for channel in sensor.channels] == [
        ("gpu.0.utilisation", "1"),
        ("gpu.0.frequency", "Hz"),
    ]


@pytest.mark.parametrize("device", ["gpu.0", "platform/gpu.0", "platform/bus@0/17000000.gpu"])
def test_without_the_class_of_devfreq_the_known_places_are_searched(device: str, tmp_path: Path) -> None:
    gpu(tmp_path, device, "something", 500, 114_750_000)
    (tmp_path / f"sys/class/devfreq/{Path(device).name}").unlink()
    sensor = found(jetson_gpu.discover(tmp_path, ME))
    assert list(sensor.read()) == [0.5, 114_750_000]
    sensor.close()


def test_another_devfreq_device_is_no_gpu(tmp_path: Path) -> None:
    gpu(tmp_path, "platform/31d0000.emc", "emc", 1000, 204_000_000)
    answer = jetson_gpu.discover(tmp_path, ME)
    assert isinstance(answer, NoSensor)
    assert answer.reason == "absent"


def test_a_gpu_without_a_load_is_left_to_nvml(tmp_path: Path) -> None:
    (gpu(tmp_path, "platform/gpu-gpc-0", "gb10b", 0, 1_000_000_000) / "load").unlink()
    answer = jetson_gpu.discover(tmp_path, ME)
    assert isinstance(answer, NoSensor)
    assert answer.reason == "unsupported"
    assert "NVML" in answer.detail


@pytest.mark.parametrize("text", ["1001\n", "-1\n", "", "busy\n"])
def test_a_load_that_cannot_be_is_not_read_while_the_clock_goes_on(text: str, tmp_path: Path) -> None:
    sensor = found(jetson_gpu.discover(orin_nano(tmp_path), ME))
    (tmp_path / "sys/devices/platform/bus@0/17000000.gpu/load").write_text(text)
    values = sensor.read()
    sensor.close()
    assert math.isnan(values[0])
    assert values[1] == 621_000_000


def test_a_gpu_that_leaves_is_lost_and_a_closed_one_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = found(jetson_gpu.discover(orin_nano(tmp_path), ME))

    def gone(file: int, size: int, offset: int) -> bytes:
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))

    monkeypatch.setattr(os, "pread", gone)
    with pytest.raises(OSError, match="No such device"):
        sensor.read()
    monkeypatch.undo()
    sensor.close()
    load = tmp_path / "sys/class/devfreq/17000000.gpu/device/load"
    monkeypatch.setattr(os, "open", refusing([load], errno.EACCES))
    answer = jetson_gpu.discover(tmp_path, ME)
    assert isinstance(answer, NoSensor)
    assert answer.reason == "denied"
    assert answer.remedy is not None
    assert str(load) in answer.remedy


def test_activity_over_clock_is_the_busy_share_of_the_memory_controller(tmp_path: Path) -> None:
    write(tx2(tmp_path), {"sys/kernel/actmon_avg_activity/mc_all": "332000\n"})
    write(tmp_path, {"sys/kernel/debug/bpmp/debug/clk/emc/rate": "1600000000\n"})
    sensor = found(jetson_emc.discover(tmp_path, ME))
    assert list(sensor.read()) == [pytest.approx(0.2075), 1.6e9]
    write(tmp_path, {"sys/kernel/debug/bpmp/debug/clk/emc/rate": "204000000\n"})  # more than busy: not of one moment
    values = sensor.read()
    sensor.close()
    assert math.isnan(values[0])
    assert values[1] == 204e6


def test_activity_without_a_clock_is_no_share(tmp_path: Path) -> None:
    write(tx2(tmp_path), {"sys/kernel/actmon_avg_activity/mc_all": "332000\n"})
    sensor = found(jetson_emc.discover(tmp_path, ME))
    assert [channel.quantity for channel in sensor.channels] == ["active_frequency"]
    assert list(sensor.read()) == [332e6]
    sensor.close()


def test_a_closed_debugfs_is_denied_on_a_jetson_and_nothing_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    debug = tmp_path / "sys/kernel/debug"
    closed = [debug / "cactmon/mc_all", debug / "bpmp/debug/clk/emc/rate", debug / "nvmap/iovmm/clients"]
    monkeypatch.setattr(os, "open", refusing(closed, errno.EACCES))
    for sensor in (jetson_emc, jetson_memory):
        answer = sensor.discover(tmp_path, ME)
        assert isinstance(answer, NoSensor)
        assert answer.reason == "absent"
    compatible(tmp_path, "nvidia,p3767-0005", "nvidia,tegra234")
    for sensor in (jetson_emc, jetson_memory):
        answer = sensor.discover(tmp_path, ME)
        assert isinstance(answer, NoSensor)
        assert answer.reason == "denied"
        assert answer.remedy is not None
        assert answer.remedy.startswith("sudo mount -o remount,mode=755 /sys/kernel/debug")


def test_shared_memory_is_that_of_all_and_of_the_trainer(tmp_path: Path) -> None:
    write(tx2(tmp_path), {"proc/meminfo": "MemTotal: 9 kB\nNvMapMemFree:   5 kB\nNvMapMemUsed:   12 kB\nCma: 1 kB\n"})
    write(tmp_path, {"sys/kernel/debug/nvmap/iovmm/clients": CLIENTS})
    sensor = found(jetson_memory.discover(tmp_path, ME))
    assert [channel.id for channel in sensor.channels] == ["system.nvmap_used", "process.gpu_memory"]
    assert list(sensor.read()) == [12 * 1024, (1_048_576 + 1024) * 1024]
    sensor.close()


def test_a_process_that_nvmap_does_not_name_is_not_read_and_a_cut_list_neither() -> None:
    assert math.isnan(number_files.nvmap_bytes_of_process(CLIENTS.encode(), 5))
    assert math.isnan(number_files.nvmap_bytes_of_process(CLIENTS.encode()[:150], 4711))
    assert number_files.nvmap_bytes_of_process(CLIENTS.encode(), 812) == 28672 * 1024


def test_shared_memory_without_root_is_that_of_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tx2(tmp_path), {"proc/meminfo": "MemTotal: 9 kB\nNvMapMemUsed: 0 kB\n"})
    clients = tmp_path / "sys/kernel/debug/nvmap/iovmm/clients"
    monkeypatch.setattr(os, "open", refusing([clients], errno.EACCES))
    sensor = found(jetson_memory.discover(tmp_path, ME))
    assert list(sensor.read()) == [0.0]
    sensor.close()


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_no_list_of_clients_crashes_the_sensor_or_invents_memory(content: bytes) -> None:
    value = number_files.nvmap_bytes_of_process(content, 7)
    assert math.isnan(value) or (b"total" in content and b"7" in content)
    everything = number_files.parse_kb_as_bytes(number_files.IN_USE, content)[0]
    assert math.isnan(everything) or b"NvMapMemUsed" in content


@settings(max_examples=60, deadline=None)
@given(content=st.binary(max_size=80), which=st.sampled_from(["load", "cur_freq", "mc_all", "rate"]))
def test_no_content_crashes_gpu_or_memory_controller_or_invents_a_value(content: bytes, which: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = orin_nano(Path(folder))
        paths = {"load": "sys/devices/platform/bus@0/17000000.gpu/load", "mc_all": "sys/kernel/debug/cactmon/mc_all"}
        paths["cur_freq"] = "sys/devices/platform/bus@0/17000000.gpu/devfreq/17000000.gpu/cur_freq"
        paths["rate"] = "sys/kernel/debug/bpmp/debug/clk/emc/rate"
        write(root, {paths["mc_all"]: "100\n", paths["rate"]: "204000000\n"})
        (root / paths[which]).write_bytes(content)
        digits = content[:64].strip()
        for sensor in (jetson_gpu, jetson_emc):
            answer = sensor.discover(root, ME)
            assert isinstance(answer, OpenSensor)
            share, clock = answer.read()
            answer.close()
            assert math.isnan(share) or 0 <= share <= 1
            known = clock in (621e6, 204e6)
            assert math.isnan(clock) or known or (digits.isdigit() and clock == int(digits))
