"""Raspberry Pi: the rails of a Pi 5, the throttle bits, and firmware that does not answer."""

from __future__ import annotations

import errno
import fcntl
import math
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.sensors.pc_trees import (
    by_id,
    found,
    missing,
    refuse_opening,
    sample_blocks,
    vcgencmd,
    watching,
    write,
)

from stepscope.record.sensors import raspberry_pi
from stepscope.record.sensors.raspberry_pi import THROTTLE_BITS, parse_adc, parse_throttled, rail_powers_w

LOADED, BUSY = sample_blocks("rpi5-pmic-read-adc.txt")
GET_THROTTLED = "sys/devices/platform/soc/soc:firmware/get_throttled"


def answering(root: Path, text: str) -> Path:
    """A vcgencmd that prints this text."""
    (root / "answer").write_text(text)
    return vcgencmd(root, f'exec cat "{root}/answer"')


@pytest.mark.parametrize(("text", "core_w"), [(LOADED, 10.87674 * 0.8974594), (BUSY, 6.22421 * 0.861733)])
def test_the_readings_of_real_boards_are_taken_whole(text: str, core_w: float) -> None:
    adc = parse_adc(text)
    assert not adc.others
    assert len(adc.currents_a) + len(adc.voltages_v) == len(text.splitlines()) == 26
    powers = rail_powers_w(adc)
    assert len(powers) == 12
    assert powers["VDD_CORE"] == pytest.approx(core_w)
    assert adc.voltages_v.keys() - powers.keys() == {"EXT5V", "BATT"}


def test_rails_give_watts_and_the_two_without_a_current_volts(tmp_path: Path) -> None:
    sensor = found(raspberry_pi.discover_pmic(answering(tmp_path, BUSY), watching()))
    values = by_id(sensor)
    sensor.close()
    assert len(values) == 14
    assert values["rail.DDR_VDD2.power"] == pytest.approx(0.2254398 * 1.104761)
    assert values["rail.EXT5V.voltage"] == 5.09066
    assert values["rail.BATT.voltage"] == 0.0  # no battery fitted: the converter measured that
    assert sensor.blocking
    assert sensor.every_ns == 100_000_000
    assert {(channel.parent_scope, channel.kind) for channel in sensor.channels} == {("board", "gauge")}


def test_a_rail_that_one_reading_lacks_is_nan_in_its_place(tmp_path: Path) -> None:
    sensor = found(raspberry_pi.discover_pmic(answering(tmp_path, BUSY), watching()))
    (tmp_path / "answer").write_text("\n".join(line for line in BUSY.splitlines() if "VDD_CORE_V" not in line))
    values = by_id(sensor)
    sensor.close()
    assert math.isnan(values["rail.VDD_CORE.power"])
    assert sum(math.isnan(value) for value in values.values()) == 1


def test_an_answer_that_is_cut_off_loses_its_last_line_alone() -> None:
    adc = parse_adc(LOADED[:-3])
    assert "BATT" not in adc.voltages_v
    assert len(adc.others) == 1
    assert len(adc.voltages_v) == 13


@pytest.mark.parametrize(
    "line",
    [
        "X_A current(0)=0.5V",
        "X_A current(0)=-0.5A",
        "X_A current(0)=nanA",
        "X_A current(0)=1e3A",
        "X_A current(0)=1000.0A",
        "X_A current()=1.0A",
        "X current(0)=1.0A",
    ],
)
def test_a_line_that_cannot_be_is_kept_and_not_believed(line: str) -> None:
    adc = parse_adc(line)
    assert adc.others == (line,)
    assert not adc.currents_a


def test_an_older_board_says_that_it_cannot_measure(tmp_path: Path) -> None:
    root = answering(tmp_path, 'error=1 error_msg="Command not registered"\n')
    answer = missing(raspberry_pi.discover_pmic(root, watching()))
    assert answer.reason == "unsupported"
    assert "Command not registered" in answer.detail
    assert answer.remedy is not None


def test_other_text_in_mid_run_is_an_error_and_not_zero_watts(tmp_path: Path) -> None:
    sensor = found(raspberry_pi.discover_pmic(answering(tmp_path, BUSY), watching()))
    (tmp_path / "answer").write_text("Segmentation fault\n")
    with pytest.raises(ValueError, match="no rail in the answer"):
        sensor.read()
    sensor.close()


@pytest.mark.parametrize("script", ["sleep 5", "sleep 5 & sleep 5"])
def test_a_program_that_hangs_is_ended(script: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raspberry_pi, "TIMEOUT_S", 0.05)
    answer = missing(raspberry_pi.discover_pmic(vcgencmd(tmp_path, script), watching()))
    assert answer.reason == "failed"
    assert "no answer to pmic_read_adc within 0.05 s" in answer.detail


def test_a_program_that_begins_to_hang_is_an_error_of_that_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = found(raspberry_pi.discover_pmic(answering(tmp_path, BUSY), watching()))
    monkeypatch.setattr(raspberry_pi, "TIMEOUT_S", 0.05)
    vcgencmd(tmp_path, "sleep 5")
    with pytest.raises(TimeoutError):
        sensor.read()
    sensor.close()


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 3", "failed"),
        ("echo 'VCHI initialization failed'; exit 255", "failed"),
        ("echo '/dev/vcio: Permission denied'; exit 1", "denied"),
    ],
)
def test_a_program_that_fails_gives_its_reason(script: str, reason: str, tmp_path: Path) -> None:
    answer = missing(raspberry_pi.discover_pmic(vcgencmd(tmp_path, script), watching()))
    assert answer.reason == reason
    assert (answer.remedy is not None) == (reason == "denied")


def test_a_mailbox_that_may_not_be_opened_names_the_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {"dev/vcio": ""})
    refuse_opening(monkeypatch, "vcio", errno.EACCES)
    answer = missing(raspberry_pi.discover_pmic(tmp_path, watching()))
    assert answer.reason == "denied"
    assert answer.remedy == "sudo usermod -aG video $USER   (then log in again)"


def test_a_board_before_the_fifth_is_promised_no_rails_by_a_right_to_its_mailbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"dev/vcio": "", "proc/device-tree/compatible": "raspberrypi,4-model-b\0brcm,bcm2711\0"})
    refuse_opening(monkeypatch, "vcio", errno.EACCES)
    answer = missing(raspberry_pi.discover_pmic(tmp_path, watching()))
    assert answer.reason == "unsupported"
    assert "meter beside the board" in str(answer.remedy)


class Mailbox:
    """The firmware's side of the ioctl: takes the message as the kernel hands it over, answers with a text."""

    def __init__(self, text: str, code: int = 0x80000000) -> None:
        self.text, self.code = text, code
        self.commands: list[str] = []

    def ioctl(self, file: int, request: int, message: bytearray) -> int:
        size, process, tag, room = struct.unpack_from("=4I", message)
        assert (size, process, tag) == (len(message), 0, 0x00030080)
        assert request == (0xC0086400 if struct.calcsize("P") == 8 else 0xC0046400)
        assert message[-4:] == b"\0\0\0\0"
        self.commands.append(bytes(message[24 : 24 + room]).split(b"\0")[0].decode())
        message[24 : 24 + len(self.text) + 1] = self.text.encode() + b"\0"
        struct.pack_into("=I", message, 4, self.code)
        return 0


def test_the_mailbox_is_asked_before_the_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mailbox = Mailbox(BUSY)
    monkeypatch.setattr(fcntl, "ioctl", mailbox.ioctl)
    sensor = found(raspberry_pi.discover_pmic(write(answering(tmp_path, LOADED), {"dev/vcio": ""}), watching()))
    assert by_id(sensor)["rail.VDD_CORE.power"] == pytest.approx(6.22421 * 0.861733)
    sensor.close()
    assert set(mailbox.commands) == {"pmic_read_adc"}
    assert sensor.channels[0].source == f"{tmp_path}/dev/vcio pmic_read_adc"


def test_a_mailbox_that_refuses_the_message_leaves_it_to_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fcntl, "ioctl", Mailbox("", code=0x80000001).ioctl)
    sensor = found(raspberry_pi.discover_pmic(write(answering(tmp_path, LOADED), {"dev/vcio": ""}), watching()))
    sensor.close()
    assert sensor.channels[0].source == f"{tmp_path}/usr/bin/vcgencmd pmic_read_adc"


def test_a_file_that_is_no_mailbox_has_failed(tmp_path: Path) -> None:
    answer = missing(raspberry_pi.discover_pmic(write(tmp_path, {"dev/vcio": ""}), watching()))
    assert answer.reason == "failed"
    assert "dev/vcio" in answer.detail


def test_the_firmware_is_asked_before_the_file_whose_reading_clears_its_history(tmp_path: Path) -> None:
    write(answering(tmp_path, "throttled=0x1\n"), {GET_THROTTLED: "50005\n"})
    sensor = found(raspberry_pi.discover_throttled(tmp_path, watching()))
    assert sum(sensor.read()) == 1.0
    sensor.close()


def test_throttle_bits_come_from_the_kernels_file_where_the_firmware_cannot_be_asked(tmp_path: Path) -> None:
    sensor = found(raspberry_pi.discover_throttled(write(tmp_path, {GET_THROTTLED: "50005\n"}), watching()))
    values = by_id(sensor)
    sensor.close()
    assert {name for name, value in values.items() if value} == {
        "throttle.undervoltage.throttled",
        "throttle.throttled.throttled",
        "throttle.undervoltage-since-boot.throttled",
        "throttle.throttled-since-boot.throttled",
    }
    assert len(values) == len(THROTTLE_BITS) == 8


def test_throttle_bits_come_from_the_program(tmp_path: Path) -> None:
    sensor = found(raspberry_pi.discover_throttled(answering(tmp_path, "throttled=0x80008\n"), watching()))
    assert by_id(sensor)["throttle.soft-temperature-limit.throttled"] == 1.0
    (tmp_path / "answer").write_text("what?\n")
    with pytest.raises(ValueError, match="not a set of bits"):
        sensor.read()
    sensor.close()


def test_text_that_is_no_set_of_bits_is_unsupported(tmp_path: Path) -> None:
    answer = missing(raspberry_pi.discover_throttled(answering(tmp_path, "error=2\n"), watching()))
    assert answer.reason == "unsupported"


def test_a_throttle_file_that_may_not_be_read_is_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, {GET_THROTTLED: "0\n"})
    refuse_opening(monkeypatch, "get_throttled", errno.EACCES)
    assert missing(raspberry_pi.discover_throttled(tmp_path, watching())).reason == "denied"


@pytest.mark.parametrize(
    ("text", "bits"),
    [
        ("throttled=0x0", 0),
        ("throttled=0x50005\n", 0x50005),
        ("50000\n", 0x50000),
        ("", None),
        ("0x", None),
        ("-1", None),
    ],
)
def test_bits_are_hexadecimal_in_both_spellings(text: str, bits: int | None) -> None:
    assert parse_throttled(text) == bits


LINE = st.builds(
    "{}_{} {}({})={}{}".format,
    st.text("ABC_3V", min_size=1, max_size=6),
    st.sampled_from("AVX"),
    st.sampled_from(["current", "volt"]),
    st.integers(-1, 99),
    st.floats() | st.integers(-(10**12), 10**12),
    st.sampled_from(["A", "V", ""]),
)


@settings(max_examples=100)
@given(st.lists(LINE | st.text(max_size=40), max_size=8).map("\n".join))
def test_no_text_crashes_the_parser_loses_a_line_or_gives_an_impossible_watt(text: str) -> None:
    adc = parse_adc(text)
    assert all(0 <= value <= 100 for value in [*adc.currents_a.values(), *adc.voltages_v.values()])
    assert all(0 <= watts <= 10_000 for watts in rail_powers_w(adc).values())
    kept = len(adc.currents_a) + len(adc.voltages_v) + len(adc.others)
    assert kept <= sum(bool(line.strip()) for line in text.splitlines())


@given(st.text(max_size=20))
def test_no_text_crashes_the_throttle_parser(text: str) -> None:
    bits = parse_throttled(text)
    assert bits is None or 0 <= bits < 2**32
