"""Batteries: what a uevent says, signs and units of drivers, plugging in and pulling out."""

from __future__ import annotations

import errno
import math
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sensors.pc_trees import (
    BATTERY,
    by_id,
    found,
    missing,
    refuse_opening,
    refuse_reading,
    sample_blocks,
    uevent,
    watching,
    write,
)

from stepscope.record.sensors import battery
from stepscope.record.sensors.battery import Supply, discharge_w, parse, raw_amount

LAPTOP = uevent(POWER_NOW=19195000, ENERGY_NOW=32940000, ENERGY_FULL=42650000)
SECOND = "sys/class/power_supply/BAT1"
MAINS = {"sys/class/power_supply/AC/type": "Mains\n", "sys/class/power_supply/AC/uevent": "POWER_SUPPLY_TYPE=Mains\n"}


def laptop(root: Path, text: str = LAPTOP) -> Path:
    return write(root, {f"{BATTERY}/uevent": text, f"{BATTERY}/type": "Battery\n"})


def power(root: Path, text: str) -> float:
    sensor = found(battery.discover(laptop(root, text), watching()))
    value = by_id(sensor)["battery.BAT0.power"]
    sensor.close()
    return value


def test_a_laptop_that_discharges_states_watts_and_joules(tmp_path: Path) -> None:
    sensor = found(battery.discover(laptop(tmp_path), watching()))
    assert by_id(sensor) == {
        "battery.BAT0.power": pytest.approx(19.195),
        "battery.BAT0.discharging": 1.0,
        "battery.BAT0.stored_energy": pytest.approx(32.94 * 3600),
        "battery.BAT0.voltage": pytest.approx(11.206),
    }
    sensor.close()
    assert sensor.blocking
    assert {(c.scope, c.parent_scope, c.kind, c.rail) for c in sensor.channels} == {
        ("battery:BAT0", "system", "gauge", "BAT0")
    }


@pytest.mark.parametrize("status", ["Charging", "Full", "Not charging", "Unknown", "", None])
def test_power_is_stated_only_while_discharging(status: str | None, tmp_path: Path) -> None:
    assert math.isnan(power(tmp_path, uevent(STATUS=status, POWER_NOW=19195000)))


def test_plugging_in_and_out_in_mid_run_is_followed(tmp_path: Path) -> None:
    sensor = found(battery.discover(laptop(tmp_path), watching()))
    laptop(tmp_path, LAPTOP.replace("Discharging", "Charging"))
    plugged = by_id(sensor)
    laptop(tmp_path)
    unplugged = by_id(sensor)
    sensor.close()
    assert math.isnan(plugged["battery.BAT0.power"])
    assert plugged["battery.BAT0.discharging"] == 0.0
    assert plugged["battery.BAT0.stored_energy"] == pytest.approx(32.94 * 3600)
    assert unplugged["battery.BAT0.power"] == pytest.approx(19.195)


def test_a_battery_that_only_assists_a_weak_adapter_is_not_the_whole_machine(tmp_path: Path) -> None:
    write(laptop(tmp_path), {**MAINS, "sys/class/power_supply/AC/online": "1\n"})
    sensor = found(battery.discover(tmp_path, watching()))
    assert math.isnan(by_id(sensor)["battery.BAT0.power"])
    write(tmp_path, {"sys/class/power_supply/AC/online": "0\n"})
    assert by_id(sensor)["battery.BAT0.power"] == pytest.approx(19.195)
    sensor.close()


@pytest.mark.parametrize("kind", ["USB", "USB_PD", "Wireless"])
def test_a_phone_on_a_weak_charger_is_not_fed_by_its_battery_alone(kind: str, tmp_path: Path) -> None:
    charger = "sys/class/power_supply/usb"
    write(laptop(tmp_path), {f"{charger}/type": f"{kind}\n", f"{charger}/online": "1\n"})
    sensor = found(battery.discover(tmp_path, watching()))
    assert math.isnan(by_id(sensor)["battery.BAT0.power"])
    write(tmp_path, {f"{charger}/online": "2\n"})
    assert math.isnan(by_id(sensor)["battery.BAT0.power"])
    write(tmp_path, {f"{charger}/online": "0\n"})
    assert by_id(sensor)["battery.BAT0.power"] == pytest.approx(19.195)
    sensor.close()


def test_a_usb_port_that_feeds_others_is_no_charger_where_the_adapter_is_out(tmp_path: Path) -> None:
    port = "sys/class/power_supply/ucsi-source-psy"
    supplies = {**MAINS, "sys/class/power_supply/AC/online": "0\n", f"{port}/type": "USB\n", f"{port}/online": "1\n"}
    sensor = found(battery.discover(write(laptop(tmp_path), supplies), watching()))
    assert by_id(sensor)["battery.BAT0.power"] == pytest.approx(19.195)
    sensor.close()


@pytest.mark.parametrize("current", [-1_500_000, 1_500_000, 2**32 - 1_500_000, 2**64 - 1_500_000])
def test_every_sign_convention_gives_positive_watts(current: int, tmp_path: Path) -> None:
    watts = power(tmp_path, uevent(CURRENT_NOW=current, CHARGE_FULL_DESIGN=4_000_000))
    assert watts == pytest.approx(1.5 * 11.206)


@pytest.mark.parametrize("value", [-19195000, 2**32 - 19195000, 2**64 - 19195000])
def test_a_negative_power_is_positive_watts_too(value: int, tmp_path: Path) -> None:
    assert power(tmp_path, uevent(POWER_NOW=value)) == pytest.approx(19.195)


def test_a_current_that_wrapped_in_16_bits_of_milliamperes_is_not_believed(tmp_path: Path) -> None:
    assert math.isnan(power(tmp_path, uevent(CURRENT_NOW=(65536 - 1500) * 1000, CHARGE_FULL_DESIGN=4_000_000)))


def test_milliunits_against_the_abi_are_recognised_and_noted(tmp_path: Path) -> None:
    text = uevent(VOLTAGE_NOW=12575, CURRENT_NOW=1500, CHARGE_FULL_DESIGN=7000, CHARGE_NOW=7326)
    sensor = found(battery.discover(laptop(tmp_path, text), watching()))
    values = by_id(sensor)
    sensor.close()
    assert values["battery.BAT0.power"] == pytest.approx(12.575 * 1.5)
    assert values["battery.BAT0.charge"] == pytest.approx(7.326 * 3600)
    assert "mV for uV, mAh for uAh" in sensor.channels[0].source


def test_a_phone_with_a_counter_in_milliampere_hours_has_its_charge_alone_converted() -> None:
    supply = parse(uevent(VOLTAGE_NOW=3_900_000, CURRENT_NOW=-400_000, CHARGE_FULL_DESIGN=3_350_000, CHARGE_COUNTER=1))
    assert battery.broken_units(supply) == ()
    assert discharge_w(supply) == pytest.approx(1.56)


@pytest.mark.parametrize(
    "values",
    [
        {"POWER_NOW": 0},
        {"CURRENT_NOW": 0},
        {"POWER_NOW": 900_000_000_000},
        {"POWER_NOW": "what?"},
        {"POWER_NOW": "1_000_000"},
        {"POWER_NOW": ""},
        {"CURRENT_NOW": 1_000_000, "VOLTAGE_NOW": 0},
        {"CURRENT_NOW": 1_000_000, "VOLTAGE_NOW": 12},
        {"CURRENT_NOW": 1_000_000, "VOLTAGE_NOW": "9" * 30},
    ],
)
def test_power_that_cannot_be_true_of_a_running_machine_is_not_read(values: dict[str, object], tmp_path: Path) -> None:
    assert math.isnan(power(tmp_path, uevent(ENERGY_NOW=32940000, **values)))


def test_of_two_batteries_the_idle_one_gives_nothing_and_the_other_everything(tmp_path: Path) -> None:
    idle = uevent(NAME="BAT1", STATUS="Not charging", POWER_NOW=0)
    write(laptop(tmp_path), {f"{SECOND}/uevent": idle, f"{SECOND}/type": "Battery\n"})
    sensor = found(battery.discover(tmp_path, watching()))
    values = by_id(sensor)
    sensor.close()
    assert values["battery.BAT0.power"] == pytest.approx(19.195)
    assert values["battery.BAT1.power"] == 0.0


def test_two_idle_batteries_of_a_running_machine_say_nothing() -> None:
    idle = parse(uevent(STATUS="Not charging", POWER_NOW=0))
    assert all(math.isnan(value) for value in battery.powers_w([idle, idle, None]))


def test_a_battery_that_is_pulled_out_and_put_back_is_read_again(tmp_path: Path) -> None:
    now = [0]
    write(laptop(tmp_path), {f"{SECOND}/uevent": LAPTOP})
    sensor = found(battery.discover(tmp_path, watching(lambda: now[0])))
    (tmp_path / SECOND / "uevent").unlink()
    gone = by_id(sensor)
    write(tmp_path, {f"{SECOND}/uevent": LAPTOP})
    assert math.isnan(by_id(sensor)["battery.BAT1.power"])  # looked for once a second
    now[0] += 1_000_000_000
    back = by_id(sensor)
    sensor.close()
    assert math.isnan(gone["battery.BAT1.power"])
    assert gone["battery.BAT0.power"] == back["battery.BAT1.power"] == pytest.approx(19.195)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENODEV])
def test_when_no_battery_answers_the_sensor_is_lost_and_then_there_again(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0]
    sensor = found(battery.discover(laptop(tmp_path), watching(lambda: now[0])))
    with monkeypatch.context() as patch:
        refuse_reading(patch, "uevent", number)
        with pytest.raises(OSError, match="no battery answers"):
            sensor.read()
    now[0] += 1_000_000_000
    assert by_id(sensor)["battery.BAT0.power"] == pytest.approx(19.195)
    sensor.close()


def test_mice_chargers_and_batteries_without_numbers_are_no_power_meter(tmp_path: Path) -> None:
    folder = "sys/class/power_supply"
    mouse = uevent(NAME="hid-mouse", SCOPE="Device", POWER_NOW=1)
    write(tmp_path, {**MAINS, f"{folder}/hid-mouse/uevent": mouse})
    assert missing(battery.discover(tmp_path, watching())).reason == "absent"
    write(tmp_path, {f"{folder}/BAT0/uevent": uevent(VOLTAGE_NOW=None, CAPACITY=77)})
    assert missing(battery.discover(tmp_path, watching())).reason == "unsupported"


def test_an_older_kernel_tells_the_type_in_a_file_of_its_own(tmp_path: Path) -> None:
    charger = {"sys/class/power_supply/usb/uevent": uevent(TYPE=None, CURRENT_NOW=500_000)}
    charger["sys/class/power_supply/usb/type"] = "USB\n"
    sensor = found(
        battery.discover(write(laptop(tmp_path, uevent(TYPE=None, POWER_NOW=5_000_000)), charger), watching())
    )
    assert by_id(sensor)["battery.BAT0.power"] == pytest.approx(5.0)
    sensor.close()
    assert {channel.rail for channel in sensor.channels} == {"BAT0"}


def test_a_battery_that_may_not_be_read_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    laptop(tmp_path)
    refuse_opening(monkeypatch, "uevent", errno.EACCES)
    answer = missing(battery.discover(tmp_path, watching()))
    assert answer.reason == "denied"
    assert answer.remedy == f"sudo chmod a+r {tmp_path}/{BATTERY}/uevent"


def test_the_uevents_of_real_machines_are_read_whole() -> None:
    texts = sample_blocks("battery-uevents.txt")
    supplies = [parse(text) for text in texts]
    for text, supply in zip(texts, supplies, strict=True):
        assert len(supply.fields) == len(text.splitlines())
        assert not supply.others
    assert [discharge_w(supply) for supply in supplies] == [
        pytest.approx(19.195),
        0.0,
        0.0,
        pytest.approx(1.202147 * 4.13744),
        pytest.approx(0.3956 * 3.833115),
        pytest.approx(0.00656 * 4.310292),
        pytest.approx(10.0),
        pytest.approx(0.812 * 4.186),
        pytest.approx(14.888),
    ]
    assert [battery.charge_c(supply) for supply in supplies] == [
        None,
        pytest.approx(2.167 * 3600),
        pytest.approx(7.326 * 3600),
        pytest.approx(0.317457 * 3600),
        *[None] * 5,  # a counter that starts anywhere, or whose unit is not that of the capacity, is no charge
    ]
    assert battery.stored_j(supplies[8]) == pytest.approx(9.43 * 3600)
    assert [battery.volts(supply) for supply in supplies[:4]] == pytest.approx([11.206, 16.636, 12.575, 4.13744])
    assert [battery.discharging(supply) for supply in supplies[:4]] == [True, False, True, None]
    broken = [bool(battery.broken_units(supply)) for supply in supplies]
    assert broken == [False, False, True, False, True, False, False, False, False]
    assert supplies[0].fields["SERIAL_NUMBER"] == "3502"
    assert [round(value, 3) for value in battery.powers_w(supplies[:1])] == [19.195]
    assert all(math.isnan(value) for value in battery.powers_w(supplies[1:4]))  # full, no current, no status


def test_lines_that_are_no_pairs_are_kept() -> None:
    assert parse("garbage\nPOWER_SUPPLY_STATUS=Full\n\n=5\n") == Supply({"STATUS": "Full"}, ("garbage", "=5"))


@given(st.text(max_size=60))
def test_no_text_of_a_value_crashes_and_none_is_invented(text: str) -> None:
    number = raw_amount(Supply({"X": text}), "X")
    assert number is None or (text.isascii() and (number == int(text) or number + 2**32 == int(text) or number < 0))


@settings(max_examples=60, deadline=None)
@given(
    content=st.binary(max_size=300)
    | st.builds(
        lambda keys, values: "".join(f"POWER_SUPPLY_{k}={v}\n" for k, v in zip(keys, values, strict=False)).encode(),
        st.permutations(["STATUS", "POWER_NOW", "CURRENT_NOW", "VOLTAGE_NOW", "CHARGE_NOW", "ENERGY_NOW"]),
        st.lists(st.sampled_from(["Discharging", "Full", ""]) | st.integers(-(2**70), 2**70).map(str), max_size=6),
    )
)
def test_no_content_of_a_uevent_crashes_the_sensor_or_gives_impossible_watts(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = laptop(Path(folder))
        sensor = found(battery.discover(root, watching()))
        write(root, {f"{BATTERY}/uevent": content})
        values = by_id(sensor)
        sensor.close()
        answer = battery.discover(root, watching())
        if not hasattr(answer, "reason"):
            found(answer).close()
    watts = values["battery.BAT0.power"]
    assert math.isnan(watts) or (0.01 <= watts <= 500 and b"Discharging" in content)
