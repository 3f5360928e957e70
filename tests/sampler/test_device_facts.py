"""device.json, the power meters and doctor on frozen trees."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from stepscope.__main__ import build_app
from stepscope.record import power_sources as power_sources_module
from stepscope.record.device import changing_facts, describe_device
from stepscope.record.power_sources import power_sources

CPU = "sys/devices/system/cpu"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def tx2(tmp_path: Path) -> Path:
    """A board with two kinds of cores, one of them switched off, and a power mode."""
    files = {
        "proc/device-tree/model": "quill\0",
        "proc/device-tree/compatible": "nvidia,p2597-0000+p3310-1000\0nvidia,tegra186\0",
        "proc/meminfo": "MemTotal:        8048000 kB\n",
        "proc/cpuinfo": "processor\t: 0\nmodel name\t: ARMv8 Processor rev 3 (v8l)\n",
        "proc/sys/kernel/osrelease": "4.9.253-tegra\n",
        "etc/os-release": 'NAME="Ubuntu"\nPRETTY_NAME="Ubuntu 18.04.6 LTS"\n',
        "etc/nvpmodel.conf": "< POWER_MODEL ID=0 NAME=MAXN >\n< POWER_MODEL ID=1 NAME=MAXQ >\n",
        "var/lib/nvpmodel/status": "pmode:0001 fmode:fanNull\n",
        f"{CPU}/cpufreq/policy0/related_cpus": "0 3\n",
        f"{CPU}/cpufreq/policy0/scaling_governor": "schedutil\n",
        f"{CPU}/cpufreq/policy0/scaling_cur_freq": "345600\n",
        "sys/class/thermal/thermal_zone0/type": "BCPU-therm\n",
        "sys/class/thermal/thermal_zone0/temp": "41500\n",
        "sys/class/thermal/thermal_zone1/type": "PLL-therm\n",
        "sys/class/thermal/thermal_zone1/temp": "-256000\n",
    }
    for core in range(4):
        big = core in (1, 2)
        files[f"{CPU}/cpu{core}/regs/identification/midr_el1"] = "0x4e0f0030\n" if big else "0x411fd073\n"
        files[f"{CPU}/cpu{core}/online"] = "0\n" if big else "1\n"
        files[f"{CPU}/cpu{core}/cpufreq/cpuinfo_max_freq"] = "2035200\n"
    return write(tmp_path, files)


def test_a_board_is_described_from_its_files(tx2: Path) -> None:
    device = describe_device(tx2)
    assert device["board"] == "quill"
    assert device["compatible"] == "nvidia,p2597-0000+p3310-1000 nvidia,tegra186"
    assert device["memory_bytes"] == 8048000 * 1024
    assert (device["os"], device["kernel"]) == ("Ubuntu 18.04.6 LTS", "4.9.253-tegra")
    assert device["power_mode"] == "MAXQ"
    assert device["governors"] == {"policy0": "schedutil"}
    assert device["clusters"] == [[0, 3], [1, 2]]
    assert [core["online"] for core in device["cores"]] == [True, False, False, True]
    assert device["cores"][0]["max_frequency_hz"] == 2_035_200_000


def test_what_cannot_be_found_out_is_null(tmp_path: Path) -> None:
    device = describe_device(tmp_path)
    for key in ("board", "cpu", "memory_bytes", "os", "power_mode", "container", "virtual_machine"):
        assert device[key] is None
    assert device["cores"] == device["accelerators"] == []
    assert json.dumps(device)


def test_a_zone_that_is_switched_off_has_no_temperature(tx2: Path) -> None:
    facts = changing_facts(tx2)
    assert facts["temperatures_celsius"] == {"BCPU-therm (thermal_zone0)": 41.5, "PLL-therm (thermal_zone1)": None}
    assert facts["frequencies_hz"] == {"policy0": 345_600_000}


def test_no_meter_is_present_on_an_empty_root(tmp_path: Path) -> None:
    assert {source.state for source in power_sources(tmp_path)} == {"absent"}


def test_a_denied_meter_names_the_command_that_opens_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = "sys/class/powercap/intel-rapl:0/energy_uj"
    write(tmp_path, {path: "1\n"})
    monkeypatch.setattr(power_sources_module, "_opens", lambda path: False)  # root may read what users may not
    rapl = next(source for source in power_sources(tmp_path) if source.name == "RAPL")
    assert rapl.state == "denied"
    assert rapl.remedy == f"sudo chmod a+r {tmp_path / path}"


def test_a_raspberry_pi_4_has_no_meter_though_it_has_vcio(tmp_path: Path) -> None:
    write(tmp_path, {"dev/vcio": "", "proc/device-tree/compatible": "raspberrypi,4-model-b\0brcm,bcm2711\0"})
    assert {source.state for source in power_sources(tmp_path)} == {"absent"}
    write(tmp_path, {"proc/device-tree/compatible": "raspberrypi,5-model-b\0brcm,bcm2712\0"})
    assert [source.name for source in power_sources(tmp_path) if source.state == "present"] == ["Raspberry Pi 5 PMIC"]


def test_doctor_says_what_is_missing_and_that_power_is_not_read_yet(tx2: Path) -> None:
    write(tx2, {"sys/class/powercap/intel-rapl:0/energy_uj": "1\n"})
    said = CliRunner().invoke(build_app(), ["doctor", "--root", str(tx2)], env={"COLUMNS": "200"})
    assert said.exit_code == 0
    assert "quill" in said.output
    assert "temperature" in said.output
    assert "cpu_cores: absent" in said.output
    assert "RAPL: present" in said.output
    assert "reads no power yet" in said.output
    assert "There is no /proc here" in said.output


def test_doctor_gives_the_same_as_json_and_takes_the_root_from_the_environment(tx2: Path) -> None:
    said = CliRunner().invoke(build_app(), ["doctor", "--json"], env={"STEPSCOPE_ROOT": str(tx2)})
    found = json.loads(said.output)
    assert found["root"] == str(tx2)
    assert found["device"]["board"] == "quill"
    assert found["reads_power"] is False
    assert {channel["quantity"] for channel in found["channels"]} >= {"temperature", "core_frequency"}
