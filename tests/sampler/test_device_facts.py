"""device.json, the power meters and doctor on frozen trees."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from stepscope.__main__ import build_app
from stepscope.cli.doctor import _print_answer
from stepscope.clock import Clock
from stepscope.errors import MissingDependency, StepscopeError
from stepscope.record.device import describe_device, temperatures_and_clocks
from stepscope.record.sampler.characterise import LoadStepTraces, Progress, poll_through_load_step, recall_or_measure
from stepscope.record.sampler.rows import EventLog
from stepscope.record.sensors import battery
from stepscope.record.sensors.contract import OpenSensor, Target

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
    for key in ("board", "cpu", "bf16", "memory_bytes", "os", "power_mode", "container", "virtual_machine"):
        assert device[key] is None
    assert device["cores"] == device["accelerators"] == []
    assert json.dumps(device)


@pytest.mark.parametrize(
    ("listed", "has"),
    [
        ("flags\t\t: fpu avx2 avx512f avx512_bf16", True),
        ("flags\t\t: fpu avx2", False),
        ("Features\t: fp asimd i8mm bf16", True),
        ("Features\t: fp asimd aes", False),
    ],
)
def test_whether_the_cpu_multiplies_in_bf16_is_read_from_its_instructions(
    tmp_path: Path, listed: str, has: bool
) -> None:
    assert describe_device(write(tmp_path, {"proc/cpuinfo": f"processor\t: 0\n{listed}\n"}))["bf16"] is has


def test_a_zone_that_is_switched_off_has_no_temperature(tx2: Path) -> None:
    facts = temperatures_and_clocks(tx2)
    assert facts["temperatures_celsius"] == {"BCPU-therm (thermal_zone0)": 41.5, "PLL-therm (thermal_zone1)": None}
    assert facts["frequencies_hz"] == {"policy0": 345_600_000}


def doctor(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(build_app(), ["doctor", *arguments], env={"COLUMNS": "200", **environment})


def with_rapl(root: Path) -> Path:
    zone = "sys/class/powercap/intel-rapl:0"
    files = {f"{zone}/name": "package-0\n", f"{zone}/energy_uj": "1\n", f"{zone}/max_energy_range_uj": "262143328850\n"}
    return write(root, files)


def test_doctor_lists_power_sensors_by_their_own_answers_and_says_what_is_missing(tx2: Path) -> None:
    without = doctor("-v", "--root", str(tx2))
    assert without.exit_code == 0
    assert "quill" in without.output
    assert "temperature" in without.output
    assert re.search(r"not on this machine: .*cpu_cores", without.output.replace("\n", " "))
    assert "No sensor of power or energy answers here" in without.output
    assert "There is no /proc here" in without.output
    said = doctor("-v", "--root", str(with_rapl(tx2)))
    assert "rapl: rapl.package-0.energy" in said.output
    assert "Not characterised yet" in said.output


def laptop(root: Path, status: str) -> Path:
    battery = ("POWER_SUPPLY_NAME=BAT0", "POWER_SUPPLY_TYPE=Battery", f"POWER_SUPPLY_STATUS={status}",
               "POWER_SUPPLY_VOLTAGE_NOW=11206000", "POWER_SUPPLY_POWER_NOW=19195000",
               "POWER_SUPPLY_ENERGY_NOW=32940000")  # fmt: skip
    return write(root, {"sys/class/power_supply/BAT0/uevent": "\n".join(battery)})


def test_a_battery_on_mains_measures_no_energy_and_is_not_characterised(tmp_path: Path) -> None:
    root = str(laptop(tmp_path, "Charging"))
    assert "Energy: not measured; unplug the machine" in doctor("--root", root).output
    found = json.loads(doctor("--root", root, "--json").output)
    assert found["power"] == []
    assert any(channel["quantity"] == "stored_energy" for channel in found["channels"])
    assert "nothing to characterise" in str(doctor("--root", root, "--characterise").exception)
    assert "Energy: measured by battery" in doctor("--root", str(laptop(tmp_path, "Discharging"))).output


def test_a_run_on_mains_loads_no_cores_to_characterise_a_battery(tmp_path: Path) -> None:
    target = Target(os.getpid())
    sensor = battery.discover(laptop(tmp_path, "Charging"), target)
    assert isinstance(sensor, OpenSensor)
    announced: list[float] = []
    events = EventLog(tmp_path / "events.jsonl")
    assert recall_or_measure(tmp_path, {"battery": sensor}, target.clock, announced.append, events) == {}
    sensor.close()
    assert announced == []


def test_what_would_add_energy_is_said_of_power_sensors_alone(capsys: pytest.CaptureFixture[str]) -> None:
    closed = {"sensor": "jetson_emc", "reason": "denied", "remedy": "sudo mount -o remount"}
    torch = {"version": "2.9", "remedy": None}
    _print_answer(Console(), {"channels": [], "torch": torch, "missing": [closed], "power": [], "characterised": {}})
    assert "Energy: no power sensor; add a plug or meter" in capsys.readouterr().out


def test_a_torch_that_is_there_and_does_not_work_is_told_from_none_and_by_its_own_words(
    tx2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = types.ModuleType("torch")

    def refuse(index: int) -> str:
        raise RuntimeError("The NVIDIA driver on your system is too old\nPlease update")

    cuda = types.SimpleNamespace(device_count=lambda: 1, get_device_name=refuse)
    vars(torch).update(__version__="2.4", version=types.SimpleNamespace(cuda="12.1"), cuda=cuda)
    monkeypatch.setitem(sys.modules, "torch", torch)
    said = json.loads(doctor("--json", "--root", str(tx2)).output)["torch"]
    assert said == {
        "version": "2.4", "cuda": "12.1", "devices": [], "remedy": None,
        "fault": "The NVIDIA driver on your system is too old",
    }  # fmt: skip
    monkeypatch.delitem(sys.modules, "torch")
    (tx2 / "torch").mkdir()
    (tx2 / "torch/__init__.py").write_text("raise ImportError('libcudnn.so.8: cannot open [shared] object file')")
    monkeypatch.syspath_prepend(str(tx2))
    found = doctor("-v", "--root", str(tx2))
    assert found.exit_code == 0
    assert "torch: cannot be imported: libcudnn.so.8: cannot open [shared]" in found.output.replace("\n", " ")
    assert "pip install" not in found.output
    monkeypatch.setitem(sys.modules, "torch", None)
    assert "pip install 'stepscope[torch]'" in doctor("-v", "--root", str(tx2)).output


def test_doctor_gives_the_same_as_json_and_takes_the_root_from_the_environment(tx2: Path) -> None:
    found = json.loads(doctor("--json", STEPSCOPE_ROOT=str(tx2)).output)
    assert found["root"] == str(tx2)
    assert found["device"]["board"] == "quill"
    assert found["power"] == []
    assert found["characterised"] == {}
    assert {channel["quantity"] for channel in found["channels"]} >= {"temperature", "core_frequency"}


def test_doctor_characterises_shows_a_table_draws_a_picture_and_keeps_the_result(
    tx2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("stepscope.record.sampler.characterise.poll_through_load_step", briefly)
    picture = tmp_path / "answers.svg"
    said = doctor("-v", "--root", str(with_rapl(tx2)), "--characterise", "--picture", str(picture))
    assert said.exit_code == 0, said.exception
    assert "Characterised now" in said.output
    assert "(stated: 1 ms)" in said.output  # the file of this tree never moves
    assert picture.read_text().startswith("<svg")
    kept = json.loads(doctor("--root", str(tx2), "--json").output)
    assert kept["characterised"]["rapl.package-0.energy"]["read_cost_p99_ns"] > 0
    assert "read_cost_ns" in next(c for c in kept["channels"] if c["sensor"] == "rapl")["measured"]


def briefly(found: Mapping[str, OpenSensor], clock: Clock, progress: Progress | None = None) -> LoadStepTraces:
    return poll_through_load_step(found, clock, seconds=0.05, progress=progress)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--root", "{root}/nowhere"), "there is no folder"),
        (("--root", "{root}", "--picture", "x.png"), "--picture belongs to --characterise"),
        (("--root", "{root}", "--characterise", "--picture", "x.gif"), "names no kind of picture"),
        (("--root", "{root}", "--characterise", "--picture", "{root}/no/x.png"), "there is no folder"),
        (("--root", "{root}", "--characterise"), "nothing to characterise"),
    ],
)
def test_doctor_refuses_what_it_cannot_do_and_says_why(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    refused = doctor(*(argument.format(root=tmp_path) for argument in arguments))
    assert isinstance(refused.exception, StepscopeError)
    assert said in str(refused.exception)
    assert refused.exception.hint


def test_a_picture_without_altair_names_the_extra_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "altair", None)
    refused = doctor("--root", str(tmp_path), "--characterise", "--picture", str(tmp_path / "x.png"))
    assert isinstance(refused.exception, MissingDependency)
    assert refused.exception.hint == "pip install 'stepscope[report]'"
