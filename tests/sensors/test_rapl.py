"""RAPL through powercap: domains, ranges, refusals, and what becomes of faulty files."""

from __future__ import annotations

import errno
import math
import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sensors.pc_trees import (
    LINES,
    POWERCAP,
    RANGE_UJ,
    by_id,
    found,
    missing,
    powercap,
    refuse_opening,
    refuse_reading,
    watching,
    write,
    zone,
)

from stepscope.record.sensors import rapl
from stepscope.record.sensors.contract import Channel

LAPTOP = {
    "intel-rapl:0": zone("package-0", 240422366267, limit_uw=15_000_000),
    "intel-rapl:0:0": zone("core", 118821284256),
    "intel-rapl:0:1": zone("uncore", 5981),
    "intel-rapl:0:2": zone("dram", 7_000_000),
    "intel-rapl:1": zone("psys", 3_000_000),
    "intel-rapl-mmio:0": zone("package-0", 240422366267),
}


def channels(root: Path) -> dict[str, Channel]:
    sensor = found(rapl.discover(root, watching()))
    sensor.close()
    return {channel.scope: channel for channel in sensor.channels}


def test_zones_that_a_container_hides_are_denied_with_the_option_that_shows_them(tmp_path: Path) -> None:
    (tmp_path / POWERCAP).mkdir(parents=True)
    for name in ("intel-rapl", "intel-rapl:0"):
        (tmp_path / POWERCAP / name).symlink_to(f"../../devices/virtual/powercap/{name}")
    answer = missing(rapl.discover(tmp_path, watching()))
    assert answer.reason == "denied"
    assert "--security-opt systempaths=unconfined" in str(answer.remedy)


def test_each_domain_of_a_laptop_is_a_counter_in_joules(tmp_path: Path) -> None:
    sensor = found(rapl.discover(powercap(tmp_path, LAPTOP), watching()))
    assert by_id(sensor) == {
        "rapl.package-0.energy": 240422.366267,
        "rapl.package-0/core.energy": 118821.284256,
        "rapl.package-0/uncore.energy": 0.005981,
        "rapl.package-0/dram.energy": 7.0,
        "rapl.psys.energy": 3.0,
    }
    sensor.close()
    assert {(c.kind, c.unit, c.refresh_ns) for c in sensor.channels} == {("counter", "J", 1_000_000)}
    assert [c.rail for c in sensor.channels] == ["package-0", "core", "uncore", "dram", "psys"]


def test_psys_holds_the_package_that_holds_its_cores_and_dram_stands_beside_it(tmp_path: Path) -> None:
    parents = {scope: channel.parent_scope for scope, channel in channels(powercap(tmp_path, LAPTOP)).items()}
    assert parents == {
        "rapl:psys": "system",
        "rapl:package-0": "rapl:psys",
        "rapl:package-0/core": "rapl:package-0",
        "rapl:package-0/uncore": "rapl:package-0",
        "rapl:package-0/dram": "rapl:psys",
    }


@pytest.mark.parametrize("vendor", ["AuthenticAMD", "HygonGenuine"])
def test_the_core_zone_of_amd_is_one_core_and_is_not_shown_as_all_of_them(vendor: str, tmp_path: Path) -> None:
    zones = {"intel-rapl:0": zone("package-0", 1), "intel-rapl:0:0": zone("core", 1)}
    write(powercap(tmp_path, zones), {"proc/cpuinfo": f"processor\t: 0\nvendor_id\t: {vendor}\n"})
    seen = channels(tmp_path)
    assert list(seen) == ["rapl:package-0"]
    assert "one core's on AMD: not read" in seen["rapl:package-0"].source
    write(tmp_path, {"proc/cpuinfo": "vendor_id\t: GenuineIntel\n"})
    assert list(channels(tmp_path)) == ["rapl:package-0", "rapl:package-0/core"]


def test_without_psys_packages_and_dram_belong_to_the_system(tmp_path: Path) -> None:
    zones = {
        "intel-rapl:0": zone("package-0", 1),
        "intel-rapl:0:0": zone("dram", 1),
        "intel-rapl:1": zone("package-1", 1),
    }
    assert {channel.parent_scope for channel in channels(powercap(tmp_path, zones)).values()} == {"system"}


def test_mmio_adds_only_the_domain_that_the_registers_lack(tmp_path: Path) -> None:
    more = {**LAPTOP, "intel-rapl-mmio:0:0": zone("dram", 9), "intel-rapl-mmio:1": zone("package-1", 9)}
    seen = channels(powercap(tmp_path, more))
    assert len(seen) == 6
    assert "rapl-mmio" not in seen["rapl:package-0"].source
    assert "rapl-mmio" in seen["rapl:package-1"].source


def test_mmio_is_read_where_only_its_file_was_opened_to_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zones = {"intel-rapl:0": zone("package-0", 1), "intel-rapl-mmio:0": zone("package-0", 2_000_000)}
    powercap(tmp_path, zones)
    refuse_opening(monkeypatch, "intel-rapl:0/", errno.EACCES)
    sensor = found(rapl.discover(tmp_path, watching()))
    assert by_id(sensor) == {"rapl.package-0.energy": 2.0}
    sensor.close()


@pytest.mark.parametrize(
    ("range_uj", "step_j"),
    [
        (262143328850, 61.035e-6),  # Core
        (65532610987, 15.258e-6),  # EPYC 7543
        (65712999613, 15.3e-6),  # dram of a Xeon
        (1_000_000, None),
        (0, None),
    ],
)
def test_the_step_follows_from_the_range_of_the_32_bit_register(range_uj: int, step_j: float | None) -> None:
    assert rapl.step_j(range_uj) == (None if step_j is None else pytest.approx(step_j, rel=1e-12))


def test_the_range_and_a_plausible_most_are_stated_for_the_wrap(tmp_path: Path) -> None:
    seen = channels(powercap(tmp_path, LAPTOP))
    assert seen["rapl:package-0"].counter_range == RANGE_UJ / 1e6
    assert seen["rapl:package-0"].most_per_s == 250.0
    assert seen["rapl:psys"].most_per_s == 1000.0


@pytest.mark.parametrize(
    ("limits_uw", "most_w"),
    [([65_000_000, 117_000_000], 468.0), ([15_000_000, 4_090_000_000], 1000.0), ([0], 1000.0), ([], 1000.0)],
)
def test_limits_of_zero_and_of_kilowatts_limit_nothing(limits_uw: list[int], most_w: float) -> None:
    assert rapl.most_w(limits_uw) == most_w


def test_two_dies_that_show_one_register_are_kept_and_noted(tmp_path: Path) -> None:
    dies = {
        "intel-rapl:0": zone("package-0-die-0", 68_000_000_000),
        "intel-rapl:1": zone("package-0-die-1", 68_000_020_000),
        "intel-rapl:2": zone("package-1-die-0", 68_000_020_000),
    }
    seen = channels(powercap(tmp_path, dies))
    assert seen["rapl:package-0-die-1"].parent_scope == "rapl:package-0-die-0"
    assert "not to be added" in seen["rapl:package-0-die-1"].source
    assert seen["rapl:package-1-die-0"].parent_scope == "system"


@pytest.mark.parametrize("other_uj", [68_900_000_000, 12])
def test_dies_with_registers_of_their_own_stay_side_by_side(other_uj: int, tmp_path: Path) -> None:
    dies = {"intel-rapl:0": zone("package-0-die-0", 12), "intel-rapl:1": zone("package-0-die-1", other_uj)}
    assert {channel.parent_scope for channel in channels(powercap(tmp_path, dies)).values()} == {"system"}


def test_a_refusal_names_the_commands_that_open_the_counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    powercap(tmp_path, LAPTOP)
    refuse_opening(monkeypatch, "energy_uj", errno.EACCES)
    answer = missing(rapl.discover(tmp_path, watching()))
    assert answer.reason == "denied"
    assert answer.remedy is not None
    assert f"sudo chmod a+r {tmp_path}/{POWERCAP}/intel-rapl:0/energy_uj" in answer.remedy
    assert "mode class/powercap/intel-rapl:1/energy_uj = 0444" in answer.remedy
    assert "/etc/udev/rules.d/" in answer.remedy
    assert "rapl-mmio" not in answer.remedy


def test_domains_that_stay_closed_are_named_beside_those_that_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    powercap(tmp_path, LAPTOP)
    refuse_opening(monkeypatch, "intel-rapl:1/energy_uj", errno.EACCES)
    seen = channels(tmp_path)
    assert "rapl:psys" not in seen
    assert "does not open for psys: sudo chmod" in seen["rapl:package-0"].source


def test_zones_without_a_counter_or_a_name_leave_the_sensor_absent(tmp_path: Path) -> None:
    write(tmp_path, {f"{POWERCAP}/intel-rapl:0/name": "package-0\n", f"{POWERCAP}/dtpm:0/name": "soc\n"})
    assert missing(rapl.discover(tmp_path, watching())).reason == "absent"
    write(tmp_path, {f"{POWERCAP}/intel-rapl:0/name": "\n", f"{POWERCAP}/intel-rapl:0/energy_uj": "1\n"})
    assert missing(rapl.discover(tmp_path, watching())).reason == "absent"


def test_subzones_are_found_inside_their_package_too(tmp_path: Path) -> None:
    nested = {"intel-rapl:0": LAPTOP["intel-rapl:0"], "intel-rapl:0/intel-rapl:0:0": LAPTOP["intel-rapl:0:0"]}
    assert list(channels(powercap(tmp_path, nested))) == ["rapl:package-0", "rapl:package-0/core"]


def test_zones_are_ordered_by_their_numbers(tmp_path: Path) -> None:
    zones = {f"intel-rapl:{n}": zone(f"package-{n}", n) for n in (10, 2, 0)}
    assert list(channels(powercap(tmp_path, zones))) == ["rapl:package-0", "rapl:package-2", "rapl:package-10"]


def test_two_sockets_with_a_psys_each_keep_both(tmp_path: Path) -> None:
    zones = {"intel-rapl:0": zone("psys", 1_000_000), "intel-rapl:1": zone("psys", 2_000_000)}
    sensor = found(rapl.discover(powercap(tmp_path, zones), watching()))
    assert by_id(sensor) == {"rapl.psys.energy": 1.0, "rapl.psys#2.energy": 2.0}
    sensor.close()


@pytest.mark.parametrize(
    "content", [b"", b"\n", b"what?\n", b"-5\n", b"1_000\n", b"9" * 80, b"262143328851\n", b"1.5\n"]
)
def test_a_counter_that_cannot_be_reads_nan_and_the_others_go_on(content: bytes, tmp_path: Path) -> None:
    sensor = found(rapl.discover(powercap(tmp_path, LAPTOP), watching()))
    write(tmp_path, {f"{POWERCAP}/intel-rapl:0/energy_uj": content})
    values = by_id(sensor)
    sensor.close()
    assert math.isnan(values.pop("rapl.package-0.energy"))
    assert all(value > 0 for value in values.values())


def test_a_counter_that_goes_backwards_is_kept_as_read(tmp_path: Path) -> None:
    sensor = found(rapl.discover(powercap(tmp_path, LAPTOP), watching()))
    powercap(tmp_path, {"intel-rapl:0": zone("package-0", 5_000_000)})
    assert by_id(sensor)["rapl.package-0.energy"] == 5.0
    sensor.close()


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENODEV, errno.EIO])
def test_one_zone_that_fails_is_nan_and_all_that_fail_are_an_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = found(rapl.discover(powercap(tmp_path, LAPTOP), watching()))
    with monkeypatch.context() as patch:
        refuse_reading(patch, "intel-rapl:0:0/", number)
        values = by_id(sensor)
    assert math.isnan(values["rapl.package-0/core.energy"])
    assert values["rapl.package-0.energy"] > 0
    with monkeypatch.context() as patch:
        refuse_reading(patch, "energy_uj", number)
        with pytest.raises((OSError, ValueError)):
            sensor.read()
    assert by_id(sensor)["rapl.psys.energy"] == 3.0
    sensor.close()


def test_a_zone_that_is_removed_and_comes_back_is_read_again(tmp_path: Path) -> None:
    now = [0]
    sensor = found(rapl.discover(powercap(tmp_path, LAPTOP), watching(lambda: now[0])))
    (tmp_path / POWERCAP / "intel-rapl:1/energy_uj").unlink()
    assert math.isnan(by_id(sensor)["rapl.psys.energy"])
    powercap(tmp_path, {"intel-rapl:1": zone("psys", 4_000_000)})
    now[0] += 1_000_000_000
    assert by_id(sensor)["rapl.psys.energy"] == 4.0
    sensor.close()


def test_the_saved_tree_of_a_computer_is_read_whole(tmp_path: Path) -> None:
    lines = [line for line in (LINES / "powercap-tree.txt").read_text().splitlines() if not line.startswith("#")]
    pairs = [re.fullmatch(r"/(\S+): (.*)", line) for line in lines]
    sensor = found(rapl.discover(write(tmp_path, {m[1]: m[2] + "\n" for m in pairs if m}), watching()))
    assert by_id(sensor) == {"rapl.package-0.energy": 240422.366267, "rapl.package-0/core.energy": 118821.284256}
    sensor.close()
    assert sensor.channels[0].most_per_s == 1000.0  # its limit of 4090 W means none


def test_the_zones_of_an_i5_13500_are_read_whole(tmp_path: Path) -> None:
    text = (LINES / "powercap-info-i5-13500.txt").read_text()
    names, energies, ranges = (
        re.findall(rf"^ +{key}: (\S+)$", text, re.MULTILINE) for key in ("name", "energy_uj", "max_energy_range_uj")
    )
    names = [name for name in names if "term" not in name]
    places = ["intel-rapl:0", "intel-rapl:0:0", "intel-rapl:0:1"]
    zones = {place: zone(*of) for place, of in zip(places, zip(names, energies, ranges, strict=True), strict=True)}
    sensor = found(rapl.discover(powercap(tmp_path, zones), watching()))
    assert list(by_id(sensor).values()) == [65997.277274, 48265.700414, 0.005981]
    sensor.close()
    assert {channel.step_size for channel in sensor.channels} == {61.035e-6}


@settings(max_examples=30, deadline=None)
@given(energy=st.binary(max_size=90), around=st.binary(max_size=40), name=st.binary(max_size=20))
def test_no_content_of_a_zone_crashes_the_sensor_or_invents_joules(energy: bytes, around: bytes, name: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root, place = Path(folder), f"{POWERCAP}/intel-rapl:0"
        powercap(root, LAPTOP)
        write(root, {f"{place}/energy_uj": energy, f"{place}/max_energy_range_uj": around, f"{place}/name": name})
        sensor = found(rapl.discover(root, watching()))
        values = dict(zip([channel.source.split(" (")[0] for channel in sensor.channels], sensor.read(), strict=True))
        sensor.close()
        value = values.get(f"{root}/{place}/energy_uj", math.nan)
    assert math.isnan(value) or value == pytest.approx(int(energy) / 1e6)
